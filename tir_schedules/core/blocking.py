"""Blocking: how sizes are divided into tiles and work among threads; plain Python, no kernels."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tvm import relax

from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel

from .arrays import A, joined, padded, permuted, reshaped, sliced

Box = tuple[int, int, int]  # rows, vectors of columns, and units of K, or threads along them


@dataclass(frozen=True)
class Group:
    """`count` pieces of equal `size`, the first at `start`."""

    start: int
    count: int
    size: int


def balanced(total: int, most: int) -> tuple[Group, ...]:
    """Cuts `total` into as few pieces of at most `most` as possible, sizes differing by at most 1.

    A thin tail costs nearly as much as a full tile; equal pieces avoid it. At most two groups.

    >>> balanced(128, 6)
    (Group(start=0, count=18, size=6), Group(start=108, count=4, size=5))
    """
    return shares(total, math.ceil(total / most))


def shares(total: int, parts: int) -> tuple[Group, ...]:
    """Cuts `total` into `parts` pieces whose sizes differ by at most 1; larger ones first."""
    size, larger = divmod(total, parts)
    groups = []
    if larger:
        groups.append(Group(0, larger, size + 1))
    if size and parts > larger:
        groups.append(Group(larger * (size + 1), parts - larger, size))
    return tuple(groups)


def shares_of_units(total: int, parts: int, unit: int) -> tuple[Group, ...]:
    """Cuts `total` into at most `parts` pieces of whole units; only the last one may have a tail.

    Sizes differ by one unit at most.

    >>> shares_of_units(150, parts=3, unit=32)
    (Group(start=0, count=2, size=64), Group(start=128, count=1, size=22))
    """
    units = math.ceil(total / unit)
    groups = []
    for group in shares(units, min(units, parts)):
        start, size = group.start * unit, group.size * unit
        whole = min(group.count, (total - start) // size)
        if whole:
            groups.append(Group(start, whole, size))
        if whole < group.count:
            end = start + whole * size
            groups.append(Group(end, 1, total - end))
    return tuple(groups)


def cut_in_units(total: int, most: int, unit: int) -> tuple[Group, ...]:
    """Cuts `total` into pieces of whole units, at most `most`; the tail is a separate piece.

    >>> cut_in_units(70, 64, 32)
    (Group(start=0, count=1, size=64), Group(start=64, count=1, size=6))
    """
    whole, tail = divmod(total, unit)
    groups = balanced(whole, max(1, most // unit)) if whole else ()
    pieces = [Group(group.start * unit, group.count, group.size * unit) for group in groups]
    return (*pieces, *[Group(total - tail, 1, tail)] * (tail > 0))


def panel_widths(n_vectors: int, threads: int, most: int) -> list[int]:
    """Width of every panel of columns, in vectors; no panel belongs to two threads.

    Parameters
    ----------
    n_vectors : int
        Vectors of columns in all.
    threads : int
        Threads along the columns.
    most : int
        Vectors of a panel at most.
    """
    widths = []
    for share in shares(n_vectors, min(threads, n_vectors)):
        panels = [group.size for group in balanced(share.size, most) for _ in range(group.count)]
        widths += panels * share.count
    return widths


def thread_grids(threads: int) -> Iterator[tuple[int, int]]:
    """Every grid (rows, columns) of threads to which neither a row nor a column can be added.

    >>> list(thread_grids(5))
    [(1, 5), (2, 2), (5, 1)]
    """
    rows = 0
    while rows < threads:
        columns = threads // (rows + 1)
        rows = threads // columns
        yield rows, columns


def grids_of(threads: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The grids of each of several numbers of threads."""
    return itertools.chain.from_iterable(map(thread_grids, threads))


def busy_grid(m: int, n: int, rows: int, columns: int) -> tuple[int, int]:
    """A grid without the threads whose absence makes no other thread's part larger.

    >>> busy_grid(7, 32, 5, 10)
    (4, 8)
    """
    return math.ceil(m / math.ceil(m / rows)), math.ceil(n / math.ceil(n / columns))


def choose_thread_grid(sizes: Box, threads: Iterable[int], cost: Callable[[Box], float]) -> Box:
    """The grid of threads with the least cost for a product.

    It tries the largest grids of each number of threads, without the threads whose absence makes no
    other thread's part larger.

    Parameters
    ----------
    sizes : tuple
        Rows, vectors of columns, and units of K.
    threads : iterable of int
        Numbers of threads to try, each a limit.
    cost : callable
        grid -> cost.
    """
    best: Box = (1, 1, 1)
    least, seen = cost(best), {best}
    for most in threads:
        for along_k in range(1, min(most, sizes[2]) + 1):
            for along_rows, along_columns in thread_grids(most // along_k):
                grid = divided(sizes, divided(sizes, (along_rows, along_columns, along_k)))
                if grid not in seen:
                    seen.add(grid)
                    found = cost(grid)
                    if found < least:
                        best, least = grid, found
    return best


def divided(sizes: Box, parts: Box) -> Box:
    """Sizes over numbers of parts, rounded up: the largest part.

    >>> divided((5, 48, 768), (2, 7, 1))
    (3, 7, 768)
    """
    return -(-sizes[0] // parts[0]), -(-sizes[1] // parts[1]), -(-sizes[2] // parts[2])


def estimate_cycles(
    m: int,
    n_vectors: int,
    k: int,
    rows: int,
    vectors: int,
    k_block: int,
    machine: Machine,
    rate: float | None = None,
) -> float:
    """Cycles of one thread for its part of a product.

    Every step of K of a tile takes `Machine.step_cycles`; entering and leaving a tile costs some 20
    cycles and two for each accumulator. Rows a multiple of 4 KB apart share one L1 set of 8 ways:
    more than 8 of them evict each other (measured: 83% of peak instead of 99%).

    Parameters
    ----------
    m, n_vectors, k : int
        Rows, vectors of columns and steps of K of the thread's part.
    rows, vectors, k_block : int
        Most rows, vectors and steps of a tile.
    machine : Machine
        The machine that computes it.
    rate : float or None
        Products of vectors that start in a cycle; None: the rate of FMAs.
    """
    k_blocks = math.ceil(k / k_block)
    cycles = 0.0
    for row_group in balanced(m, rows):
        for panel in balanced(n_vectors, vectors):
            step = machine.step_cycles(row_group.size, panel.size, rate or machine.fma_rate)
            if row_group.size > 8:
                step *= 1.25 if 4 * k % 4096 == 0 else 1.01
            once = 20 + 2 * row_group.size * panel.size
            cycles += row_group.count * panel.count * (k * step + k_blocks * once)
    return cycles


@dataclass(frozen=True)
class Panels:
    """The layout of a packed matrix, which a kernel reads as B.

        [K, N] -> panels of columns, one after the other, each [K/kr][columns][kr]

    K consists of runs, each padded with zeros to whole steps of kr elements, as the kernel needs.
    N is padded to whole vectors.

    Attributes
    ----------
    kernel : Microkernel
        Gives lanes and kr, and how K is padded.
    k, n : int
        Rows of a run, and columns.
    widths : tuple of int
        Vectors of every panel.
    runs : int
        Number of runs.
    """

    kernel: Microkernel
    k: int
    n: int
    widths: tuple[int, ...]
    runs: int = 1

    @property
    def steps(self) -> int:
        """Steps of K in all runs."""
        return self.runs * self.kernel.steps(self.k)

    @property
    def columns(self) -> int:
        """Columns, padding included."""
        return sum(self.widths) * self.kernel.lanes

    @property
    def size(self) -> int:
        """Elements of the packed matrix."""
        return self.steps * self.kernel.kr * self.columns

    def start(self, panel: Any, width: Any, step: Any, vector: Any) -> Any:
        """Index of a vector of a panel; `panel` counts the vectors before the panel."""
        group = self.kernel.lanes * self.kernel.kr
        return (panel * self.steps + step * width + vector) * group

    def pack(self, matrix: A) -> A:
        """Packs [runs * k, n] for the kernel, flat."""
        depth, kr, lanes = self.steps * self.kernel.kr, self.kernel.kr, self.kernel.lanes
        runs = reshaped(matrix, (self.runs, self.k, self.n))
        whole = padded(runs, (0, depth // self.runs - self.k, self.columns - self.n))
        steps = reshaped(whole, (depth, self.columns))
        if kr > 1:
            steps = permuted(reshaped(whole, (self.steps, kr, self.columns)), (0, 2, 1))
        ends = [lanes * sum(self.widths[:count]) for count in range(len(self.widths) + 1)]
        return joined([sliced(steps, 1, *pair) for pair in itertools.pairwise(ends)])

    def unpack(self, expr: relax.Expr, position: int = 0) -> relax.Expr:
        """[runs * k, n] as a Relax expression, from a packed matrix that begins at a position."""
        op, kr, panels = relax.op, self.kernel.kr, []
        for width in self.widths:
            columns = width * self.kernel.lanes
            end = position + self.steps * columns * kr
            panels.append(op.reshape(sliced(expr, 0, position, end), (self.steps, columns, kr)))
            position = end
        whole = op.permute_dims(op.concat(panels, axis=1), [0, 2, 1])
        runs = op.reshape(whole, (self.runs, self.steps * kr // self.runs, self.columns))
        inside = op.strided_slice(runs, [1, 2], [0, 0], [self.k, self.n])
        return op.reshape(inside, (self.runs * self.k, self.n))


# Heights of register tiles for a dynamic number of rows, and the order of the pieces.
#
# There is machine code for each height. Code for all heights from 1 to 14 has 105 rows, and most of
# them are never run. So there is code for some heights only, and a tail is cut into several pieces:
# 13 rows into 5, 4 and 4. A tile with enough accumulators to hide the latency of its products is as
# fast as a high one.


# Accumulators that hide the latency of products: four cycles, two products a cycle.
ENOUGH_ACCUMULATORS = 8
TILE_OVERHEAD = 0.5  # of a tile, as products of a step of K
# Allowed loss against balanced pieces of all heights: on average, and at worst for totals that fill
# a tile. A tile of one vector belongs to a narrow product, which is a small part of a model, and
# would need many heights for a small gain.
LOSSES, NARROW_LOSSES = (0.015, 0.03), (0.15, 0.3)
_SPAN = 3  # totals that are examined, in tiles: larger ones begin with whole tiles


@dataclass(frozen=True)
class TailHeights:
    """How a dynamic number of rows is cut into pieces.

    Attributes
    ----------
    heights : tuple of int
        Heights of pieces, in rising order; the last one is a whole tile.
    first : tuple of int
        Remaining rows, fewer than those of two tiles -> height of the next piece.
    counts : tuple of int
        Remaining rows -> number of pieces.
    """

    heights: tuple[int, ...]
    first: tuple[int, ...]
    counts: tuple[int, ...]


@functools.cache
def tail_heights(most: int, vectors: int, least: int = 1) -> TailHeights:
    """The heights for tiles of at most `most` rows and of some vectors.

    Parameters
    ----------
    least : int
        The smallest total, apart from 0.
    """
    least = min(least, most)  # tails of larger totals are those of a tile and more
    chosen = {1, most}
    totals = range(least, _SPAN * most)
    best = [_balanced(total, most, vectors) for total in totals]

    def losses(heights: set[int]) -> tuple[float, float]:
        costs = _cuts(tuple(sorted(heights)), vectors, _SPAN * most)
        loss = [costs[t].cost / b - 1 for t, b in zip(totals, best, strict=True)]
        return sum(loss) / len(loss), max(loss[max(0, most - least) :])

    most_average, most_worst = LOSSES if vectors > 1 else NARROW_LOSSES
    average, worst = losses(chosen)
    while average > most_average or worst > most_worst:
        more = [height for height in range(2, most) if height not in chosen]
        if not more:
            break
        found = min(more, key=lambda height: sum(losses(chosen | {height})))
        chosen.add(found)
        average, worst = losses(chosen)
    cuts = _cuts(tuple(sorted(chosen)), vectors, 2 * most)
    used: set[int] = {most}
    for total in range(least, 2 * most):
        left = total
        while left:
            used.add(cuts[left].first)
            left -= cuts[left].first
    firsts, counts = zip(*((cut.first, cut.count) for cut in cuts), strict=True)
    return TailHeights(tuple(sorted(used)), firsts, counts)


@dataclass(frozen=True)
class _Cut:
    """The best cut of a number of rows."""

    cost: float
    count: int
    first: int


def _cuts(heights: tuple[int, ...], vectors: int, most: int) -> list[_Cut]:
    """Returns the best cut of each number of rows below `most`, the highest piece first."""
    found = [_Cut(0.0, 0, 0)]
    for total in range(1, most):
        fitting = [height for height in heights if height <= total]
        options = (
            (found[total - h].cost + _cost(h, vectors), found[total - h].count + 1, -h)
            for h in fitting
        )
        cost, count, first = min(options)
        found.append(_Cut(cost, count, -first))
    return found


def _balanced(total: int, most: int, vectors: int) -> float:
    """Cost of the fewest pieces that differ by at most one row."""
    pieces = math.ceil(total / most)
    base, larger = divmod(total, pieces)
    return larger * _cost(base + 1, vectors) + (pieces - larger) * _cost(base, vectors)


def _cost(height: int, vectors: int) -> float:
    """Returns a tile's cost of a step of K in products; products, loads or latency limit it."""
    return max(height * vectors, height + vectors, ENOUGH_ACCUMULATORS) + TILE_OVERHEAD
