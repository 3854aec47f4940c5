"""Sink: moves the scale of an attention's query or key behind their product.

Before

    lv = R.multiply(q, R.const(0.125))              # or R.divide(q, R.const(8.0))
    lv1 = R.permute_dims(lv, [0, 2, 1, 3])
    lv2 = R.matmul(lv1, k)

After

    lv = R.permute_dims(q, [0, 2, 1, 3])
    lv1 = R.matmul(lv, k)
    lv2 = R.multiply(lv1, R.const(0.125))

The product then reads q in place, and the scale is a step of its epilogue; scales of both operands
become one. A scale moves only if it is a constant number, past operators that only move elements
and past roundings to bfloat16, and if nothing else reads the scaled value. Products with constant
operands keep their scales.

Each term q k is rounded once less and the sum once more. With K terms, results differ by at most
(K + 3) 2^-24 of the sum of their magnitudes. They do not differ if the scale is a power of two and
nothing underflows. With bfloat16 operands, rounding q is as precise as rounding q * scale: 2^-9.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax

from relay_passes.ir.algebra import LARGEST, LEAST
from relay_passes.ir.graph import DataflowGraph, op_name, region_tensor
from relay_passes.ir.moving_operators import moves, on
from relay_passes.ir.number_factor import number_factor
from relay_passes.ir.rewrite import Bindings, value_pass
from relay_passes.ir.with_args import with_args


def sink_scale() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return value_pass("tvm_hybrid.sink_scale", _sunk)


@dataclass(frozen=True)
class _Scaled:
    """A value times a number.

    Attributes
    ----------
    source : relax.Expr
        What is multiplied.
    factor : float
        By what.
    path : tuple of relax.Call
        Operators from there to the value, the first to be applied first.
    """

    source: relax.Expr
    factor: float
    path: tuple[relax.Call, ...] = ()

    def unscaled(self, block: Bindings) -> relax.Expr:
        """The value without the factor."""
        value = self.source
        for call in self.path:
            value = block.emit(on(call, value))
        return value


def _sunk(graph: DataflowGraph, block: Bindings, call: relax.Expr) -> relax.Expr | None:
    """A product scaled behind the sum; None if its operands are not scaled before."""
    operands = _operands(graph, call)
    factor = math.prod(operand.factor for operand in operands)
    if factor == 1.0 or not LEAST <= abs(factor) <= LARGEST or not isinstance(call, relax.Call):
        return None
    product = block.emit(with_args(call, [operand.unscaled(block) for operand in operands]))
    return relax.op.multiply(product, relax.const(np.float32(factor)))


def _operands(graph: DataflowGraph, call: relax.Expr) -> list[_Scaled]:
    """Both operands of a product of two variables that is summed in f32; else nothing."""
    if op_name(call) != "relax.matmul" or str(call.ty.dtype) != "float32":
        return []
    tensors = [region_tensor(arg) for arg in call.args]
    if any(
        tensor is None or tensor.constant or tensor.dtype not in ("float32", "bfloat16")
        for tensor in tensors
    ):
        return []
    return [_scaled(graph, arg) for arg in call.args]


def _scaled(graph: DataflowGraph, expr: relax.Expr) -> _Scaled:
    """A value as a number times what it is computed from, as far back as nothing else needs it."""
    call = graph.definition(expr)
    if not isinstance(call, relax.Call) or len(_users(graph, expr)) != 1:
        return _Scaled(expr, 1.0)
    number = number_factor(call)
    if number is not None:
        value, factor = number
        inner = _scaled(graph, value)
        if inner.factor != 1.0:
            return _Scaled(inner.source, inner.factor * factor, inner.path)
        return _Scaled(value, factor)
    rounds = op_name(call) == "relax.astype" and str(call.ty.dtype) == "bfloat16"
    if not (moves(call) or rounds):
        return _Scaled(expr, 1.0)
    inner = _scaled(graph, call.args[0])
    if inner.factor == 1.0:
        return _Scaled(expr, 1.0)
    narrow = _before_widening(graph, inner.source) if rounds else None
    if narrow is not None:
        return _Scaled(narrow, inner.factor, inner.path)
    return _Scaled(inner.source, inner.factor, (*inner.path, call))


def _users(graph: DataflowGraph, expr: relax.Expr) -> list[int]:
    """Positions where a value is used; twice the same if it is needed outside."""
    users = graph.users.get(expr, [])
    return users if isinstance(expr, relax.DataflowVar) else [*users, *users]


def _before_widening(graph: DataflowGraph, value: relax.Expr) -> relax.Expr | None:
    """The bfloat16 tensor that a f32 value was widened from, else None."""
    call = graph.definition(value)
    if not isinstance(call, relax.Call) or op_name(call) != "relax.astype":
        return None
    return call.args[0] if str(call.args[0].ty.dtype) == "bfloat16" else None
