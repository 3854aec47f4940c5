"""Blocking in plain Python: blocks cover everything, are balanced, and thread grids make sense."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tir_schedules.core.blocking import (
    Box,
    balanced,
    choose_thread_grid,
    divided,
    estimate_cycles,
    shares,
    thread_grids,
)

MACHINE = Machine("znver4", isa_named("avx512"))


@given(st.integers(1, 3000), st.integers(1, 200))
def test_balanced_pieces_cover_the_total_and_differ_by_at_most_one(total: int, most: int) -> None:
    groups = balanced(total, most)
    pieces = [(g.start + i * g.size, g.size) for g in groups for i in range(g.count)]
    assert [start for start, _ in pieces] == [
        sum(s for _, s in pieces[:i]) for i in range(len(pieces))
    ]
    assert sum(size for _, size in pieces) == total
    sizes = {size for _, size in pieces}
    assert max(sizes) <= most and max(sizes) - min(sizes) <= 1
    assert len(pieces) == -(-total // most)


@given(st.integers(1, 500), st.integers(1, 40))
def test_shares_are_as_many_as_asked_for(total: int, parts: int) -> None:
    groups = shares(total, parts)
    assert sum(g.count for g in groups) == min(parts, total)
    assert sum(g.count * g.size for g in groups) == total


def largest_part(*sizes: int) -> Callable[[Box], float]:
    """The cost of a grid: the size of the largest chunk, and a little for every thread."""
    return lambda grid: math.prod(divided(sizes, grid)) + 1e-3 * math.prod(grid)


@given(st.integers(1, 128))
def test_grids_are_as_large_as_they_get(threads: int) -> None:
    grids = [*thread_grids(threads)]
    assert len(set(grids)) == len(grids)
    for rows, columns in grids:
        assert rows * columns <= threads < min((rows + 1) * columns, rows * (columns + 1))
    exact = {(rows, threads // rows) for rows in range(1, threads + 1) if threads % rows == 0}
    assert exact <= set(grids)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 40), st.integers(1, 128))
def test_a_thread_grid_has_work_for_every_thread(
    m: int, n_vectors: int, k: int, threads: int
) -> None:
    sizes = m, n_vectors, k
    grid = choose_thread_grid(sizes, [threads], largest_part(*sizes))
    assert math.prod(grid) <= threads
    for count, total in zip(grid, sizes, strict=True):
        assert count <= total
        part = -(-total // count)
        assert -(-total // part) == count  # no thread without work


@given(st.integers(1, 128), st.sampled_from([1, 7, 16, 32, 128, 512]))
def test_no_number_of_threads_is_a_cliff(threads: int, m: int) -> None:
    """For 48 vectors the largest chunk is at most 1.5 times the mean, or the smallest possible."""
    rows, columns, _ = choose_thread_grid((m, 48, 1), [threads], largest_part(m, 48, 1))
    part = -(-m // rows) * -(-48 // columns)
    assert part <= max(1.5 * m * 48 / threads, 1) or part <= 2


def test_few_threads_where_forking_costs_more() -> None:
    def chosen(vectors: int, *threads: int) -> Box:
        sizes = 1, vectors, 1
        cost = largest_part(*sizes)
        return choose_thread_grid(sizes, threads, lambda grid: cost(grid) + 10 * math.prod(grid))

    assert chosen(100, 64, 32, 8, 4, 2) == (1, 3, 1)
    assert chosen(8, 64, 2) == (1, 1, 1)


def test_a_thread_grid_splits_the_longer_side() -> None:
    for sizes, grid in [((1, 100, 9), (1, 2, 1)), ((600, 1, 9), (2, 1, 1)), ((1, 1, 9), (1, 1, 2))]:
        assert choose_thread_grid(sizes, [2], largest_part(*sizes)) == grid


def test_estimates_know_thin_tiles_latency_and_cache_sets() -> None:
    full = estimate_cycles(96, 16, 1024, 6, 4, 1024, MACHINE)
    assert (
        estimate_cycles(96, 16, 1024, 1, 1, 1024, MACHINE) > 3 * full
    )  # one chain: an FMA's latency
    assert estimate_cycles(96, 16, 1024, 14, 2, 1024, MACHINE) > 1.2 * full  # 14 rows, 4 KB apart
    assert 1.0 <= full / (96 * 16 * 1024) < 1.01


@pytest.mark.parametrize("name", ["skylake-avx512", "cascadelake", "sapphirerapids", "znver5"])
def test_panels_of_one_width_take_fewer_cycles(name: str) -> None:
    """Products and accumulators are equal in number: 4 + 4 vectors against 3 + 3 + 2, and so on."""
    machine = Machine(name, isa_named("avx512"))
    for n_vectors in (8, 16):
        even = estimate_cycles(480, n_vectors, 512, 6, 4, 512, machine)
        assert even < estimate_cycles(480, n_vectors, 512, 8, 3, 512, machine)
    for n_vectors in (9, 15, 18):
        even = estimate_cycles(480, n_vectors, 512, 8, 3, 512, machine)
        assert even < estimate_cycles(480, n_vectors, 512, 6, 4, 512, machine)
