"""Axes of tensors: views, regrouping, and the axes that calls name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax

from microkernels.base.arrays import RANGES, transposed
from tir_schedules.core.size import quotient

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
    def order(self) -> tuple[int, ...]:
        """The permutation of the source's axes that it needs, those that it leaves out last."""
        kept = [axis for axis in self.axes if axis is not None]
        return (*kept, *(axis for axis in range(len(self.source_shape)) if axis not in kept))

    def then(self, axes: Axes) -> AxisView:
        """A view of this view."""
        composed = tuple(None if axis is None else self.axes[axis] for axis in axes)
        return AxisView(self.source, self.source_shape, composed)

    def without_leading_ones(self) -> AxisView:
        """The view without the inserted axes in front; it broadcasts as before."""
        start = next((i for i, axis in enumerate(self.axes) if axis is not None), len(self.axes))
        return AxisView(self.source, self.source_shape, self.axes[start:])

    def emit(self, block: Bindings) -> relax.Expr:
        """The view as an expression; only its last operator is not bound yet."""
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
    # A reshape that only puts in or leaves out extents of 1.
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
    """Whether a permutation changes where elements lie: not if it moves extents of 1 only."""
    kept = [axis for axis in order if shape[axis] != 1]
    return kept != sorted(kept)


def reorder_axes(call: relax.Expr) -> tuple[int, ...] | None:
    """The axes of a permutation that moves elements; None if an expression is none."""
    if not is_call(call, "relax.permute_dims"):
        return None
    tensor, axes = static_tensor(call.args[0]), view_axes(call)
    if tensor is None or axes is None:
        return None
    order = tuple(axis for axis in axes if axis is not None)
    return order if moves(tensor.shape, order) else None


# Regrouping: splits, permutes and joins axes, in any layout.
#
# lv = R.reshape(x, [N, 4, 28, H, W])                 # x: [N, 112, H, W]: a channel shuffle
# lv1 = R.permute_dims(lv, [0, 2, 1, 3, 4])
# lv2 = R.reshape(lv1, [N, 112, H, W])
#
# lv = R.reshape(x, [N, 2, 2, 16, H, W])              # x: [N, 64, H, W]: depth to space
# lv1 = R.permute_dims(lv, [0, 3, 4, 1, 5, 2])
# lv2 = R.reshape(lv1, [N, 16, 2 * H, 2 * W])


Groups = tuple[tuple[int, ...], ...]  # for each axis the parts that it is made of


@dataclass(frozen=True)
class Regroup:
    """A reshape, a permutation and a reshape.

    Attributes
    ----------
    source : relax.Expr
        What is regrouped.
    parts : tuple of int
        Extents of the parts that its axes are split into.
    split, joined : tuple of tuple of int
        For each axis of the source and of the result, its parts.
    positions : tuple of int
        Bindings between the source and the result.
    """

    source: relax.Expr
    parts: tuple[int, ...]
    split: Groups
    joined: Groups
    positions: tuple[int, ...]

    def between(
        self, source: tuple[int, ...], result: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shape of the first reshape and the permutation, for axes stored in other orders."""
        before = [part for axis in source for part in self.split[axis]]
        after = [part for axis in result for part in self.joined[axis]]
        shape = tuple(self.parts[part] for part in before)
        return shape, tuple(before.index(part) for part in after)


def match_regroup(graph: DataflowGraph, position: int) -> Regroup | None:
    """The regrouping whose last operator is at a position; None if there is none."""
    join = graph.value(position)
    if not is_call(join, "relax.reshape"):
        return None
    turn = graph.definition(join.args[0])
    if turn is None or not is_call(turn, "relax.permute_dims"):
        return None
    split = graph.definition(turn.args[0])
    if split is None or not is_call(split, "relax.reshape"):
        return None
    source, parts, result = map(region_tensor, (split.args[0], split, join))
    axes = view_axes(turn)
    if source is None or parts is None or result is None or axes is None:
        return None
    order = [axis for axis in axes if axis is not None]
    before = _groups(source.shape, parts.shape)
    after = _groups(result.shape, tuple(parts.shape[axis] for axis in order))
    if before is None or after is None:
        return None
    joined = tuple(tuple(order[index] for index in group) for group in after)
    positions = tuple(graph.position[var] for var in (turn.args[0], join.args[0]))
    return Regroup(split.args[0], parts.shape, before, joined, positions)


def _groups(whole: tuple[int, ...], parts: tuple[int, ...]) -> Groups | None:
    """The parts of every axis; None if one of them belongs to two axes."""
    groups: list[list[int]] = []
    place = 0
    for extent in whole:
        group: list[int] = []
        product = 1
        if extent == 1 and parts[place : place + 1] == (1,):
            group.append(place)
            place += 1
        while product != extent:
            if place == len(parts) or quotient(extent, product * parts[place]) is None:
                return None
            group.append(place)
            product = product * parts[place]
            place += 1
        groups.append(group)
    left = range(place, len(parts))
    if any(parts[place] != 1 for place in left):
        return None
    if groups:
        groups[-1].extend(left)
    return tuple(map(tuple, groups))


def permutation(call: relax.Call) -> tuple[int, ...]:
    """For each axis of an R.permute_dims, which axis of the argument it is."""
    rank, axes = int(call.args[0].ty.ndim), call.attrs.axes
    return tuple(range(rank))[::-1] if axes is None else tuple(int(axis) % rank for axis in axes)


def reduced_axes(call: relax.Call) -> list[int]:
    """The axes that a reduction reduces, ascending."""
    rank, axes = int(call.args[0].ty.ndim), call.attrs.axis
    if axes is None:
        return list(range(rank))
    return sorted(int(axis) % rank for axis in ([axes] if isinstance(axes, int) else axes))


def reshaped_axis(before: Sequence[int], after: Sequence[int], axis: int) -> int | None:
    """Where an axis is after a reshape: it has the same extent and as much before it; else None."""
    leading = math.prod(before[:axis])
    for other, extent in enumerate(after):
        if extent == before[axis] and math.prod(after[:other]) == leading:
            return other
    return None


def view_of(array: np.ndarray, call: relax.Call) -> np.ndarray | None:
    """What a permutation or a reshape makes of an array; None for other calls."""
    if is_call(call, "relax.permute_dims"):
        return array.transpose(permutation(call))
    tensor = static_tensor(call) if is_call(call, *RESHAPES) else None
    return None if tensor is None else array.reshape(tensor.shape)


_ON_INTEGERS = ("relax.subtract", "relax.astype", "relax.permute_dims", "relax.reshape")


def known_integers(graph: DataflowGraph, expr: relax.Expr) -> np.ndarray | None:
    """What is computed of constants by operators that quantised weights pass; else None."""
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
