"""Check divisors: a size that is divided by another one of 0 is an error, not the process's end.

Before

    def shape_func(H):
        H[2] = (H[1] + 7) // H[1]

After

    def shape_func(H):
        assert H[1] != 0, "a size is divided by another one that is 0"
        H[2] = (H[1] + 7) // H[1]

Such are computed sizes, and a slice whose step is a size. No kernel is called before the sizes of
its result are known, so that kernels which repeat the division need no check. Divisions of a
model's own integers have a result (relay_passes/lower/legalize_integers.py).
"""

from __future__ import annotations

from typing import Any

import tvm.tirx.script.builder.ir as I
import tvm_ffi
from tvm import IRModule, ir, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.script.ir_builder import IRBuilder

from microkernels.base.errors import BY_ZERO
from relay_passes.ir.rewrite import is_kernel, map_functions
from tir_schedules.generic.expressions import call_name

_DIVISIONS = (tirx.Div, tirx.FloorDiv, tirx.FloorMod, tirx.Mod)


def check_divisors() -> ir.transform.Pass:
    """The pass; it comes after VMShapeLower, which makes the functions that compute sizes."""

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
