"""Checks of a program: those that kernels need not make go; sizes that divide are checked."""

from __future__ import annotations

from typing import Any

import tvm.tirx.script.builder.ir as I
import tvm_ffi
from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.script.ir_builder import IRBuilder

from microkernels.base.errors import BY_ZERO
from microkernels.base.tvm_compat.relax import ENTRY_CHECKS
from relay_passes.ir.functions import TAKES_BITS
from relay_passes.ir.graph import AnyBinding, variables
from relay_passes.ir.moving_operators import NUM_INPUT, has_weights
from relay_passes.ir.rewrite import is_kernel, is_relax, map_functions, with_blocks
from tir_schedules.generic.expressions import call_name


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
    model's own integers have a result (relay_passes/legalize/numbers.py).

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
