"""Views of tensors: axes are reordered, and axes of extent 1 are added or dropped.

A view of x [1, 512, 256] with axes (0, 2, 1, None) is [1, 256, 512, 1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax

from .call_axes import permutation
from .constants import array_of
from .graph import is_call, op_name, region_tensor, relax_shape, static_tensor
from .rewrite import Bindings
from .traits import RESHAPES

Axes = tuple[int | None, ...]


@dataclass(frozen=True)
class AxisView:
    """A tensor as a view of another.

    Attributes
    ----------
    source : relax.Expr
        What is viewed.
    source_shape : tuple of int
        Its shape.
    axes : tuple of (int or None)
        For each axis, the axis of the source; None for an inserted axis of extent 1. Axes of the
        source that are not named have extent 1.
    """

    source: relax.Expr
    source_shape: tuple[int, ...]
    axes: Axes

    @property
    def shape(self) -> tuple[int, ...]:
        """The view's shape."""
        return tuple(1 if axis is None else self.source_shape[axis] for axis in self.axes)

    @property
    def trivial(self) -> bool:
        """Whether it is the source itself."""
        return self.axes == tuple(range(len(self.source_shape)))

    @property
    def moves(self) -> bool:
        """Whether elements change places in memory; a reshape does if not."""
        return moves(self.source_shape, [axis for axis in self.axes if axis is not None])

    @property
    def cost(self) -> tuple[int, int]:
        """(permutations, elements moved) of making it."""
        return (1, math.prod(self.source_shape)) if self.moves else (0, 0)

    def then(self, axes: Axes) -> AxisView:
        """A view of this view."""
        composed = tuple(None if axis is None else self.axes[axis] for axis in axes)
        return AxisView(self.source, self.source_shape, composed)

    def of(self, source: relax.Expr, shape: tuple[int, ...]) -> AxisView:
        """The same view of another source."""
        return AxisView(source, shape, self.axes)

    def without_leading_ones(self) -> AxisView:
        """The view without the inserted axes in front; it broadcasts as before."""
        start = next((i for i, axis in enumerate(self.axes) if axis is not None), len(self.axes))
        return AxisView(self.source, self.source_shape, self.axes[start:])

    def emit(self, block: Bindings) -> relax.Expr:
        """The view as an expression; only its last operator is not bound yet."""
        expr, shape = self.source, self.source_shape
        if self.moves:
            kept = [axis for axis in self.axes if axis is not None]
            order = kept + [axis for axis in range(len(shape)) if axis not in kept]
            shape = tuple(shape[axis] for axis in order)
            if isinstance(expr, ir.GenericConst):
                array = np.ascontiguousarray(array_of(expr.value).transpose(order))
                expr = relax.const(array, str(expr.ty.dtype))
            else:
                expr = relax.op.permute_dims(expr, order)
        if shape == self.shape:
            return expr
        if isinstance(expr, ir.GenericConst):
            return relax.const(array_of(expr.value).reshape(self.shape), str(expr.ty.dtype))
        if isinstance(expr, relax.Call):
            expr = block.emit(expr)
        return relax.op.reshape(expr, relax_shape(self.shape, self.source))


def identity(expr: relax.Expr) -> AxisView | None:
    """An expression as a view of itself; None if its shape is not known."""
    tensor = region_tensor(expr)
    if tensor is None:
        return None
    return AxisView(expr, tensor.shape, tuple(range(len(tensor.shape))))


def view_axes(call: relax.Expr) -> Axes | None:
    """The axes by which an operator views its argument; None if it does something else."""
    if not is_call(call, "relax.permute_dims", *RESHAPES):
        return None
    before, after = region_tensor(call.args[0]), region_tensor(call)
    if before is None or after is None:
        return None
    if is_call(call, "relax.permute_dims"):
        return permutation(call)
    return _reshape_axes(before.shape, after.shape)


def moves(shape: Sequence[int], order: Sequence[int]) -> bool:
    """Whether a permutation changes where elements lie: not if it moves extents of 1 only."""
    kept = [axis for axis in order if shape[axis] != 1]
    return kept != sorted(kept)


def reorder_axes(call: relax.Expr) -> tuple[int, ...] | None:
    """The axes of a permutation that moves elements; None if an expression is none."""
    if op_name(call) != "relax.permute_dims":
        return None
    tensor, axes = static_tensor(call.args[0]), view_axes(call)
    if tensor is None or axes is None:
        return None
    order = tuple(axis for axis in axes if axis is not None)
    return order if moves(tensor.shape, order) else None


def _reshape_axes(before: tuple[int, ...], after: tuple[int, ...]) -> Axes | None:
    """Axes of a reshape that only puts in or leaves out extents of 1."""
    if [e for e in before if e != 1] != [e for e in after if e != 1]:
        return None
    axes: list[int | None] = []
    source = 0
    for extent in after:
        if extent != 1:
            while before[source] == 1:
                source += 1
        if source < len(before) and before[source] == extent:
            axes.append(source)
            source += 1
        else:
            axes.append(None)
    return tuple(axes)
