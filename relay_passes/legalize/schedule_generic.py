"""Operators that no template takes: legalised, fused by TVM, and vectorised for all threads.

Before

    @T.prim_func(private=True)
    def fused_add_tanh(...):            # plain loops, from LegalizeOps and FuseTIR
        for i, j in T.grid(128, 768): ...

After

    @T.prim_func(private=True)
    def fused_add_tanh(...):
        T.func_attr({"tvm_hybrid.kernel": "generic_injective", "tvm_hybrid.unaligned": True})
        for i in T.parallel(...): ...   # 16 lanes at a time
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tvm.tirx.script.builder.ir as I
from msgspec import structs
from tvm import IRModule, ir, relax, te, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.script.ir_builder import IRBuilder
from tvm.sym import Analyzer

from microkernels.base.tvm_compat.relax import FUSED, OP_PATTERN, OPAQUE, legalize, set_type
from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr
from relay_passes.ir.constants import array_of, constant_of
from relay_passes.ir.decisions import REORDER, Decision, DecisionLog
from relay_passes.ir.entries import MAIN
from relay_passes.ir.functions import KERNEL, UNALIGNED, is_foreign_kernel, named_pass, with_body
from relay_passes.ir.graph import bindings_of, op_name, variables
from relay_passes.ir.rewrite import copy_module, is_relax, map_values, unread, with_names
from tir_schedules.core.emission import opaque_block
from tir_schedules.generic.expressions import const_int, substitute, variables_of
from tir_schedules.generic.schedule import schedule_generic

from . import axes, moves, numbers, resize, shapes


def schedule_leftovers(machine: Machine, decisions: DecisionLog) -> ir.transform.Pass:
    """The pass; notes the schedule of every operator without a template."""

    @module_pass(opt_level=0, name="tvm_hybrid.schedule_generic")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        updated, scheduled = copy_module(mod), dict[ir.GlobalVar, _Scheduled]()
        for gvar, function in mod.functions_items():
            if is_foreign_kernel(function):
                failed: list[str] = []
                new, name = schedule_generic(function, machine, str(gvar.name_hint), failed)
                updated.update_func(gvar, new.with_attr(KERNEL, name).with_attr(UNALIGNED, True))
                scheduled[gvar] = _Scheduled(name, tuple(failed), moves.reorders_in(function))
        for function in filter(is_relax, mod.functions.values()):
            _note(function, scheduled, decisions)
        return updated

    return run


class _Scheduled(NamedTuple):
    """A function's schedule, the schedules that failed before it, and its number of reorders."""

    kernel: str
    failed: tuple[str, ...]
    reorders: int


def _note(
    function: relax.Function, scheduled: dict[ir.GlobalVar, _Scheduled], decisions: DecisionLog
) -> None:
    """Adds a decision for every call of a scheduled function; a noted reorder gets its kernel."""
    calls = [
        (str(binding.var.name), binding.value.args[0])
        for binding in bindings_of(function)
        # Calls with destination passing.
        if next(iter(getattr(binding.value, "args", ())), None) in scheduled
    ]
    noted = [i for i, each in enumerate(decisions) if each.op == REORDER and not each.kernel]
    done = [at for at, (_, gvar) in enumerate(calls) for _ in range(scheduled[gvar].reorders)]
    if len(done) != len(noted):  # a reorder was folded
        done, noted = [], []
    for place, index in zip(done, noted, strict=True):
        gvar, before = calls[place][1], decisions[index]
        reason = "; ".join(filter(None, [before.reason, *scheduled[gvar].failed]))
        decisions[index] = structs.replace(
            before, function=str(gvar.name_hint), kernel=scheduled[gvar].kernel, reason=reason
        )
    for place, (node, gvar) in enumerate(calls):
        if place not in done:
            name, how = str(gvar.name_hint), scheduled[gvar]
            reason = "; ".join(["no template; generic schedule", *how.failed])
            own: dict[str, Any] = {"function": name, "kernel": how.kernel, "reason": reason}
            decisions.append(Decision(node=node, op=name, taken=False, **own))


def legalize_operators() -> ir.transform.Pass:
    """Legalises all remaining operators: by TVM's LegalizeOps, some by functions of ours.

    Before

        lv = R.quantize(x, s, z, out_dtype="uint8")
        lv1 = R.nn.relu(y)

    After

        lv = R.call_tir(quantize, (x,))    # relay_passes/legalize/numbers.py
        lv1 = R.call_tir(relu, (y,))       # TVM's

    It runs LegalizeOps with the legalisations of this package where there are any.
    """
    files = (axes, moves, numbers, resize, shapes)
    ours = {name: each for file in files for name, each in file.LEGALIZATIONS.items()}
    return unread(legalize(ours, ("relax.reshape", "relax.permute_dims")))


@named_pass
def scalars_in_shapes(mod: IRModule) -> IRModule:
    """Moves number parameters of a fused function into its parameter for dynamic sizes.

    Before

        def fused(past: T.int64, tir_vars: R.Shape([n])):
            lv = R.call_tir(arange, (past,), out_ty=R.Tensor((n,), "int64"))
            ...
        lv1 = fused(past, R.shape([n]))

    After

        def fused(tir_vars: R.Shape([n, past])):
            lv = R.call_tir(arange, (past,), out_ty=R.Tensor((n,), "int64"))
            ...
        lv1 = fused(R.shape([n, past]))

    TVM's FuseTIR makes a parameter of every size that a function with such a shape reads, including
    `past`, and fails if that parameter exists already. Functions without such a shape stay.

    It must run between TVM's FuseOps and FuseTIR.
    """
    moved: dict[relax.Expr, ir.GlobalVar] = {}
    functions: dict[ir.GlobalVar, ir.BaseFunc] = {}
    for name, function in mod.functions_items():
        new = name
        if is_relax(function) and FUSED in (function.attrs or {}) and function.params:
            *others, last = function.params
            kept, numbers = _apart(others)
            ty = last.ty if isinstance(last.ty, relax.ShapeType) else None
            if ty is not None and ty.values is not None and numbers:
                shape = relax.Var(last.name, relax.ShapeType([*ty.values, *numbers]))
                body, attrs, is_pure = function.body, function.attrs, function.is_pure
                function = relax.Function([*kept, shape], body, function.ret_ty, is_pure, attrs)
                new = moved[name] = ir.GlobalVar(name.name_hint)
                set_type(new, function.ty)
        functions[new] = function
    if not moved:
        return mod

    def passed(binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if not isinstance(call, relax.Call) or call.op not in moved:
            return None
        *others, last = call.args
        kept, numbers = _apart(others)
        shape = relax.ShapeExpr([*last.values, *numbers])
        return relax.Call(moved[call.op], [*kept, shape], call.attrs, ret_ty=call.ty)

    whole = IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    return map_values(whole, passed)


Item = TypeVar("Item", bound=relax.Expr)  # a parameter or an argument


def _apart(items: list[Item]) -> tuple[list[Item], list[Item]]:
    """Splits parameters or arguments into tensors and numbers."""
    numbers = [each for each in items if isinstance(each.ty, ir.PrimType)]
    return [each for each in items if not isinstance(each.ty, ir.PrimType)], numbers


_BINARY = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod),
    *(tirx.Min, tirx.Max, tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or),
)


@named_pass
def unmatched_sizes(mod: IRModule) -> IRModule:
    """Keeps kernels out of fusion if they write their sizes differently from their calls.

    Before

        def slice(x: T.Buffer((n,)), m: T.int64, y: T.Buffer((T.max(m - 1, 0) * 5,))):
            T.func_attr({"op_pattern": 2})
        lv = R.call_tir(slice, (x, m), out_ty=R.Tensor((n * 600,), "float32"))    # m is n * 120 + 1

    After

        def slice(x: T.Buffer((n,)), m: T.int64, y: T.Buffer((T.max(m - 1, 0) * 5,))):
            T.func_attr({"op_pattern": 8})
        lv = R.call_tir(slice, (x, m), out_ty=R.Tensor((n * 600,), "float32"))

    A size that depends on data may have two names: m here, and n * 120 + 1, which TVM has found to
    be equal. TVM's FuseTIR compares a kernel's sizes with the call's sizes term by term. It fails
    at two products of different factors, and if two names stand for one size. A kernel that is not
    fused can be called with these sizes.

    It must run after AnnotateTIROpPattern and before TVM's FuseOps.
    """
    updated = copy_module(mod)
    for function in filter(is_relax, mod.functions.values()):
        for call in (binding.value for binding in bindings_of(function)):
            if op_name(call) == "relax.call_tir" and not _matches(mod[call.args[0]], call):
                updated[call.args[0]] = mod[call.args[0]].with_attr(OP_PATTERN, OPAQUE)
    return updated


def _matches(kernel: tirx.PrimFunc, call: Any) -> bool:
    """Whether FuseTIR can match a kernel's sizes with those of its call."""
    made = call.ty.fields if isinstance(call.ty, relax.TupleType) else [call.ty]
    given = [*call.args[1].fields, *(relax.Var("made", each) for each in made)]
    pairs: list[tuple[ir.Expr, ir.Expr]] = []
    values: dict[tirx.Var, ir.Expr] = {}
    for param, argument in zip(kernel.params, given, strict=False):
        if isinstance(argument.ty, ir.PrimType):
            values[param] = argument
        elif isinstance(getattr(argument.ty, "shape", None), relax.ShapeExpr):
            pairs += zip(param.ty.shape, argument.ty.shape.values, strict=False)
    for one, other in pairs:
        if isinstance(one, tirx.Var):
            values.setdefault(one, other)
    return all(_match(one, other) and _is(one, other, values) for one, other in pairs)


def _is(param: ir.Expr, given: ir.Expr, values: dict[tirx.Var, ir.Expr]) -> bool:
    """Whether a kernel's size equals the given one; True if one of its names has no value."""
    if isinstance(param, tirx.IntImm) or any(var not in values for var in variables_of(param)):
        return True
    return const_int(Analyzer().simplify(substitute(param, values) - given)) == 0


def _match(param: ir.Expr, given: ir.Expr) -> bool:
    """Whether two sizes agree term by term, as far as both have one form."""
    if isinstance(param, tirx.IntImm):
        return isinstance(given, tirx.IntImm) and int(param) == int(given)
    if not isinstance(param, _BINARY) or type(param) is not type(given):
        return True
    return _match(param.a, given.a) and _match(param.b, given.b)


@named_pass
def fuse_operators(mod: IRModule) -> IRModule:
    """Runs TVM's FuseOps, and keeps the names of variables.

    Before

        exp_n0_ = R.call_tir(exp, (x,))
        add_n1_ = R.call_tir(add, (exp_n0_, x))
        gv = R.call_tir(sum, (add_n1_,))

    After

        add_n1_ = fused_exp_add(x)          # FuseOps calls it lv
        gv = R.call_tir(sum, (add_n1_,))

    The readers of a value determine its name: parameters of a fused function are named after their
    old arguments, and a call that stays unfused keeps its arguments' names.
    """
    fused = unread(relax.transform.FuseOps())(mod)
    if MAIN not in mod:
        return fused
    before, after = (
        {binding.var: binding.value for binding in bindings_of(each[MAIN])} for each in (mod, fused)
    )
    found: dict[relax.Var, str] = {}  # old names of the values of new variables
    for var, value in after.items():
        arguments, names = list(variables(value)), []
        callee = value.op if isinstance(value, relax.Call) else None
        if isinstance(callee, ir.GlobalVar):
            arguments = list(value.args[:])
            names = [str(each.name) for each in fused[callee].params]
        elif var in before:
            names = [str(each.name) for each in variables(before[var])]
        for argument, name in zip(arguments, names, strict=False):
            made = argument in after and argument not in before
            if made and isinstance(argument, relax.DataflowVar):
                found.setdefault(argument, name)
    updated = copy_module(fused)
    updated.update_func(updated.get_global_var(MAIN), with_names(fused[MAIN], found))
    return updated


# Constants that are outputs: if few numbers determine one, a kernel stores it in each call.
#
# Before
#
#     return const                                  (zeros, but for ones on a diagonal)
#
# After
#
#     lv = R.call_tir(sparse, (const_places, const_values))
#     return lv
#
# The caller gets new memory. A copy of the constant reads and writes, but a kernel only writes.
# This is done for a constant of one repeated number, for an arithmetic progression, and for one
# repeated number with few exceptions. Small constants are copied as fast.


LEAST_BYTES = 1 << 14
EXCEPTIONS = 64  # elements per allowed exception
_SAMPLES = 64  # elements to look at for the most frequent number
_DTYPES = ("bool", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")

Array = np.ndarray[Any, Any]


@named_pass
def store_constants(mod: IRModule) -> IRModule:
    """The pass; it must run after constants are folded, before kernels are scheduled."""
    if MAIN not in mod:
        return mod
    main = mod[MAIN]
    bound = [each for each in bindings_of(main) if isinstance(each, relax.VarBinding)]
    values: dict[relax.Expr, relax.Expr] = {each.var: each.value for each in bound}
    result = main.body.body
    outputs = list(result.fields) if isinstance(result, relax.Tuple) else [result]
    builder = relax.BlockBuilder(mod)
    bindings: list[relax.VarBinding | relax.MatchCast] = []
    for number, output in enumerate(outputs):
        call = _call(builder, values.get(output, output))
        if call is not None:
            stored = relax.Var(f"stored{number}", call.ty)
            bindings.append(relax.VarBinding(stored, call))
            outputs[number] = stored
    if not bindings:
        return mod
    body = relax.Tuple(outputs) if isinstance(result, relax.Tuple) else outputs[0]
    blocks = [*main.body.blocks, relax.DataflowBlock(bindings)]
    builder.update_func(mod.get_global_var(MAIN), with_body(main, relax.SeqExpr(blocks, body)))
    return builder.get()


def _call(builder: relax.BlockBuilder, value: relax.Expr) -> relax.Expr | None:
    """A call of a kernel that stores a constant; None if no kernel can."""
    if not isinstance(value, ir.GenericConst) or str(value.ty.dtype) not in _DTYPES:
        return None
    array = array_of(value.value)
    if array.nbytes < LEAST_BYTES:
        return None
    flat = array.reshape(-1)
    numbers = _progression(flat)
    if numbers is not None:
        return _kernel(builder, _in_progression, array, *numbers)
    # The most frequent number of some samples, as an array of one element.
    samples = flat[:: max(1, flat.size // _SAMPLES)]
    _, firsts, counts = np.unique(_bits(samples), return_index=True, return_counts=True)
    place = int(firsts[counts.argmax()])
    usual = samples[place : place + 1]
    places = np.flatnonzero(_bits(flat) != _bits(usual))
    # TVM may write another number for a NaN or for -0.
    special = np.isnan(usual) | ((usual == 0) & np.signbit(usual))
    if len(places) * EXCEPTIONS > flat.size or special.any():
        return None
    tensors = [constant_of(each) for each in (places, flat[places])] if len(places) else []
    return _kernel(builder, _of_few_numbers, array, usual.item(), *tensors)


def _kernel(
    builder: relax.BlockBuilder, computed: Callable[..., Any], array: Array, *what: Any
) -> relax.Expr:
    """A call of a kernel that computes an array of this shape and type."""
    name, dtype = computed.__name__.strip("_"), str(array.dtype)
    call = builder.call_te(computed, array.shape, dtype, *what, primfunc_name_hint=name)
    return builder.normalize(call)


def _bits(array: Array) -> Array:
    """Elements as integers: equal NaNs are equal, and -0 differs from 0."""
    return array.view(f"u{array.dtype.itemsize}")


def _progression(flat: Array) -> tuple[int, int] | None:
    """First element and step of an arithmetic progression of integers; None if it is none."""
    if flat.dtype.kind not in "iu":
        return None
    first, step = int(flat[0]), int(flat[1]) - int(flat[0])
    last, limits = first + step * (flat.size - 1), np.iinfo(flat.dtype)
    if int(flat[-1]) != last or not limits.min <= step <= limits.max:
        return None
    return (first, step) if (np.diff(flat) == step).all() else None


def _in_progression(shape: Sequence[int], dtype: str, first: int, step: int) -> te.Tensor:
    def element(*indices: Expr) -> Expr:
        place: Expr = tirx.const(0, "int64")
        for index, size in zip(indices, shape, strict=True):
            place = place * size + index
        return (place * step + first).astype(dtype)

    return te.compute(shape, element, name="in_progression")


def _of_few_numbers(shape: Sequence[int], dtype: str, usual: Any, *exceptions: te.Tensor) -> Any:
    number = tirx.const(usual, dtype)
    if not exceptions:
        return te.compute(shape, lambda *_: number, name="of_one_number")
    size = math.prod(shape)

    def statement(ins: Sequence[Expr], outs: Sequence[Expr]) -> tirx.Stmt:
        with IRBuilder() as kernel, opaque_block("sparse"):
            flat = I.decl_buffer([size], dtype, data=outs[0].data)
            with I.serial(size) as place:
                I.buffer_store(flat, number, [place])
            with I.serial(ins[0].shape[0]) as place:
                I.buffer_store(flat, ins[1][place], [ins[0][place]])
        return kernel.get()

    return te.extern([shape], list(exceptions), statement, name="of_few_numbers", dtype=dtype)
