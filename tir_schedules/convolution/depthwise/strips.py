"""Cuts a line of a depthwise convolution into tiles, and says which columns of x a tile reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from microkernels.vector.expressions import Expr
from tir_schedules.core.blocking import balanced

from .problem import DepthwiseProblem


class Margin(NamedTuple):
    """A column of x that may lie outside, and counts as zeros then.

    Attributes
    ----------
    loaded, kept : Expr
        Its lanes that exist: all or none. TVM drops the mask of a load that a Select with the same
        condition takes its value from, so the number has two names. LLVM sees that they are the
        same, and makes a single load of both.
    shift : Expr or None
        From its place to that of a column that is read anyway, if it lies outside; else 0. The
        load touches no other cache line then (5x5 at 20x20x192: 26 instead of 29 us on a Zen 5).
        None in tiles of several rows, of small windows, where it costs more than it saves.
    """

    loaded: Expr
    kept: Expr
    shift: Expr | None


@dataclass(frozen=True)
class Strip:
    """`count` tiles of `size` columns from `start` on; `edge` if taps of one lie outside.

    Attributes
    ----------
    margins : mapping
        Columns of x, from the first one of a tile on, that may lie outside.
    """

    start: int
    count: int
    size: int
    edge: bool
    margins: Mapping[int, Margin] = field(default_factory=dict)


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


def open_sizes(most: int) -> list[int]:
    """Columns of the tiles of a line of open length: ordinary ones, and those of shorter lines."""
    return sorted({most, -(-most // 2), 1}, reverse=True)


def used_columns(
    stride: int, dilation: int, taps: int, columns: int
) -> dict[int, list[tuple[int, int]]]:
    """Columns of x from the first one of a tile on -> (column of the tile, tap) that want them."""
    found: dict[int, list[tuple[int, int]]] = {}
    for column in range(columns):
        for tap in range(taps):
            found.setdefault(column * stride + tap * dilation, []).append((column, tap))
    return dict(sorted(found.items()))
