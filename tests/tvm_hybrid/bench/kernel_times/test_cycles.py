"""Dependent instructions wait within an iteration, but not across iterations."""

from __future__ import annotations

import pytest

from tests.tvm_hybrid.bench.kernel_times.small_kernels import machine, program_of, sums
from tvm_hybrid.bench.kernel_times.nodes import Loop
from tvm_hybrid.bench.kernel_times.time import Cycles, Pace

ROWS = 64


def cycles(columns: int, **numbers: float) -> float:
    """Cycles of `ROWS` / 16 sums of `columns` products each, with a loop over rows."""
    walk = Cycles(machine().with_numbers(**numbers))
    return walk.body(program_of(sums(ROWS, columns)).body, {}).waiting


def test_short_sums_that_begin_anew_overlap() -> None:
    # A product, a load and the wait for the previous sum: four iterations take 12 entries.
    fast = cycles(4, reorder_entries=1000)
    slow = cycles(4, reorder_entries=1)
    assert fast < slow == pytest.approx(ROWS / 16 * 4 * machine().fma_latency, rel=0.2)


def test_a_long_sum_waits_for_itself() -> None:
    assert cycles(4096, reorder_entries=100, foreseen_rounds=8192) == pytest.approx(
        ROWS / 16 * 4096 * machine().fma_latency, rel=0.01
    )


def test_an_end_that_is_not_foreseen_costs_a_miss_and_lets_nothing_overlap() -> None:
    numbers = {"reorder_entries": 1000.0, "branch_miss": 20.0}
    foreseen = cycles(16, foreseen_rounds=16, **numbers)
    missed = cycles(16, foreseen_rounds=15, **numbers)
    alone = cycles(16, foreseen_rounds=16, reorder_entries=1)
    assert missed == pytest.approx(alone + ROWS / 16 * 20)
    assert foreseen < alone


def test_rows_of_one_loop_do_not_wait_for_each_other() -> None:
    (outer,) = program_of(sums(ROWS, 8)).body.children
    assert isinstance(outer, Loop) and not outer.anew
    while isinstance(outer, Loop) and outer.body.children:
        inner = outer.body.children[0]
        assert isinstance(inner, Loop)
        outer = inner
    assert outer.anew


def test_as_many_are_under_way_as_there_are_entries_for() -> None:
    pace = Pace(busy=2, waiting=12, entries=10)
    assert pace.side_by_side(0).waiting == 12
    assert pace.side_by_side(30).waiting == 4
    assert pace.side_by_side(1000).waiting == 2
