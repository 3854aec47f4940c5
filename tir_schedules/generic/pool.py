"""Loops of pooling in channels-last order: vectors of channels, columns shared by windows.

    for i, j, c, k, l in grid: y[i, j, c] = max(y[i, j, c], x[i + k - 1, j + l - 1, c])

->  for i:
        for j at the left border, then at the right one: for the k and l that count: accumulate
        for j in steps of 4:
            six accumulators <- lowest
            for k that counts: accumulator[m] = max(accumulator[m], x[i + k - 1, j + m - 1, c])
            y[i, j + n, c] = max(accumulator[n], accumulator[n + 1], accumulator[n + 2])

A column of the image is read once for all windows of a step. A loop over k and l would read it once
for every window that contains it. A row of the image that contains a NaN is computed again
(`generic.pool_watch`).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from tvm import tirx

from microkernels.machines.machine import Machine

from .accumulators import tiles_of
from .expressions import int64
from .loops import nested, pieces, sequence
from .nest import Axis, analyzer_for
from .pool_step import Covered, Step, accumulated
from .pool_watch import WATCHED, Watch
from .pool_window import Window, columns_of

MOST_WINDOWS = 8
"""Windows that one step computes at most."""


def window_loops(window: Window, machine: Machine, threads: int, lanes: int) -> tirx.Stmt:
    """Loops over rows, then borders and the steps between them."""
    nest, along = window.nest, window.along
    if str(nest.stores[0].buffer.dtype) == "bfloat16":
        lanes = machine.isa.vector_bits // 32
    registers = 24 if machine.isa.vector_bits >= 512 else 12
    windows, across = _tile(window, -(-along.extent // lanes), registers)
    others = [axis for axis in nest.spatial if axis is not along and axis is not window.place]
    statements = []
    for start, width, tiles in tiles_of(along.extent, across * lanes):
        axis = Axis.new(tiles, "channels")
        channel = axis.var * int64(across * lanes) + int64(start)
        covered = [(channel + int64(at), size) for at, size in pieces(width, lanes)]
        body = _row(window, covered, windows)
        statements.append(nested((*others, axis), body, machine, threads))
    return sequence(statements)


def _row(window: Window, covered: Covered, windows: int) -> tirx.Stmt:
    """All places of a row; maxima and minima of floats once more if they saw a NaN."""
    store = window.nest.stores[0]
    dtype = accumulated(str(store.buffer.dtype))

    def runs(windows: int, watch: Watch | None) -> list[tirx.Stmt]:
        return [_run(window, covered, run, windows, watch) for run in _runs(window)]

    if dtype not in WATCHED or not isinstance(store.value, tirx.Max | tirx.Min):
        return sequence(runs(windows, None))
    watch = Watch(dtype, [width for _, width in covered])
    again = sequence(runs(1, None))
    return sequence([*watch.begin(), *runs(windows, watch), watch.repeat_if_alarmed(again)])


@dataclass(frozen=True)
class _Run:
    """Neighbouring places, and whether all of each window counts there."""

    first: int
    count: int
    whole: bool


def _runs(window: Window) -> list[_Run]:
    place, position = window.place, window.position
    if place is None or position is None:
        return [_Run(0, 1, True)]
    bound = window.bounds.get(position.var)
    if bound is None:
        return [_Run(0, place.extent, True)]
    end = position.extent
    whole = [bound.first(p) <= 0 and bound.last(p) >= end for p in range(place.extent)]
    runs = []
    for inside, group in itertools.groupby(range(place.extent), lambda p: whole[p]):
        places = list(group)
        runs.append(_Run(places[0], len(places), inside))
    return runs


def _tile(window: Window, vectors: int, registers: int) -> tuple[int, int]:
    """Windows, and vectors of channels, of one step: with the fewest operations for a result."""
    if window.position is None:
        return 1, min(vectors, 4)
    rows = math.prod(axis.extent for axis in window.rows)
    longest = max((run.count for run in _runs(window) if run.whole), default=1)
    best, least = (1, 1), math.inf
    for windows in range(1, min(MOST_WINDOWS, longest) + 1):
        columns = len(columns_of(window, windows))
        across = min(vectors, max(registers // columns, 1), 4)
        if columns > registers and windows > 1:
            break
        work = columns * rows / windows + window.position.extent - 1
        # What is left of a row is done with fewer columns shared.
        cost = work * (1 + longest % windows / longest)
        if cost < 0.99 * least:
            best, least = (windows, across), cost
    return best


def _run(
    window: Window, covered: Covered, run: _Run, windows: int, watch: Watch | None
) -> tirx.Stmt:
    """All places of a run, some windows at a time."""
    statements = []
    for start, size, steps in tiles_of(run.count, windows if run.whole else 1):
        axis = Axis.new(steps, "step")
        analyzer = analyzer_for([*window.nest.spatial, axis])
        step = axis.var if steps > 1 else int64(0)
        place = analyzer.simplify(step * int64(size) + int64(run.first + start))
        count = size if run.whole else 0
        body = Step(window, covered, place, count, analyzer, watch).statement()
        statements.append(_over(axis, body))
    return sequence(statements)


def _over(axis: Axis, body: tirx.Stmt) -> tirx.Stmt:
    """A loop over an axis; none for a single pass."""
    if axis.extent == 1:
        return body
    return tirx.For(axis.var, int64(0), int64(axis.extent), tirx.ForKind.SERIAL, body)
