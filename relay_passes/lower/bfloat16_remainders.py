"""Remainders: those of bfloat16 numbers are computed in float32, for which TVM has code.

Before

    y[i] = truncmod(x[i], bfloat16(1.0))

After

    y[i] = Cast("bfloat16", truncmod(Cast("float32", x[i]), float32(1.0)))

The result is the same number: a remainder is exact, and has no more digits than its operands.
TVM's BF16ComputeLegalize forgets remainders, so that its own code for them is refused by LLVM.
Operators of Relax never bring them; kernels that a module has brought along do.
"""

from __future__ import annotations

import tvm_ffi
from tvm import IRModule, ir, tirx
from tvm.ir.transform import PassContext, module_pass

from relay_passes.ir.rewrite import is_kernel, map_functions


def bfloat16_remainders() -> ir.transform.Pass:
    """The pass; kernels must not be vectorised yet."""

    @module_pass(opt_level=0, name="tvm_hybrid.bfloat16_remainders")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        return map_functions(mod, _has_remainders, lambda each: each.with_body(_widened(each.body)))

    return run


def _has_remainders(function: object) -> bool:
    found: list[tirx.Mod] = []
    if is_kernel(function):
        tvm_ffi.structural_walk(function.body, (tirx.Mod, found.append))
    return any(_is_bfloat16(each) for each in found)


def _widened(body: tirx.Stmt) -> tirx.Stmt:
    def change(remainder: tirx.Mod) -> tirx.Expr:
        if not _is_bfloat16(remainder):
            return remainder
        wide = tirx.Mod(remainder.a.astype("float32"), remainder.b.astype("float32"))
        return tirx.Cast("bfloat16", wide)

    return tvm_ffi.structural_map(body, (tirx.Mod, change))


def _is_bfloat16(value: tirx.Expr) -> bool:
    return str(value.ty.dtype) == "bfloat16"
