"""Permutes constants at compile time, also through dequantisation, casts and reshapes.

Before

    lv = R.dequantize(const_w, scale, zero_point, axis=0)       # OIHW
    lv1 = R.permute_dims(lv, [2, 3, 1, 0])

After

    lv1 = R.dequantize(const_w', scale, zero_point, axis=3)     # HWIO
"""

from __future__ import annotations

from tvm import ir, relax

from .axes import Axes, AxisView, identity, view_axes
from .graph import DataflowGraph, known_tensor, op_name, static_tensor
from .quantization import read_dequantize
from .rewrite import Bindings
from .traits import ELEMENTWISE
from .with_args import with_args


def is_transposable(graph: DataflowGraph, expr: relax.Expr) -> bool:
    """Whether an expression is made of constants by casts, dequantisation and arithmetic."""
    if static_tensor(expr) is None:
        return False
    if isinstance(expr, ir.GenericConst):
        return True
    call = graph.definition(expr)
    if call is None:
        return False
    if read_dequantize(call) is not None or view_axes(call) is not None:
        return is_transposable(graph, call.args[0])
    arity = ELEMENTWISE.get(op_name(call), 0)
    return arity > 0 and all(is_transposable(graph, arg) for arg in call.args[:arity])


def transposed(
    graph: DataflowGraph, expr: relax.Expr, order: tuple[int, ...], trims: bool, block: Bindings
) -> relax.Expr:
    """A turnable expression with its axes in another order.

    Parameters
    ----------
    graph : DataflowGraph
        Where it is defined.
    expr : relax.Expr
        For which `is_transposable`.
    order : tuple of int
        The axis for each axis of the result, after leading axes of extent 1 have been added where
        there are fewer.
    trims : bool
        Whether the result may do without leading axes of extent 1.
    block : Bindings
        Gets what is left to compute.
    """
    tensor = known_tensor(expr)
    missing = len(order) - len(tensor.shape)
    axes: Axes = tuple(axis - missing if axis >= missing else None for axis in order)
    while trims and axes and (axes[0] is None or tensor.shape[axes[0]] == 1):
        axes = axes[1:]
    return with_axes(graph, expr, axes, block)


def with_axes(graph: DataflowGraph, expr: relax.Expr, axes: Axes, block: Bindings) -> relax.Expr:
    """An expression with the given of its axes, made of constants at compile time if it can be.

    Parameters
    ----------
    graph, expr, block
        As for `transposed`.
    axes : tuple of (int or None)
        As those of an `AxisView`: None is a new one of extent 1, and those left out have extent 1.
    """
    if isinstance(expr, ir.GenericConst) or not is_transposable(graph, expr):
        view = identity(expr)
        assert view is not None
        made = AxisView(expr, view.source_shape, axes).emit(block)
        return block.emit(made) if isinstance(made, relax.Call) else made
    call = graph.definition(expr)
    assert isinstance(call, relax.Call)
    seen = view_axes(call)
    if seen is not None:
        inner = tuple(None if axis is None else seen[axis] for axis in axes)
        return with_axes(graph, call.args[0], inner, block)
    read = read_dequantize(call)
    if read is not None:
        data = with_axes(graph, read.data, axes, block)
        axis = read.quantization.axis
        along = None if axis is None else axes.index(axis)
        return block.emit(read.quantization.along(along).dequantize(data, read.dtype))
    arity = ELEMENTWISE[op_name(call)]
    rank = int(expr.ty.ndim)
    parts = []
    for arg in call.args[:arity]:
        missing = rank - int(arg.ty.ndim)
        aligned = (None if axis is None or axis < missing else axis - missing for axis in axes)
        parts.append(with_axes(graph, arg, tuple(aligned), block))
    return block.emit(with_args(call, [*parts, *call.args[arity:]]))
