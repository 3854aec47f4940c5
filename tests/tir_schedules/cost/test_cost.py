"""Named terms of costs, and the least work for which a parallel region pays."""

from __future__ import annotations

from dataclasses import replace

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tir_schedules.cost.cost import Cost
from tir_schedules.cost.parallel import halves, threads_worth

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


def test_small_work_takes_few_threads() -> None:
    many = Machine("sapphirerapids", isa_named("avx512"), 112)
    found = [threads_worth(many, us) for us in (1, 4, 30, 300, 30_000)]
    assert found == sorted(found) and found[0] == 1 and 1 < found[1] < found[3] and found[-1] == 112
    assert threads_worth(replace(many, threads=1), 1e6) == 1
    assert (
        threads_worth(FOUR, 4 * FOUR.fork_us(2)) > 1 == threads_worth(FOUR, 4 * FOUR.fork_us(2), 5)
    )
    assert [*halves(13)] == [13, 6, 3] and [*halves(1)] == []
