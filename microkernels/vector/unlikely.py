"""A choice between two vectors, the first of which is hardly ever needed.

    unlikely(x > 100, f(x), g(x))    as    g(x), but if any(x > 100): select(x > 100, f(x), g(x))

TVM's vectoriser has no test of all lanes of a vector: it takes such a loop apart. So the choice is
an operator, which becomes a branch when TVM lowers intrinsics, after it has made vectors.
"""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I
from tvm import tirx
from tvm.ir import Call

from microkernels.base.tvm_compat.tir import register_elementwise

from .expressions import Expr, lanes_of

NAME = "tirx.tvm_hybrid_unlikely"


def unlikely(condition: Expr, rare: Expr, usual: Expr) -> Expr:
    """`rare` in lanes whose condition holds, else `usual`.

    LLVM moves what `rare` alone needs into the branch.
    """
    return tirx.call_intrin(str(rare.ty.dtype), _OPERATOR, condition, rare, usual)


def _branch(call: Call) -> Expr:
    condition, rare, usual = call.args
    lanes = lanes_of(call)
    if lanes == 1:
        return tirx.if_then_else(condition, rare, usual)
    some = I.call_llvm_pure_intrin("bool", f"llvm.vector.reduce.or.v{lanes}i1", condition)
    return tirx.if_then_else(some, tirx.Select(condition, rare, usual), usual)


_OPERATOR = register_elementwise(NAME, 3, _branch)
