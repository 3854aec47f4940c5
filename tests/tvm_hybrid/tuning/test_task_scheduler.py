"""Where trials are spent: defaults first, then where the model gains most; and when to stop."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from tvm_hybrid.tuning.task_scheduler import (
    ALL_TRIED,
    Batch,
    Halt,
    TaskScheduler,
    TaskState,
    expected_best,
    model_us,
)


def state(
    *scores: float,
    us: float = 100.0,
    weight: int = 1,
    size: int = 1000,
    predicted: float | None = None,
    ended: str = "",
) -> TaskState:
    """A task with the given scores."""
    reference = us if any(scores) else None
    return TaskState(weight, size, scores, reference, predicted, ended)


def test_every_default_comes_first() -> None:
    scheduler = TaskScheduler(trials=100)
    assert scheduler.next([state(1.0), state(), state()]) == Batch(1, 1)
    assert scheduler.next([state(1.0), state(1.0), state()]) == Batch(2, 1)


def test_then_what_takes_most_of_the_model() -> None:
    scheduler = TaskScheduler()
    slow, often, short = state(1.0), state(1.0, us=10.0, weight=40), state(1.0, us=30.0)
    assert model_us([slow, often, short]) == 100 + 400 + 30
    # Half of its time, as if it could be twice as fast.
    assert [scheduler.gain_us(task) for task in (slow, often, short)] == [50, 200, 15]
    assert scheduler.next([slow, often, short]) == Batch(1, 8)


def test_the_gradient() -> None:
    """The module's formula, computed by hand."""
    scheduler = TaskScheduler(batch=2)
    task = state(1.0, 1.25, 1.0, 2.0, 1.0, us=100, weight=3, predicted=2.5)
    # Best times after the default and both batches: 100, 80, 50; t = 2, the window is 2 batches.
    backward = (100 - 50) / 2
    forward = min(50 / (2 * 3), 50 - 100 / 2.5)
    assert scheduler.gain_us(task) == pytest.approx(3 * (0.2 * backward + 0.8 * forward))
    doubtful = dataclasses.replace(task, predicted=1.9)  # worse than the best so far
    assert scheduler.gain_us(doubtful) == pytest.approx(3 * 0.2 * backward)
    # After one batch the prediction is not trusted yet.
    early = state(1.0, 1.25, 1.0, us=100, predicted=1.0)
    assert scheduler.gain_us(early) == pytest.approx(0.2 * 20 + 0.8 * 80 / 4)


def test_what_has_settled_yields_to_what_gains() -> None:
    scheduler = TaskScheduler(batch=2)
    settled = state(*[1.0, 1.5, *[1.0] * 12], us=200, predicted=1.4)
    gaining = state(1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, us=100, predicted=1.7)
    assert scheduler.next([settled, gaining]) == Batch(1, 2)


def test_the_window_forgets() -> None:
    scheduler = TaskScheduler(batch=1)
    old = state(1.0, 2.0, *[1.0] * 3, us=100, predicted=1.0)
    assert scheduler.gain_us(old) == 0.0
    recent = state(1.0, 1.0, 2.0, *[1.0] * 2, us=100, predicted=1.0)
    assert scheduler.gain_us(recent) == pytest.approx(0.2 * 50 / 3)


def test_it_ends_when_little_is_expected() -> None:
    scheduler = TaskScheduler(batch=2, min_gain=0.01)
    done = state(*[1.0] * 9, us=100, predicted=1.005)
    halt = scheduler.next([done, done])
    assert isinstance(halt, Halt)
    assert halt == Halt("the model is expected to gain less than 1.0%")
    assert scheduler.stopped([done, done]) == [halt.reason] * 2
    promising = dataclasses.replace(done, predicted=1.05)
    assert scheduler.next([done, promising]) == Batch(1, 2)
    # The task's time is small, although it could be much faster.
    tiny = state(1.0, us=0.5)
    assert scheduler.stopped([promising, tiny]) == [None, halt.reason]
    # Every task may gain its part of the model's worthwhile gain.
    half = [state(*[1.0] * 9, us=100, predicted=1.02) for _ in range(4)]
    assert isinstance(scheduler.next(half), Batch)
    assert isinstance(TaskScheduler(batch=2, min_gain=0.0).next([done, done]), Batch)


def test_limits() -> None:
    tasks = [state(1.0, 1.2, 1.1), state(1.0)]
    assert TaskScheduler(trials=4).next(tasks) == Halt("all 4 trials are made")
    assert TaskScheduler(trials=6).next(tasks) == Batch(1, 2)
    each = TaskScheduler(trials_per_region=3)
    assert each.next(tasks) == Batch(1, 2)
    assert each.next([tasks[0]]) == Halt("3 trials of a region are made")
    assert TaskScheduler().next([]) == Halt("there is no region to tune")


def test_spaces_that_are_exhausted() -> None:
    small = state(1.0, 1.1, size=2)
    empty = state(1.0, 1.1, ended=ALL_TRIED)
    assert TaskScheduler().next([small, empty]) == Halt("every configuration was tried")
    broken = state(ended="cannot be measured")
    assert TaskScheduler().next([broken, small]) == Halt(f"cannot be measured; {ALL_TRIED}")
    assert TaskScheduler().next([small, state(1.0)]) == Batch(1, 8)


def test_regions_of_which_nothing_runs() -> None:
    scheduler = TaskScheduler(batch=2)
    broken = state(0.0)
    assert scheduler.next([state(1.0), broken]) == Batch(1, 2)  # without it there is no model
    repaired = state(0.0, 0.0, 1.0, us=100)
    assert repaired.best_us == 100 and math.isfinite(scheduler.gain_us(repaired))
    hopeless = state(*[0.0] * 7)
    assert scheduler.next([hopeless]) == Halt("none of 7 ran")


def test_what_random_draws_promise() -> None:
    assert expected_best([1.0, 1.1, 0.0, 1.2], 8) is None
    assert expected_best([1.0] * 10, 8) == 1.0
    # Exponential scores: the largest of n is H(n), about log(n) + 0.577.
    generator = random.Random(1)
    n, batch, promised, true = 64, 8, 0.0, 0.0
    for _ in range(400):
        drawn = [generator.expovariate(1.0) for _ in range(n)]
        promised += (expected_best(drawn, batch) or 0.0) - max(drawn)
        true += max([*drawn, *(generator.expovariate(1.0) for _ in range(batch))]) - max(drawn)
    # Each mean of 400 has a standard error of about 0.02.
    assert promised / 400 == pytest.approx(math.log(72 / 64), abs=0.06)
    assert true / 400 == pytest.approx(math.log(72 / 64), abs=0.08)


def test_a_search_without_predictions_goes_on_while_scores_spread() -> None:
    generator = random.Random(1)
    spread = state(1.0, *(generator.uniform(0.3, 1.5) for _ in range(16)))
    assert isinstance(TaskScheduler().next([spread]), Batch)
    flat = state(*[1.0] * 17)
    assert isinstance(TaskScheduler().next([flat]), Halt)
