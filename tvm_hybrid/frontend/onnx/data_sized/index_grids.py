"""Indices that count: integer tensors whose elements follow from their places.

    Range(0, batch): [batch, 1] * seq + Range(0, seq): [seq]    ->    start 0, strides (seq, 1)
    [[0, 1, 2, ..., 511]][:, :seq]                              ->    start 0, strides (0, 1)

Exporters write masks with such indices where a reshape would do, and positions where a slice would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax

from relay_passes.ir.graph import op_name

from ...expressions import Expr, constant, current_builder, dtype_of
from .elements import known_elements
from .sizes import dims_of, holds, index, is_number, is_unknown, product, same_size, simplified

_DEPTH = 10  # of operators
_BROADCAST = ("relax.add", "relax.multiply")


@dataclass(frozen=True)
class IndexGrid:
    """An element is `start` and, for each axis, its place times a stride.

    Attributes
    ----------
    start : Expr
        The first element.
    strides : tuple of Expr
        One for each axis; 0 along axes of one element.
    below : int or None
        A number that is larger than all elements, if one is known.
    """

    start: Expr
    strides: tuple[Expr, ...]
    below: int | None = None

    def counts(self, sizes: Sequence[Expr]) -> bool:
        """Whether the elements of a tensor of these sizes are 0, 1, 2 and so on."""
        if not is_number(self.start, 0):
            return False
        return all(
            is_number(size, 1) or same_size(stride, product(sizes[axis + 1 :]))
            for axis, (size, stride) in enumerate(zip(sizes, self.strides, strict=True))
        )

    def run(self, sizes: Sequence[Expr], extent: int) -> tuple[Expr, Expr] | None:
        """(first, end) if a tensor of these sizes counts from one to the other, below `extent`."""
        if self.below is None or self.below > extent:
            return None
        moving = [axis for axis, size in enumerate(sizes) if not is_number(size, 1)]
        if len(moving) > 1 or not holds(self.start >= 0):
            return None
        if any(not is_number(self.strides[axis], 1) for axis in moving):
            return None
        return self.start, simplified(self.start + product(sizes))


def index_grid(value: Expr, depth: int = _DEPTH) -> IndexGrid | None:
    """What is known of a tensor of int64; None if it is no grid, or nobody knows."""
    if not isinstance(value.ty, relax.TensorType) or dtype_of(value) != "int64":
        return None
    if is_unknown(value):
        return None
    sizes = dims_of(value)
    array = constant(value)
    if array is not None:
        return _constant_grid(array)
    if all(is_number(size, 1) for size in sizes):
        known = known_elements(value)
        if known is None:
            return None
        number = known.item()
        start = index(number) if isinstance(number, int) else number
        return IndexGrid(start, (index(0),) * len(sizes))
    call = current_builder().lookup_binding(value) if isinstance(value, relax.Var) else value
    if not isinstance(call, relax.Call) or not depth:
        return None
    name = op_name(call)
    if name == "relax.arange":
        first, _, step = (each.value if hasattr(each, "value") else each for each in call.args)
        return IndexGrid(index(0) + first, (index(0) + step,))
    if name in ("relax.expand_dims", "relax.reshape", "relax.squeeze"):
        return _reshaped(index_grid(call.args[0], depth - 1), call.args[0], sizes)
    if name == "relax.strided_slice":
        return _sliced(index_grid(call.args[0], depth - 1), call)
    if name in _BROADCAST:
        one, other = (_broadcast(index_grid(each, depth - 1), len(sizes)) for each in call.args)
        if one is None or other is None:
            return None
        return _sum(one, other) if name == "relax.add" else _multiple(one, other)
    return None


def _constant_grid(array: np.ndarray) -> IndexGrid | None:
    """A constant that counts along one axis at most."""
    moving = [axis for axis, size in enumerate(array.shape) if size != 1]
    flat = array.ravel()
    if not flat.size or len(moving) > 1:
        return None
    steps = np.unique(np.diff(flat)) if flat.size > 1 else np.zeros(1, np.int64)
    if steps.size > 1:
        return None
    strides = tuple(index(int(steps[0]) if axis in moving else 0) for axis in range(array.ndim))
    return IndexGrid(index(int(flat[0])), strides, int(flat.max()) + 1)


def _sliced(grid: IndexGrid | None, call: relax.Call) -> IndexGrid | None:
    """What a slice of every element from some on, or to some, is of a grid."""
    if grid is None or len(call.args) > 4 or not call.attrs.assume_inbound:
        return None
    start = grid.start
    for axis, begin in zip(call.args[1], call.args[2], strict=True):
        start = start + begin * grid.strides[int(axis)]
    return IndexGrid(simplified(start), grid.strides, grid.below)


def _reshaped(grid: IndexGrid | None, before: Expr, sizes: Sequence[Expr]) -> IndexGrid | None:
    """A grid with other axes of one element."""
    if grid is None:
        return None
    moving = [
        (size, stride)
        for size, stride in zip(dims_of(before), grid.strides, strict=True)
        if not is_number(size, 1)
    ]
    strides: list[Expr] = []
    for size in sizes:
        if is_number(size, 1):
            strides.append(index(0))
        elif moving and same_size(moving[0][0], size):
            strides.append(moving.pop(0)[1])
        else:
            return None
    return None if moving else IndexGrid(grid.start, tuple(strides), grid.below)


def _broadcast(grid: IndexGrid | None, rank: int) -> IndexGrid | None:
    """A grid with further axes before its own."""
    if grid is None:
        return None
    return IndexGrid(grid.start, (index(0),) * (rank - len(grid.strides)) + grid.strides)


def _sum(one: IndexGrid, other: IndexGrid) -> IndexGrid:
    pairs = zip(one.strides, other.strides, strict=True)
    strides = tuple(simplified(left + right) for left, right in pairs)
    return IndexGrid(simplified(one.start + other.start), strides)


def _multiple(one: IndexGrid, other: IndexGrid) -> IndexGrid | None:
    """The product, if a factor is one number."""
    for grid, number in ((one, other), (other, one)):
        if all(is_number(stride, 0) for stride in number.strides):
            factor = number.start
            strides = tuple(simplified(stride * factor) for stride in grid.strides)
            return IndexGrid(simplified(grid.start * factor), strides)
    return None
