"""Keeps TVM's simplifier from taking integers of 32 and 64 bits for indices, which never overflow.

    max(x, y) - x    ->    int32(uint32(max(x, y)) - uint32(x))    TVM makes max(0, y - x) of it

Only arithmetic on what is loaded changes; that on loop variables decides what may be vectorised.
The instructions are the same.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.tirx.expr import BinaryOpExpr

from microkernels.vector.expressions import Expr

from .expressions import map_loads, substitute, variables_of

_UNSIGNED = {"int32": "uint32", "int64": "uint64"}


def guard_integers(value: Expr) -> Expr:
    """A stored value with sums, differences and products of loaded integers as unsigned ones."""
    loads: dict[tirx.Var, TensorLoad] = {}

    def hidden(load: TensorLoad) -> Expr:
        name = tirx.Var("loaded", str(load.ty.dtype))
        loads[name] = load
        return name

    def unsigned(node: BinaryOpExpr) -> Expr:
        kind = str(node.ty.dtype)
        wrapped = _UNSIGNED.get(kind)
        if wrapped is None or not any(
            str(v.ty.dtype) == kind for v in variables_of(node) & loads.keys()
        ):
            return node
        return tirx.Cast(kind, type(node)(tirx.Cast(wrapped, node.a), tirx.Cast(wrapped, node.b)))

    shown = map_loads(value, hidden)
    shown = tvm_ffi.structural_map(shown, ((tirx.Add, tirx.Sub, tirx.Mul), unsigned))
    for name, load in reversed(loads.items()):
        shown = substitute(shown, {name: load})
    return shown
