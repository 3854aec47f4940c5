"""Which heights register tiles of a dynamic number of rows have, and which piece comes first.

There is machine code for each height. Code for all heights from 1 to 14 has 105 rows, and most of
them are never run. So only some heights are written out, and a tail is cut into several pieces: 13
rows into 5, 4 and 4. A tile with enough accumulators to hide the latency of its products is as fast
as a high one.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

# Accumulators that hide the latency of products: four cycles, two products a cycle.
ENOUGH_ACCUMULATORS = 8
TILE_OVERHEAD = 0.5  # of a tile, as products of a step of K
# How much slower than in balanced pieces of all heights: on average, and at worst for totals that
# fill a tile. A tile of one vector is of a narrow product, which is a small part of a model, and
# needs many heights for little.
LOSSES, NARROW_LOSSES = (0.015, 0.03), (0.15, 0.3)
_SPAN = 3  # totals that are looked at, in tiles: larger ones begin with whole tiles


@dataclass(frozen=True)
class TailHeights:
    """How a dynamic number of rows is cut into pieces.

    Attributes
    ----------
    heights : tuple of int
        What pieces are high, in rising order; the last is that of a whole tile.
    first : tuple of int
        Rows that are left, fewer than those of two tiles -> the height of the next piece.
    counts : tuple of int
        The same rows -> how many pieces they are.
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
        No total is smaller, but for 0.
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
    """The best cut of 0, 1, 2, ... rows, the highest piece first."""
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
    """What the fewest pieces cost that differ by at most one row."""
    pieces = math.ceil(total / most)
    base, larger = divmod(total, pieces)
    return larger * _cost(base + 1, vectors) + (pieces - larger) * _cost(base, vectors)


def _cost(height: int, vectors: int) -> float:
    """What a step of K of a tile costs, in products; it waits for products, loads or latency."""
    return max(height * vectors, height + vectors, ENOUGH_ACCUMULATORS) + TILE_OVERHEAD
