"""A merge pays from a share of the time on, or from a number of microseconds on."""

from __future__ import annotations

import pytest

from tir_schedules.cost.cost import Cost
from tir_schedules.cost.parallel import Least, MergeEstimate, on_threads


def estimate(least: Least, saved: float) -> MergeEstimate:
    before = Cost(compute=90.0, barriers=10.0)
    after = Cost(compute=90.0, barriers=10.0 - saved)
    return MergeEstimate(separate=before, merged=after, how=f"{on_threads(2)}:", least=least)


@pytest.mark.parametrize(
    ("least", "enough"), [(Least(), 0.0), (Least(share=0.02), 2.0), (Least(us=3.0), 3.0)]
)
def test_a_merge_pays_if_it_saves_more_than_the_least(least: Least, enough: float) -> None:
    assert estimate(least, enough + 0.01).pays
    assert not estimate(least, enough - 0.01).pays


def test_the_text_says_how_long_both_ways_take() -> None:
    found = estimate(Least(), 2.0)
    assert found.saved == pytest.approx(2.0)
    words = "on 2 threads: an estimated 98.0 us instead of 100.0 (calls and barriers -2.0)"
    assert str(found) == words
    assert on_threads(1) == "on 1 thread"
