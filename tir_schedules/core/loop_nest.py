"""LoopNest: the loops of a kernel as numbers, without building it.

    for task            parallel    bytes of A, B, C that all of its iterations touch
        for rows block  serial      ...
            ...
              for lane  vector      ...

A cost model reads this instead of the program (Chen et al., arXiv 1805.08166, section 3.1):
building a program takes longer than making a thousand of these. If pieces differ in size, the
average counts, so a size may be a fraction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import tvm.tirx.script.builder.ir as I

from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr

Kind = Literal["parallel", "serial", "reduction", "unrolled", "vector"]
Bytes = tuple[float, float, float]
"""Bytes of buffers that are read many times (A), constant or packed (B), and written."""

KINDS: tuple[Kind, ...] = ("parallel", "serial", "reduction", "unrolled", "vector")


class Loop(NamedTuple):
    """One loop.

    Attributes
    ----------
    name : str
        What it runs over.
    extent : float
        Iterations.
    kind : str
        One of KINDS; "reduction" is a serial loop over what is summed.
    touched : tuple of float
        Distinct bytes of each kind of buffer that one run of the loop, all iterations, touches.
    """

    name: str
    extent: float
    kind: Kind
    touched: Bytes


@dataclass(frozen=True)
class LoopNest:
    """One product of a kernel, or another part that takes time.

    Attributes
    ----------
    loops : tuple of Loop
        The outermost first.
    operations : float
        Multiply-adds, as the problem states them.
    useful : float
        Their fraction of the executed ones; the others are on padded lanes, rows and steps.
    balance : float
        Average work of a thread over that of the busiest.
    """

    loops: tuple[Loop, ...]
    operations: float
    useful: float = 1.0
    balance: float = 1.0


def nested(loops: Iterable[Loop]) -> tuple[Loop, ...]:
    """The loops; none touches more than the loop around it, as averages might."""
    found: list[Loop] = []
    for loop in loops:
        if found:
            a, b, c = map(min, loop.touched, found[-1].touched)
            loop = loop._replace(touched=(a, b, c))
        found.append(loop)
    return tuple(found)


def within(name: str, count: float, kind: Kind, nest: LoopNest, balance: float) -> LoopNest:
    """A nest inside a loop of `count` passes, each of which reads all of B."""
    a, b, c = nest.loops[0].touched
    whole = Loop(name, count, kind, (a * count, b, c * count))
    operations = nest.operations * count
    return LoopNest((whole, *nest.loops), operations, nest.useful, balance)


Box = tuple[float, float, float]


class Tiling(NamedTuple):
    """How one product A[m, k] B[k, n] is blocked; n in vectors, k in steps of four bytes."""

    rows: float
    vectors: float
    m_block: float
    k_block: float


def product_loops(
    extents: Box, tiling: Tiling, lanes: int, names: Sequence[str] = ("rows", "columns", "K")
) -> list[Loop]:
    """The loops that `tile_loops` emits for one thread's part of a product.

    Parameters
    ----------
    extents : tuple
        Rows, vectors of columns, steps of K.
    tiling : Tiling
        Limits of each; pieces are balanced.
    lanes : int
        Lanes of a vector.
    """
    m, n, k = extents
    row, column, step = names
    blocks = pieces(m, tiling.m_block)
    panels = pieces(n, tiling.vectors)
    parts = pieces(k, tiling.k_block)
    block, panel, part = m / blocks, n / panels, k / parts
    tiles = pieces(block, tiling.rows)
    rows = block / tiles

    def touched(m: float, n: float, k: float) -> Bytes:
        return 4 * m * k, 4 * lanes * n * k, 4 * lanes * m * n

    return [
        Loop(f"{row} block", blocks, "serial", touched(m, n, k)),
        Loop(f"{column} panel", panels, "serial", touched(block, n, k)),
        Loop(f"{step} block", parts, "serial", touched(block, panel, k)),
        Loop(f"{row} tile", tiles, "serial", touched(block, panel, part)),
        *register_tile(rows, panel, part, lanes, (row, column, step)),
    ]


def register_tile(
    rows: float, vectors: float, steps: float, lanes: int, names: Sequence[str]
) -> list[Loop]:
    """The loops of a register tile over `steps` steps of K."""
    row, column, step = names
    line = 4.0 * lanes
    results = line * rows * vectors
    return [
        Loop(step, steps, "reduction", (4 * rows * steps, line * vectors * steps, results)),
        Loop(row, rows, "unrolled", (4 * rows, line * vectors, results)),
        Loop(column, vectors, "unrolled", (4.0, line * vectors, line * vectors)),
        Loop("lane", lanes, "vector", (4.0, line, line)),
    ]


def pieces(total: float, most: float) -> int:
    """Number of pieces of at most `most` that something is cut into.

    >>> pieces(128, 6)
    22
    """
    return max(1, math.ceil(total / most - 1e-9))


def balance_of(work: int, threads: int) -> float:
    """Average number of pieces of work of a thread over that of the busiest.

    >>> balance_of(5, 4)
    0.625
    """
    return work / threads / math.ceil(work / threads)


Combine = Callable[[Expr, Expr], Expr]


class LaneTotals:
    """Vectors in which a reduction is accumulated; several hide the latency of combining.

    Parameters
    ----------
    lanes : int
        Lanes of a vector.
    start : float
        Initial value of every lane.
    slots : int
        Number of vectors.
    dtype : str
        Type of an element.
    """

    def __init__(self, lanes: int, start: float, slots: int = 1, dtype: str = "float32") -> None:
        self.lanes, self.slots = lanes, slots
        self.buffer = I.sblock_alloc_buffer((slots * lanes,), dtype)
        for slot in range(slots):
            self.store(ex.constant(start, dtype, lanes), slot)

    def __getitem__(self, slot: int) -> Expr:
        return self.buffer[ex.ramp(slot * self.lanes, self.lanes)]

    def store(self, value: Expr, slot: int = 0) -> None:
        """Replaces a vector."""
        I.buffer_store(self.buffer, value, [ex.ramp(slot * self.lanes, self.lanes)])

    def combined(self, combine: Combine) -> Expr:
        """All vectors combined to one."""
        return combine_all([ex.bind(self[slot]) for slot in range(self.slots)], combine)

    def total(self, combine: Combine) -> Expr:
        """All lanes of all vectors combined, as a scalar expression."""
        return reduce_lanes(self.combined(combine), combine)


def add(a: Expr, b: Expr) -> Expr:
    """The sum of two expressions."""
    return a + b


def reduce_lanes(value: Expr, combine: Combine) -> Expr:
    """All lanes combined, as a scalar expression.

    Halves are combined until one lane is left: log2(lanes) steps, in registers of half the width
    each time, and for sums the order of pairwise summation.

    Parameters
    ----------
    value : Expr
        Any type, a power of two lanes.
    combine : callable
        Associative and commutative, on expressions of any number of lanes.
    """
    lanes = ex.lanes_of(value)
    value = ex.materialise(value)
    while lanes > 1:
        lanes //= 2
        value = ex.bind(value)
        value = combine(*(ex.shuffle([value], range(at, at + lanes)) for at in (0, lanes)))
    return ex.materialise(value)


def combine_all(values: list[Expr], combine: Combine) -> Expr:
    """The values combined pairwise, as a tree."""
    while len(values) > 1:
        pairs = [combine(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = [ex.bind(pair) for pair in pairs] + values[len(pairs) * 2 :]
    return values[0]
