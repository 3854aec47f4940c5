"""Axes of tensors: views, regrouping, and the axes that calls name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax

from microkernels.base.arrays import RANGES, transposed

from .constants import array_of, constant_of
from .graph import DataflowGraph, is_call, region_tensor, reshaped, scalar_constant, static_tensor
from .rewrite import Bindings
from .traits import RESHAPES

# Views of tensors: axes are reordered, and axes of extent 1 are added or dropped.
#
# A view of x [1, 512, 256] with axes (0, 2, 1, None) is [1, 256, 512, 1].


Axes = tuple[int | None, ...]


@dataclass(frozen=True)
class AxisView:
    """A tensor as a view of another tensor: axes permuted, axes of extent 1 added or dropped.

    Attributes
    ----------
    source : relax.Expr
        The viewed tensor.
    source_shape : tuple of int
        The shape of `source`.
    axes : tuple of (int or None)
        For each axis of the view, the axis of the source; None adds an axis of extent 1. Source
        axes that do not occur have extent 1.
    """

    source: relax.Expr
    source_shape: tuple[int, ...]
    axes: Axes

    @property
    def shape(self) -> tuple[int, ...]:
        """The view's shape."""
        return tuple(1 if axis is None else self.source_shape[axis] for axis in self.axes)

    @property
    def moves(self) -> bool:
        """Whether elements move in memory; if not, a reshape makes the view."""
        return moves(self.source_shape, [axis for axis in self.axes if axis is not None])

    @property
    def order(self) -> tuple[int, ...]:
        """The permutation of the source's axes for this view; dropped axes come last."""
        kept = [axis for axis in self.axes if axis is not None]
        return (*kept, *(axis for axis in range(len(self.source_shape)) if axis not in kept))

    def then(self, axes: Axes) -> AxisView:
        """A view of this view."""
        composed = tuple(None if axis is None else self.axes[axis] for axis in axes)
        return AxisView(self.source, self.source_shape, composed)

    def emit(self, block: Bindings) -> relax.Expr:
        """The view as an expression; its last operator is not bound yet."""
        expr, shape = self.source, self.source_shape
        if isinstance(expr, ir.GenericConst):
            if shape == self.shape and not self.moves:
                return expr
            array = array_of(expr.value)
            moved = transposed(array, self.order) if self.moves else array
            return constant_of(moved.reshape(self.shape))
        if self.moves:
            order = list(self.order)
            shape = tuple(shape[axis] for axis in order)
            expr = relax.op.permute_dims(expr, order)
        if shape == self.shape:
            return expr
        if isinstance(expr, relax.Call):
            expr = block.emit(expr)
        return reshaped(expr, self.shape)


def identity(expr: relax.Expr) -> AxisView | None:
    """An expression as a view of itself; None if its shape is unknown."""
    tensor = region_tensor(expr)
    if tensor is None:
        return None
    return AxisView(expr, tensor.shape, tuple(range(len(tensor.shape))))


def view_axes(call: relax.Expr) -> Axes | None:
    """The axes of an operator's result as a view of its argument; None if it is no such view."""
    if not is_call(call, "relax.permute_dims", *RESHAPES):
        return None
    before, after = region_tensor(call.args[0]), region_tensor(call)
    if before is None or after is None:
        return None
    if is_call(call, "relax.permute_dims"):
        return permutation(call)
    # A reshape that only adds or drops extents of 1.
    if [e for e in before.shape if e != 1] != [e for e in after.shape if e != 1]:
        return None
    axes: list[int | None] = []
    source = 0
    for extent in after.shape:
        if extent != 1:
            while before.shape[source] == 1:
                source += 1
        found = source < len(before.shape) and before.shape[source] == extent
        axes.append(source if found else None)
        source += found
    return tuple(axes)


def moves(shape: Sequence[int], order: Sequence[int]) -> bool:
    """Whether a permutation moves elements: it does not if it only moves extents of 1."""
    kept = [axis for axis in order if shape[axis] != 1]
    return kept != sorted(kept)


def reorder_axes(call: relax.Expr) -> tuple[int, ...] | None:
    """The axes of a permutation that moves elements; None for any other expression."""
    if not is_call(call, "relax.permute_dims"):
        return None
    tensor, axes = static_tensor(call.args[0]), view_axes(call)
    if tensor is None or axes is None:
        return None
    order = tuple(axis for axis in axes if axis is not None)
    return order if moves(tensor.shape, order) else None


def permutation(call: relax.Call) -> tuple[int, ...]:
    """For each axis of an R.permute_dims, the axis of its argument."""
    rank, axes = int(call.args[0].ty.ndim), call.attrs.axes
    return tuple(range(rank))[::-1] if axes is None else tuple(int(axis) % rank for axis in axes)


def reduced_axes(call: relax.Call) -> list[int]:
    """The axes that a reduction reduces, ascending."""
    rank, axes = int(call.args[0].ty.ndim), call.attrs.axis
    if axes is None:
        return list(range(rank))
    return sorted(int(axis) % rank for axis in ([axes] if isinstance(axes, int) else axes))


def reshaped_axis(before: Sequence[int], after: Sequence[int], axis: int) -> int | None:
    """The result axis with an axis's extent and equally many elements before it; else None."""
    leading = math.prod(before[:axis])
    for other, extent in enumerate(after):
        if extent == before[axis] and math.prod(after[:other]) == leading:
            return other
    return None


def view_of(array: np.ndarray, call: relax.Call) -> np.ndarray | None:
    """A permutation or reshape applied to an array; None for other calls."""
    if is_call(call, "relax.permute_dims"):
        return array.transpose(permutation(call))
    tensor = static_tensor(call) if is_call(call, *RESHAPES) else None
    return None if tensor is None else array.reshape(tensor.shape)


_ON_INTEGERS = ("relax.subtract", "relax.astype", "relax.permute_dims", "relax.reshape")


def known_integers(graph: DataflowGraph, expr: relax.Expr) -> np.ndarray | None:
    """Integers computed from constants by the operators of quantised weights; else None."""
    if isinstance(expr, ir.GenericConst):
        values = array_of(expr.value)
        return values.astype(np.int32) if values.dtype.kind in "iu" else None
    call = graph.definition(expr)
    if static_tensor(expr) is None or not is_call(call, *_ON_INTEGERS):
        return None
    tensors = [arg for arg in call.args if isinstance(arg.ty, relax.TensorType)]
    parts = [known_integers(graph, each) for each in tensors]
    known = [each for each in parts if each is not None]
    if len(known) < len(parts):
        return None
    if is_call(call, "relax.subtract"):
        return np.asarray(known[0] - known[1])
    if is_call(call, "relax.astype"):
        return known[0] if str(call.ty.dtype) == "int32" else None
    return view_of(known[0], call)


def widened_bytes(
    graph: DataflowGraph, expr: relax.Expr
) -> tuple[relax.Expr, relax.Expr | None] | None:
    """8-bit integers cast to int32 and the number subtracted from them; None for other values."""
    call = graph.definition(expr)
    zero_point: relax.Expr | None = None
    if is_call(call, "relax.subtract") and scalar_constant(call.args[1]) is not None:
        zero_point = call.args[1]
        call = graph.definition(call.args[0])
    if not is_call(call, "relax.astype") or str(call.ty.dtype) != "int32":
        return None
    source: relax.Expr = call.args[0]
    return (source, zero_point) if str(source.ty.dtype) in RANGES else None
