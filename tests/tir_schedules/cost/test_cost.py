"""Named terms of costs, and from how much work on a parallel region is worth it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from microkernels.isa import isa_named
from tir_schedules.core.machine import Machine
from tir_schedules.cost.cost import Cost
from tir_schedules.cost.parallel import EACH, LEAST, threads_worth, worth_parallel

FOUR = Machine("znver4", isa_named("avx512"), 4)


def test_costs_add_up_term_by_term() -> None:
    whole = Cost(compute=1.0, weights=2.0) + Cost(compute=3.0, between=4.0, barriers=5.0)
    assert whole == Cost(compute=4.0, weights=2.0, between=4.0, barriers=5.0)
    assert whole.total == 15.0


def test_changes_name_the_terms_that_differ() -> None:
    before = Cost(compute=10.0, weights=1.0, barriers=3.0)
    after = Cost(compute=10.04, weights=1.5, barriers=1.0)
    assert after.changes(before) == "weights +0.5, calls and barriers -2.0"
    assert before.changes(before) == "nothing saved"


@pytest.mark.parametrize("unit", LEAST)
def test_all_threads_share_enough_work(unit: str) -> None:
    least = LEAST[unit]
    assert worth_parallel(FOUR, **{unit: least})
    assert not worth_parallel(FOUR, **{unit: least - 1})
    assert not worth_parallel(replace(FOUR, threads=1), **{unit: least})


@pytest.mark.parametrize("unit", EACH)
def test_every_thread_gets_enough_work(unit: str) -> None:
    each = EACH[unit]
    found = [threads_worth(FOUR, **{unit: work}) for work in (1, each, 2 * each, 3.9 * each)]
    assert found == [1, 1, 2, 3]
    assert threads_worth(FOUR, **{unit: 100 * each}) == 4
