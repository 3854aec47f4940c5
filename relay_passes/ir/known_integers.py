"""Integers as int32: those that are known at compile time, and 8-bit ones that were widened."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import ir, relax

from microkernels.base.arrays import RANGES

from .axes import view_of
from .constants import array_of
from .graph import DataflowGraph, is_call, op_name, scalar_constant, static_tensor


def known_integers(graph: DataflowGraph, expr: relax.Expr) -> np.ndarray | None:
    """What is computed of constants by operators that quantised weights pass; else None."""
    if isinstance(expr, ir.GenericConst):
        values = array_of(expr.value)
        return values.astype(np.int32) if values.dtype.kind in "iu" else None
    call = graph.definition(expr)
    compute = _ON_INTEGERS.get(op_name(call))
    if compute is None or static_tensor(expr) is None:
        return None
    assert isinstance(call, relax.Call)
    arguments = [known_integers(graph, arg) for arg in call.args if _is_tensor(arg)]
    known = [each for each in arguments if each is not None]
    return compute(call, *known) if len(known) == len(arguments) else None


def widened_bytes(
    graph: DataflowGraph, expr: relax.Expr
) -> tuple[relax.Expr, relax.Expr | None] | None:
    """8-bit integers and the number that is subtracted from them as int32; None of other values."""
    call = graph.definition(expr)
    zero_point: relax.Expr | None = None
    if is_call(call, "relax.subtract") and scalar_constant(call.args[1]) is not None:
        zero_point = call.args[1]
        call = graph.definition(call.args[0])
    if not is_call(call, "relax.astype") or str(call.ty.dtype) != "int32":
        return None
    source: relax.Expr = call.args[0]
    return (source, zero_point) if str(source.ty.dtype) in RANGES else None


def _is_tensor(expr: relax.Expr) -> bool:
    return isinstance(expr.ty, relax.TensorType)


def _subtract(_: relax.Call, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x - y


def _astype(call: relax.Call, x: np.ndarray) -> np.ndarray | None:
    return x if str(call.ty.dtype) == "int32" else None


def _viewed(call: relax.Call, x: np.ndarray) -> np.ndarray | None:
    return view_of(x, call)


_ON_INTEGERS: dict[str, Callable[..., np.ndarray | None]] = {
    "relax.subtract": _subtract,
    "relax.astype": _astype,
    "relax.permute_dims": _viewed,
    "relax.reshape": _viewed,
}
