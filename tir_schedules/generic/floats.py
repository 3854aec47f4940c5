"""Gives floats in TVM's own expressions their IEEE 754 meaning (see `microkernels.vector.ieee`).

    max(x, 0)    ->  max(0, x)             in this order x86 keeps a NaN in x
    max(x, y)    ->  llvm.maximum(x, y)
    x - y        ->  hidden(x) - y         TVM makes 0 of x - x
    x == x       ->  hidden(x) == x

TVM folds some expressions, such as x * 0, while they are built, before this can see them; see
relay_passes/lower/legalize_floats.py.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.tirx.expr import BinaryOpExpr, CmpExpr

from microkernels.vector import ieee
from microkernels.vector.expressions import Expr

from .expressions import Tree

_ARITHMETIC: dict[type, Callable[[Expr, Expr], Expr]] = {
    tirx.Add: ieee.add,
    tirx.Sub: ieee.subtract,
    tirx.Mul: ieee.multiply,
    tirx.Div: ieee.divide,
    tirx.Max: ieee.maximum,
    tirx.Min: ieee.minimum,
}
_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def guard_floats(tree: Tree) -> Tree:
    """The same, in a form that TVM's simplifier and x86 keep right for every float."""
    rules = (
        *((kind, _arithmetic) for kind in _ARITHMETIC),
        *((kind, _comparison) for kind in _COMPARISONS),
        (tirx.Not, _negation),
    )
    return tvm_ffi.structural_map(tree, rules)


def _arithmetic(node: BinaryOpExpr) -> Expr:
    return _ARITHMETIC[type(node)](node.a, node.b) if ieee.is_float(node) else node


def _comparison(node: CmpExpr) -> Expr:
    return type(node)(ieee.hidden(node.a), node.b) if ieee.is_float(node.a) else node


def _negation(node: tirx.Not) -> Expr:
    """Not: TVM would turn a comparison inside around, which a NaN forbids.

    What is loaded may become a comparison, when nests are merged.
    """
    inner = node.a
    compared = isinstance(inner, _COMPARISONS) and ieee.is_float(inner.a)
    if not compared and not isinstance(inner, TensorLoad):
        return node
    return tirx.Select(inner, tirx.const(False, "bool"), tirx.const(True, "bool"))
