"""Blocking: how sizes are divided into tiles and work among threads; plain Python, no kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from microkernels.machines.machine import Machine

# Share of a product's time that it takes to fetch, in the next one, rows of which another core
# wrote a part (measured: 512x13x512 before 512x512x256, two threads).
FOREIGN_ROWS = 0.16


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
    """Every (rows of threads, columns of threads) whose product is `threads`."""
    for rows in range(1, threads + 1):
        if threads % rows == 0:
            yield rows, threads // rows


def choose_thread_grid(
    m_tiles: int, n_tiles: int, m: int, n: int, k: int, threads: int
) -> tuple[int, int]:
    """Threads along M and along N, by the Graph Compiler's closed form.

    cost = (k + m_s + n_s) * tiles of the busiest thread / threads that have work: the first factor
    is the data a thread streams for its part, the second its share of the tiles. After the Graph
    Compiler's split choice (Li et al., arXiv 2301.01333), with the bytes of A, B and C in place of
    fitted constants.

    Returns
    -------
    tuple of int
        (1, 1) if there is no work to share.
    """
    best, best_cost = (1, 1), math.inf
    for rows, columns in thread_grids(threads):
        if rows > m_tiles or columns > n_tiles:
            continue
        busiest = math.ceil(m_tiles / rows) * math.ceil(n_tiles / columns)
        m_part, n_part = m / rows, n / columns
        traffic = (m_part + n_part) / k + (m_part + n_part) / (m_part * n_part)
        cost = busiest * (1 + 0.05 * traffic) * (1 + FOREIGN_ROWS * (1 - 1 / columns))
        if cost < best_cost:
            best, best_cost = (rows, columns), cost
    return best


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
