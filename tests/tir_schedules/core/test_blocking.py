"""Blocking is plain Python: cuts cover everything, balance holds, thread grids make sense."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tir_schedules.core.blocking import balanced, choose_thread_grid, estimate_cycles, shares

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


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 64))
def test_a_thread_grid_never_has_more_threads_than_tiles(m: int, n: int, threads: int) -> None:
    rows, columns = choose_thread_grid(m, n, m * 6, n * 64, 512, threads)
    assert rows <= m and columns <= n
    assert rows * columns in (1, threads)


def test_a_thread_grid_splits_the_longer_side() -> None:
    assert choose_thread_grid(1, 100, 1, 6400, 512, 2) == (1, 2)
    assert choose_thread_grid(100, 1, 600, 64, 512, 2) == (2, 1)


def test_estimates_know_thin_tiles_latency_and_cache_sets() -> None:
    full = estimate_cycles(96, 16, 1024, 6, 4, 1024, MACHINE)
    assert (
        estimate_cycles(96, 16, 1024, 1, 1, 1024, MACHINE) > 3 * full
    )  # one chain: an FMA's latency
    assert estimate_cycles(96, 16, 1024, 14, 2, 1024, MACHINE) > 1.2 * full  # 14 rows, 4 KB apart
    assert 1.0 <= full / (96 * 16 * 1024) < 1.01
