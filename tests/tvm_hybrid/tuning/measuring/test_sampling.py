"""Samples are taken in turns until the median ratio is known, and no longer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from tvm_hybrid.tuning.measuring.measure import measured
from tvm_hybrid.tuning.measuring.sampling import (
    Effort,
    interruptions_of,
    median_interval,
    sample_in_turns,
    settled,
)


class World:
    """A clock that only contestants advance, and a log of their actions."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns: list[str] = []
        self.interrupted = 0

    def clock(self) -> float:
        return self.now


class Scripted:
    """Takes the given microseconds; a negative number also loses the CPU meanwhile."""

    def __init__(self, world: World, name: str, times_us: Iterable[float]) -> None:
        self.world, self.name, self.times = world, name, iter(times_us)

    def sample(self, clock: Callable[[], float]) -> float:
        begin = clock()
        time_us = next(self.times)
        self.world.now += abs(time_us) * 1e-6
        self.world.turns.append(self.name)
        self.world.interrupted += time_us < 0
        return clock() - begin


def sampled(
    times: Iterable[float], others: Iterable[float] | None, effort: Effort
) -> tuple[list[float], list[float], World]:
    world = World()
    kernel = Scripted(world, "kernel", times)
    other = None if others is None else Scripted(world, "other", others)
    found, baseline = sample_in_turns(kernel, other, effort, world.clock, lambda: world.interrupted)
    return [round(value, 6) for value in found], [round(value, 6) for value in baseline], world


def test_without_an_accuracy_all_samples_are_taken_and_nobody_is_always_first() -> None:
    times, others, world = sampled(itertools.repeat(3.0), itertools.repeat(4.0), Effort(samples=6))
    assert times == [3.0] * 6 and others == [4.0] * 6
    assert world.turns[::2].count("kernel") == 3 == world.turns[1::2].count("kernel")


def test_the_time_ends_it_after_three_samples() -> None:
    effort = Effort(samples=20, seconds=35e-6)
    assert len(sampled([5.0] * 20, [5.0] * 20, effort)[0]) == 4
    assert len(sampled([100.0] * 20, [100.0] * 20, effort)[0]) == 3


def test_what_is_hopeless_is_given_up_after_three() -> None:
    effort = Effort(samples=9, hopeless=2.0)
    assert len(sampled([21.0] * 9, [10.0] * 9, effort)[0]) == 3
    assert len(sampled([21.0, 19.0] * 5, [10.0] * 10, effort)[0]) == 9
    # Compares with the best, not with the baseline.
    fast = Effort(samples=9, hopeless=2.0, best_ratio=0.5)
    assert len(sampled([10.5] * 9, [10.0] * 9, fast)[0]) == 3


@pytest.mark.parametrize(
    ("spread", "best", "taken"),
    [
        (0.002, None, 5),  # precise enough
        (0.05, None, 15),  # never precise enough
        (0.05, 0.8, 5),  # certainly slower
        (0.002, 1.0, 15),  # undecided
        (0.002, 1.3, 5),  # certainly faster, and precise
        (0.05, 1.3, 15),  # certainly faster, but the factor is worth measuring
    ],
)
def test_when_it_is_known_enough(spread: float, best: float | None, taken: int) -> None:
    effort = Effort(samples=15, accuracy=0.01, best_ratio=best)
    wobble = itertools.cycle([1.0, 1 + spread, 1 - spread])
    times, others, _ = sampled((10 * w for w in wobble), itertools.repeat(10.0), effort)
    assert len(times) == len(others) == taken


def test_without_a_baseline_the_times_themselves_must_agree() -> None:
    effort = Effort(samples=12, accuracy=0.01, best_ratio=0.1)
    assert len(sampled(itertools.cycle([7.0, 7.01]), None, effort)[0]) == 5
    assert len(sampled(itertools.cycle([7.0, 9.0]), None, effort)[0]) == 12
    assert sampled([1.0] * 12, None, effort)[1] == []


def test_pairs_that_were_disturbed_are_taken_again_but_not_forever() -> None:
    effort = Effort(samples=6, hopeless=10.0)
    times, _, _ = sampled([1.0, -9.0, 1.0, 1.0, -9.0, 1.0, 1.0, 1.0], [1.0] * 8, effort)
    assert times == [1.0] * 6
    times, _, world = sampled([-9.0] * 30, [1.0] * 30, effort)
    assert times == [9.0] * 6 and len(world.turns) == 2 * (6 + 2)


def test_a_noisy_moment_decides_nothing() -> None:
    """Both are three times slower in a third of the pairs, and one pair is an outlier."""
    moments = [1, 1, 3, 3, 3, 1, 1, 1, 1]
    wild = [1, 1, 1, 1, 1, 1, 1, 30, 1]
    times, others, _ = sampled(
        [8.0 * m * w for m, w in zip(moments, wild, strict=True)],
        [10.0 * m for m in moments],
        Effort(samples=9),
    )
    found = measured(times, others)
    assert found.ratio == pytest.approx(0.8, rel=1e-6)  # times are rounded to 1e-6 above
    assert measured(times, []).ratio is None
    low, high = median_interval([a / b for a, b in zip(times, others, strict=True)]) or (0, 0)
    assert low == pytest.approx(0.8) == high


@pytest.mark.parametrize("count", [5, 8, 11, 15])
def test_how_often_the_interval_holds_the_median(count: int) -> None:
    """At least nine times in ten for any distribution; here one with a long tail."""
    generator = np.random.default_rng(count)
    drawn = np.exp(generator.standard_normal((4000, count)))  # the median is 1
    intervals = [median_interval(row) or (2.0, 0.0) for row in drawn.tolist()]
    held = np.mean([low <= 1 <= high for low, high in intervals])
    # 0.9 minus three standard deviations of a mean of 4000 draws.
    assert held > 0.9 - 3 * (0.9 * 0.1 / 4000) ** 0.5
    assert median_interval([1.0] * 4) is None


def test_three_equal_samples_are_not_yet_knowledge() -> None:
    effort = Effort(accuracy=0.01)
    assert not settled([1.0] * 4, [1.0] * 4, effort)
    assert settled([1.0] * 5, [1.0] * 5, effort)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_system_counts_interruptions(threads: int) -> None:
    count = interruptions_of(threads)
    before = count()
    assert 0 <= before <= count()
