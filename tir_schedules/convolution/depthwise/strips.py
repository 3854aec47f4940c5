"""Cuts a line of a depthwise convolution into tiles, and says which columns of x a tile reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from microkernels.vector.expressions import Expr
from tir_schedules.core.blocking import balanced

from .problem import Axis, DepthwiseProblem

# Tiles of a line whose number of columns is open: their code, then that of each smaller tile.
MIDDLE, BEGIN, END, OTHER = range(4)


@dataclass(frozen=True)
class Strip:
    """`count` tiles of `size` columns from `start` on; `edge` if taps of one lie outside."""

    start: int
    count: int
    size: int
    edge: bool
    stored: Expr | None = None  # of columns whose number is open: so many of them exist
    checked: range = range(0)  # columns of x, from the first on, that are looked for when it runs


def strips(problem: DepthwiseProblem, most: int) -> Iterator[Strip]:
    """The columns in balanced tiles: equal neighbours in one strip, tiles at the edges alone."""
    pending: Strip | None = None
    for group in balanced(problem.columns.outputs, most):
        for number in range(group.count):
            start = group.start + number * group.size
            ends = (start, start + group.size - 1)
            edge = not all(map(problem.columns.is_inside, ends))
            if pending is not None and not edge and pending.size == group.size:
                pending = Strip(pending.start, pending.count + 1, pending.size, False)
                continue
            if pending is not None:
                yield pending
            pending = Strip(start, 1, group.size, edge)
            if edge:
                yield pending
                pending = None
    if pending is not None:
        yield pending


def open_strip(axis: Axis, kind: int, sizes: Sequence[int], left: Expr) -> Strip:
    """A tile of an open number of columns.

    Parameters
    ----------
    axis : Axis
        The columns.
    kind : int
        MIDDLE, BEGIN or END: a whole tile whose windows lie inside, reach over the first column or
        over the last one. OTHER and more: one whose columns of x are all looked for.
    sizes : sequence of int
        Columns of tiles of the kinds from OTHER on; the last one is a whole tile.
    left : Expr
        Columns that exist.
    """
    size = sizes[-1]
    span = axis.span(size)
    if kind == MIDDLE:
        return Strip(0, 1, size, False)
    if kind == BEGIN:
        return Strip(0, 1, size, True)
    if kind == END:
        return Strip(0, 1, size, False, checked=range(max(0, span - axis.after), span))
    size = sizes[kind - OTHER]
    return Strip(0, 1, size, True, left, range(axis.span(size)))


def used_columns(
    stride: int, dilation: int, taps: int, columns: int
) -> dict[int, list[tuple[int, int]]]:
    """Columns of x from the first one of a tile on -> (column of the tile, tap) that want them."""
    found: dict[int, list[tuple[int, int]]] = {}
    for column in range(columns):
        for tap in range(taps):
            found.setdefault(column * stride + tap * dilation, []).append((column, tap))
    return dict(sorted(found.items()))
