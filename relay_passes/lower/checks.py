"""Checks of arguments: what a kernel may skip, what comes first, what is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm.tirx.script.builder.ir as I
import tvm_ffi
from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import Pass, PassContext, Sequential, module_pass
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.compilation_pipeline import PIPELINE_MAP, get_tir_pipeline, register_tir_pipeline

from microkernels.amx.permission import PERMISSION_LLVM_IR
from microkernels.base.errors import BY_ZERO
from microkernels.base.tvm_compat.relax import ENTRY_CHECKS, OWN_RESULTS, OWN_VIEWS
from microkernels.base.tvm_compat.tir import IMPORT_LLVM
from relay_passes.ir.graph import AnyBinding, op_name, variables
from relay_passes.ir.moving_operators import NUM_INPUT, has_weights
from relay_passes.ir.rewrite import is_kernel, is_relax, map_functions, with_blocks
from tir_schedules.core.emission import children, with_children
from tir_schedules.generic.expressions import call_name

from .one_kernel import TAKES_BITS, accept_bits

# Skip checks: kernels that see only tensors of the program itself do not check them.
#
# Before
#
#     def tvm_hybrid_matmul(...):         # machine code
#         assert the number of arguments, their types, shapes, strides, ...
#         compute(...)
#
# After
#
#     def tvm_hybrid_matmul(...):
#         compute(...)
#
# TVM lets every kernel check its arguments whenever it is called. Two fifths of the instructions of
# a small model are for that. A caller of the program may err, so kernels that read what comes from
# outside check it. But tensors that the program allocates, and its constants, are what their
# kernels were built for.


TRUSTING = "tvm_hybrid.trusting"  # an attribute of kernels that do not check their arguments


def trusting(mod: IRModule) -> IRModule:
    """The module with marks on the kernels whose arguments are all its own.

    Parameters
    ----------
    mod : IRModule
        Lowered as far as TVM's virtual machine wants. A kernel with assertions of its own is not
        marked.
    """
    calls = _Calls(mod)
    marked = {
        gvar: function.with_attr(TRUSTING, True)
        for gvar, function in mod.functions_items()
        if isinstance(function, tirx.PrimFunc) and calls.are_own(gvar) and not _asserts(function)
    }
    functions = {gvar: marked.get(gvar, function) for gvar, function in mod.functions_items()}
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def pipeline_of_trusting(name: str) -> str:
    """The name of a pipeline of TVM's that leaves out the checks of marked kernels."""
    found = f"{name}_trusting"
    if found not in PIPELINE_MAP:
        register_tir_pipeline(found, lambda: _pipeline(name))
    return found


def _pipeline(name: str) -> tuple[Pass, Callable[[], Pass], Callable[[], Pass]]:
    lower, finalize_host, finalize_device = get_tir_pipeline(name)
    return Sequential([lower, _skip_checks(), accept_bits()]), finalize_host, finalize_device


def _skip_checks() -> Pass:
    """Takes the assertions out of marked kernels, once TVM has written them."""

    @module_pass(opt_level=0, name="tvm_hybrid.skip_checks")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        trusted = {g: f for g, f in mod.functions_items() if TRUSTING in (f.attrs or {})}
        if not trusted:
            return mod
        skipped = tirx.transform.SkipAssert()(IRModule(trusted))
        functions = dict(mod.functions_items())
        functions.update((g, f.without_attr(TRUSTING)) for g, f in skipped.functions_items())
        return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)

    return run


class _Calls:
    """Which kernels a module's functions call with nothing but tensors of their own."""

    def __init__(self, mod: IRModule) -> None:
        self.uses: dict[relax.Expr, int] = {}
        self.own: dict[relax.Expr, int] = {}
        for function in mod.functions.values():
            if isinstance(function, relax.Function):
                relax.analysis.post_order_visit(function, self._count)
                self._read(function)

    def are_own(self, kernel: ir.GlobalVar) -> bool:
        """Whether all that is done with a kernel is to call it so."""
        return 0 < self.uses.get(kernel, 0) == self.own.get(kernel, 0)

    def _count(self, expr: relax.Expr) -> None:
        # A name is visited once in a function, its calls one by one.
        if isinstance(expr, relax.Call) and isinstance(expr.op, ir.GlobalVar):
            self.uses[expr.op] = self.uses.get(expr.op, 0) + 1
        inside = expr.args if isinstance(expr, relax.Call) else getattr(expr, "fields", ())
        for each in inside:
            if isinstance(each, ir.GlobalVar):
                self.uses[each] = self.uses.get(each, 0) + 1

    def _read(self, function: relax.Function) -> None:
        known: set[relax.Expr] = set()
        body = function.body
        for block in body.blocks if isinstance(body, relax.SeqExpr) else ():
            for binding in block.bindings:
                value = binding.value
                if not isinstance(binding, relax.VarBinding) or not isinstance(value, relax.Call):
                    continue
                if _is_own_result(value) or (
                    _packed(value) in OWN_VIEWS and _is_own(value.args[0], known)
                ):
                    known.add(binding.var)
                elif isinstance(value.op, ir.GlobalVar) and all(
                    _is_own(each, known) for each in value.args
                ):
                    self.own[value.op] = self.own.get(value.op, 0) + 1


def _is_own(argument: relax.Expr, known: set[relax.Expr]) -> bool:
    return isinstance(argument, ir.GenericConst | tirx.IntImm) or argument in known


def _is_own_result(call: relax.Call) -> bool:
    """Whether a call makes a tensor or a number of which the program knows all."""
    if op_name(call) == "relax.call_builtin_with_ctx":
        return str(getattr(call.args[0], "global_symbol", "")) in OWN_RESULTS
    return op_name(call) in OWN_RESULTS or _packed(call) in OWN_RESULTS


def _packed(call: relax.Call) -> str:
    """The name of the packed function that is called, or ""."""
    return str(call.op.global_symbol) if isinstance(call.op, relax.ExternFunc) else ""


def _asserts(function: tirx.PrimFunc) -> bool:
    """Whether a kernel has an assertion."""
    waiting = [function.body]
    while waiting:
        statement = waiting.pop()
        if isinstance(statement, tirx.AssertStmt):
            return True
        waiting += children(statement)
    return False


def drop_checks(of_inputs: bool = True) -> ir.transform.Pass:
    """Drop checks: removes checks at a function's entry that every kernel repeats.

    Before

        R.call_packed("vm.builtin.check_tensor_info", x, ...)
        R.call_packed("vm.builtin.match_shape", x, ...)
        cls.tvm_hybrid_matmul(x, const_packed, alloc)

    After

        cls.tvm_hybrid_matmul(x, const_packed, alloc)

    A kernel refuses an argument of another shape or type before it reads anything. A parameter that
    anything but a kernel uses, such as a view, keeps its checks, and so does one of a kernel that
    takes bits for bfloat16.

    Inputs may keep them: TVM's errors name the function and the parameter, and a wrong shape is a
    RuntimeError. Each costs a call; weights, parameters behind the first `num_input`, are many.

    The pass; it comes after VMShapeLower.

    Parameters
    ----------
    of_inputs : bool
        Whether inputs lose their checks, too; otherwise weights alone.
    """

    @module_pass(opt_level=0, name="tvm_hybrid.drop_checks")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        def changed(function: relax.Function) -> relax.Function:
            kept = [] if of_inputs else _inputs(function)
            return _without_checks(mod, function, kept)

        return map_functions(mod, is_relax, changed)

    return run


def _inputs(function: relax.Function) -> list[relax.Var]:
    """The parameters of a function that are no weights; all where it does not say."""
    params = list(function.params)
    return params[: int(function.attrs[NUM_INPUT])] if has_weights(function) else params


def _without_checks(
    mod: IRModule, function: relax.Function, inputs: list[relax.Var]
) -> relax.Function:
    """A function without checks that kernels repeat, but for those of some inputs."""
    kept: set[relax.Var] = {*variables(function.body.body), *inputs}
    seen: set[relax.Var] = set()
    for block in function.body.blocks:
        for binding in block.bindings:
            value = binding.value
            used = variables(value)
            if not _is_check(value):
                seen.update(used)
                if not _is_kernel_call(mod, value):
                    kept.update(used)
    checked = {p for p in function.params if p in seen and p not in kept and not _is_open(p)}

    def is_needed(binding: AnyBinding) -> bool:
        value = binding.value
        return not (_is_check(value) and value.args[0] in checked)

    return with_blocks(
        function,
        [
            relax.BindingBlock([binding for binding in b.bindings if is_needed(binding)])
            for b in function.body.blocks
        ],
    )


def _is_open(param: relax.Var) -> bool:
    """Whether a shape has sizes that are only known at run time."""
    shape = getattr(param.ty, "shape", None)
    values = getattr(shape, "values", None)
    return values is None or not all(isinstance(value, tirx.IntImm) for value in values)


def _is_check(value: relax.Expr) -> bool:
    return (
        isinstance(value, relax.Call)
        and isinstance(value.op, relax.ExternFunc)
        and str(value.op.global_symbol) in ENTRY_CHECKS
    )


def _is_kernel_call(mod: IRModule, value: relax.Expr) -> bool:
    return (
        isinstance(value, relax.Call)
        and isinstance(value.op, relax.GlobalVar)
        and isinstance(mod[value.op], tirx.PrimFunc)
        and TAKES_BITS not in (mod[value.op].attrs or {})
    )


PIPELINE = "tvm_hybrid_check_first"


def checking_pipeline() -> str:
    """The name of TVM's default pipeline with `check_first` among its last passes."""
    if PIPELINE not in PIPELINE_MAP:
        register_tir_pipeline(PIPELINE, _pipeline_first)
    return PIPELINE


def _pipeline_first() -> tuple[Pass, Callable[[], Pass], Callable[[], Pass]]:
    lower, finalize_host, finalize_device = get_tir_pipeline("default")
    return lower, lambda: Sequential([check_first(), finalize_host()]), finalize_device


def check_first() -> Pass:
    """Check first: a kernel that needs AMX tiles asks for them before it allocates memory.

    Before

        scratch = alloc_buffer(...)         # TVMBackendAllocWorkspace
        assert tvm_hybrid_amx_permission() == 0
        compute(..., scratch)

    After

        assert tvm_hybrid_amx_permission() == 0
        scratch = alloc_buffer(...)
        compute(..., scratch)

    TVM moves what a kernel of one thread allocates to its beginning. A call that is refused behind
    it would never free it.

    Moves checks of permission in front of the allocations beside them.
    """

    @module_pass(opt_level=0, name=PIPELINE)
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        changed = {
            gvar: f.with_body(_ordered(f.body)) if isinstance(f, tirx.PrimFunc) else f
            for gvar, f in mod.functions_items()
        }
        return IRModule(changed, attrs=mod.attrs, global_infos=mod.global_infos)

    return run


def _ordered(statement: tirx.Stmt) -> tirx.Stmt:
    """A statement whose first check, if it has one, comes before what is allocated beside it.

    No check lies in a loop.
    """
    if isinstance(statement, tirx.For):
        return statement
    inside = children(statement)
    for place, each in enumerate(inside):
        if _is_check_first(each):
            rest = [*inside[:place], *inside[place + 1 :]]
            memory = (at for at, other in enumerate(rest) if isinstance(other, tirx.AllocBuffer))
            first = min(next(memory, place), place)
            return with_children(statement, [*rest[:first], each, *rest[first:]])
        ordered = _ordered(each)
        if not ordered.same_as(each):
            return with_children(statement, [*inside[:place], ordered, *inside[place + 1 :]])
    return statement


def _is_check_first(statement: tirx.Stmt) -> bool:
    """Whether a statement is what `emit_permission_check` emits."""
    return (
        isinstance(statement, tirx.AttrStmt)
        and statement.attr_key == IMPORT_LLVM
        and str(getattr(statement.value, "value", "")) == PERMISSION_LLVM_IR
    )


_DIVISIONS = (tirx.Div, tirx.FloorDiv, tirx.FloorMod, tirx.Mod)


def check_divisors() -> ir.transform.Pass:
    """Check divisors: a size that is divided by another one of 0 is an error, not the process's
    end.

    Before

        def shape_func(H):
            H[2] = (H[1] + 7) // H[1]

    After

        def shape_func(H):
            assert H[1] != 0, "a size is divided by another one that is 0"
            H[2] = (H[1] + 7) // H[1]

    Such are computed sizes, and a slice whose step is a size. No kernel is called before the sizes
    of its result are known, so that kernels which repeat the division need no check. Divisions of a
    model's own integers have a result (relay_passes/lower/legalize_numbers.py).

    The pass; it comes after VMShapeLower, which makes the functions that compute sizes.
    """

    @module_pass(opt_level=0, name="tvm_hybrid.check_divisors")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        return map_functions(mod, _computes_sizes, _checked)

    return run


def _computes_sizes(function: object) -> bool:
    return is_kernel(function) and "tirx.is_host_func" in (function.attrs or {})


def _checked(function: tirx.PrimFunc) -> tirx.PrimFunc:
    body = function.body
    checked: list[tirx.Stmt] = []
    for statement in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
        checked += [*map(_check, _divisors(statement)), statement]
    return function.with_body(tirx.SeqStmt(checked) if len(checked) > 1 else body)


def _divisors(statement: tirx.Stmt) -> list[tirx.Expr]:
    """What a statement divides by in any case, those inside of others first."""
    found: list[tirx.Expr] = []

    def note(division: Any) -> None:
        known = isinstance(division.b, tirx.IntImm)
        if not known and not any(tvm_ffi.structural_equal(division.b, each) for each in found):
            found.append(division.b)

    def enter(call: ir.Call) -> Any:
        lazy = call_name(call) == "if_then_else"
        return tvm_ffi.WalkResult.SKIP if lazy else tvm_ffi.WalkResult.ADVANCE

    tvm_ffi.structural_walk(statement, ((_DIVISIONS, note), (ir.Call, enter)), order="pre")
    return found[::-1]


def _check(divisor: tirx.Expr) -> tirx.Stmt:
    not_zero = tirx.NE(divisor, tirx.const(0, str(divisor.ty.dtype)))
    with IRBuilder() as builder, I.Assert(not_zero, BY_ZERO, "ValueError"):
        pass
    statement: tirx.Stmt = builder.get()
    return statement
