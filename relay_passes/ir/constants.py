"""The constants of a module, such as weights."""

from __future__ import annotations

import math

from tvm import IRModule, relax
from tvm.ir import GenericConst
from tvm.runtime import Tensor


def constants_of(mod: IRModule) -> list[GenericConst]:
    """The tensors in a module's Relax functions, each object once."""
    found: dict[relax.Expr, GenericConst] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, GenericConst) and isinstance(expr.value, Tensor):
            found[expr] = expr

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return list(found.values())


def bytes_of(tensor: Tensor) -> int:
    """The size of a tensor's elements."""
    return math.prod(tensor.shape) * tensor.dtype.itemsize
