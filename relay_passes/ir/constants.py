"""The constants of a module, such as weights."""

from __future__ import annotations

import math

from tvm import IRModule, relax
from tvm.ir import GenericConst
from tvm.runtime import Tensor


def constants_of(mod: IRModule) -> list[GenericConst]:
    """The tensors in a module's Relax functions, each object once."""
    functions = [each for each in mod.functions.values() if isinstance(each, relax.Function)]
    return list(dict.fromkeys(each for function in functions for each in constants_in(function)))


def constants_in(function: relax.Function) -> list[GenericConst]:
    """The tensors in a Relax function, each object once."""
    found: dict[GenericConst, None] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, GenericConst) and isinstance(expr.value, Tensor):
            found[expr] = None

    relax.analysis.post_order_visit(function, visit)
    return list(found)


def bytes_of(tensor: Tensor) -> int:
    """The size of a tensor's elements."""
    return math.prod(tensor.shape) * tensor.dtype.itemsize
