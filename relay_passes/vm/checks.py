"""Checks of a program: drops checks that kernels repeat, and checks sizes that are divisors."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import tvm.tirx.script.builder.ir as I
import tvm_ffi
from tvm import IRModule, ir, relax, tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.base.errors import BY_ZERO
from microkernels.base.tvm_compat.relax import ENTRY_CHECKS, structural_key
from relay_passes.ir.functions import TAKES_BITS, named_pass, with_blocks
from relay_passes.ir.graph import AnyBinding, bindings_of, packed_name, static_tensor, variables
from relay_passes.ir.moving_operators import NUM_INPUT, has_weights
from relay_passes.ir.rewrite import is_kernel, is_relax, map_functions
from tir_schedules.generic.expressions import call_name


@named_pass
def drop_checks(mod: IRModule, of_inputs: bool = True) -> IRModule:
    """Drop checks: removes checks at a function's entry that a kernel repeats.

    Before

        R.call_packed("vm.builtin.check_tensor_info", x, ...)
        R.call_packed("vm.builtin.match_shape", x, ...)
        cls.tvm_hybrid_matmul(x, const_packed, alloc)

    After

        cls.tvm_hybrid_matmul(x, const_packed, alloc)

    A kernel refuses an argument of another shape or type before it reads anything. A parameter with
    any use besides kernels, such as a view, keeps its checks, and so does a parameter of a kernel
    that takes bits for bfloat16.

    Inputs may keep their checks: TVM's errors name the function and the parameter, and a wrong
    shape is a RuntimeError. Each check costs a call, and there are many weights (parameters after
    the first `num_input`).

    It must run after VMShapeLower.

    Parameters
    ----------
    of_inputs : bool
        Whether inputs lose their checks, too; otherwise only weights do.
    """

    def changed(function: relax.Function) -> relax.Function:
        inputs = [] if of_inputs else list(function.params)
        if has_weights(function):
            inputs = inputs[: int(function.attrs[NUM_INPUT])]
        kept: set[relax.Var] = {*variables(function.body.body), *inputs}
        seen: set[relax.Var] = set()
        for binding in bindings_of(function):
            value = binding.value
            if packed_name(value) not in ENTRY_CHECKS:
                seen.update(variables(value))
                callee = getattr(value, "op", None)
                kernel = mod[callee] if isinstance(callee, ir.GlobalVar) else None
                if not is_kernel(kernel) or TAKES_BITS in (kernel.attrs or {}):
                    kept.update(variables(value))
        static = (each for each in function.params if static_tensor(each) is not None)
        checked = {each for each in static if each in seen and each not in kept}

        def is_needed(binding: AnyBinding) -> bool:
            value = binding.value
            return packed_name(value) not in ENTRY_CHECKS or value.args[0] not in checked

        blocks = (filter(is_needed, block.bindings) for block in function.body.blocks)
        return with_blocks(function, [relax.BindingBlock(list(each)) for each in blocks])

    return map_functions(mod, is_relax, changed)


_DIVISIONS = (tirx.Div, tirx.FloorDiv, tirx.FloorMod, tirx.Mod)


@named_pass
def check_divisors(mod: IRModule) -> IRModule:
    """Check divisors: division of a size by a size of 0 raises an error instead of ending the
    process.

    Before

        def shape_func(H):
            H[2] = (H[1] + 7) // H[1]

    After

        def shape_func(H):
            assert H[1] != 0, "a size is divided by another one that is 0"
            H[2] = (H[1] + 7) // H[1]

    This concerns computed sizes, and slices whose step is a size. No kernel is called before the
    sizes of its result are known, so kernels that repeat the division need no check. Divisions of a
    model's own integers have a result (relay_passes/legalize/numbers.py).

    It must run after VMShapeLower, which makes the functions that compute sizes.
    """

    return map_functions(mod, is_kernel, _checked)


def _checked(function: tirx.PrimFunc) -> tirx.PrimFunc:
    if "tirx.is_host_func" not in (function.attrs or {}):
        return function  # it does not compute sizes
    body = function.body
    checked: list[tirx.Stmt] = []
    for statement in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
        checked += [*map(_check, _divisors(statement)), statement]
    return function.with_body(tirx.SeqStmt(checked) if len(checked) > 1 else body)


def _divisors(statement: tirx.Stmt) -> list[tirx.Expr]:
    """The divisors that a statement always divides by, inner ones first."""
    found: dict[Hashable, tirx.Expr] = {}

    def note(division: Any) -> None:
        if not isinstance(division.b, tirx.IntImm):
            found.setdefault(structural_key(division.b), division.b)

    def enter(call: ir.Call) -> Any:
        lazy = call_name(call) == "if_then_else"
        return tvm_ffi.WalkResult.SKIP if lazy else tvm_ffi.WalkResult.ADVANCE

    tvm_ffi.structural_walk(statement, ((_DIVISIONS, note), (ir.Call, enter)), order="pre")
    return [*found.values()][::-1]


def _check(divisor: tirx.Expr) -> tirx.Stmt:
    not_zero = tirx.NE(divisor, tirx.const(0, str(divisor.ty.dtype)))
    with IRBuilder() as builder, I.Assert(not_zero, BY_ZERO, "ValueError"):
        pass
    statement: tirx.Stmt = builder.get()
    return statement
