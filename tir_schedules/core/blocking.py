"""Blocking: how sizes are divided into tiles and work among threads; plain Python, no kernels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from microkernels.machines.machine import Machine

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


def panel_widths(n_vectors: int, threads: int, most: int) -> list[int]:
    """Width of every panel of columns, in vectors; no panel crosses the shares of two threads.

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
    """Every (rows of threads, columns of threads) to which neither could be added.

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
    """A grid without the threads that could go without making another's part larger.

    >>> busy_grid(7, 32, 5, 10)
    (4, 8)
    """
    return math.ceil(m / math.ceil(m / rows)), math.ceil(n / math.ceil(n / columns))


def choose_thread_grid(sizes: Box, threads: Iterable[int], cost: Callable[[Box], float]) -> Box:
    """The grid of threads for a product with the least cost.

    Tried are the largest grids of each number of threads. No grid has threads that could go without
    making another's part larger.

    Parameters
    ----------
    sizes : tuple
        Rows, vectors of columns, and units of K.
    threads : iterable of int
        How many to try at most.
    cost : callable
        Of a grid.
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

    A step of K of a tile of r rows and v vectors takes the time of r * v products, at least an
    FMA's latency, and that of r elements loaded to all lanes and v vectors; B comes from L2, mostly
    hidden; entering and leaving it costs some 20 cycles and two for each accumulator. Rows a
    multiple of 4 KB apart share one L1 set of 8 ways: more than 8 of them evict each other
    (measured: 83% of peak instead of 99%).

    Parameters
    ----------
    m, n_vectors, k : int
        Rows, vectors of columns and steps of K of the thread's part.
    rows, vectors, k_block : int
        Most rows, vectors and steps of a tile.
    machine : Machine
        What computes it.
    rate : float or None
        Products of vectors that start in a cycle; None: as many as FMAs.
    """
    rate, latency = rate or machine.fma_rate, machine.fma_latency
    broadcast_rate, load_rate = machine.broadcast_rate, machine.load_rate
    k_blocks = math.ceil(k / k_block)
    cycles = 0.0
    for row_group in balanced(m, rows):
        for panel in balanced(n_vectors, vectors):
            tile = row_group.size * panel.size
            loads = row_group.size / broadcast_rate + panel.size / load_rate
            step = max(tile / rate, latency, loads) + panel.size / 64
            if row_group.size > 8:
                step *= 1.25 if 4 * k % 4096 == 0 else 1.01
            once = 20 + 2 * tile
            cycles += row_group.count * panel.count * (k * step + k_blocks * once)
    return cycles
