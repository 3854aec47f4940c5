"""Statistics and turns, with a simulated clock: no test here depends on real time."""

import gc
from collections.abc import Callable

import pytest

from tvm_hybrid.report.timing import ContestantError, Timing, interleave, time_calls, time_slices


def clock_of(*times: float) -> Callable[[], float]:
    remaining = list(times)
    return lambda: remaining.pop(0)


def test_statistics() -> None:
    timing = Timing.of([number * 1e-6 for number in (5, 1, 2, 3, 4, 6, 7, 8, 9, 10)])
    assert timing.median_us == pytest.approx(5.5)
    assert timing.p90_us == pytest.approx(9.0)
    assert timing.p95_us == timing.p99_us == pytest.approx(10.0)
    assert timing.mean_us == pytest.approx(5.5)
    assert timing.runs_per_second == pytest.approx(1e6 / 5.5)
    assert timing.min_us == pytest.approx(1.0)
    assert timing.runs == 10


def test_slices_go_on_for_the_time_given() -> None:
    assert time_slices(lambda: 3.0, 0.0) == [3.0]
    numbers = iter(range(10**9))
    assert time_slices(lambda: next(numbers), 0.001)[:2] == [0, 1]


def test_one_run_is_its_own_percentile() -> None:
    timing = Timing.of([2e-6])
    assert timing.median_us == timing.p90_us == timing.min_us == pytest.approx(2.0)


def test_no_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="no run"):
        Timing.of([])


def test_calls_until_the_time_is_up() -> None:
    calls: list[bool] = []
    times = time_calls(lambda: calls.append(gc.isenabled()), 1.0, clock_of(0.0, 0.25, 0.75, 1.5))
    assert times == [0.25, 0.5, 0.75]
    assert calls == [False, False, False]
    assert gc.isenabled()


def test_at_least_one_call_and_collection_is_restored_after_an_error() -> None:
    assert time_calls(lambda: None, 0.0, clock_of(0.0, 3.0)) == [3.0]

    def fail() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        time_calls(fail, 1.0)
    assert gc.isenabled()


class Scripted:
    """A contestant whose turns take given times."""

    def __init__(self, log: list[str], name: str, turn: list[float], fails_at: int = -1) -> None:
        self._log, self._name, self._turn, self._left = log, name, turn, fails_at

    def run_for(self, seconds: float) -> list[float]:
        self._log.append(self._name)
        if self._left == 0:
            raise ContestantError("worker ended")
        self._left -= 1
        return list(self._turn)


def test_contestants_take_turns() -> None:
    log: list[str] = []
    times, failures = interleave(
        {"a": Scripted(log, "a", [1.0]), "b": Scripted(log, "b", [0.5, 0.5])}, 3, 1.0, pause=0
    )
    assert log == ["a", "b"] * 3
    assert times == {"a": [1.0] * 3, "b": [0.5] * 6}
    assert not failures


def test_a_warm_up_does_not_count_and_progress_is_told() -> None:
    log: list[str] = []
    seconds: list[float] = []
    told: list[tuple[int, int]] = []

    class Asked(Scripted):
        def run_for(self, length: float) -> list[float]:
            seconds.append(length)
            return super().run_for(length)

    contestants = {"a": Asked(log, "a", [1.0]), "b": Asked(log, "b", [90.0], fails_at=1)}
    times, failures = interleave(
        contestants, 2, 1.0, pause=0, warmup=0.5, progress=lambda *what: told.append(what)
    )
    assert seconds == [0.5, 0.5, 1.0, 1.0, 1.0] and told == [(n, 6) for n in range(1, 7)]
    assert times == {"a": [1.0, 1.0]} and failures == {"b": "worker ended"}


def test_a_slow_contestant_sits_out_the_later_rounds() -> None:
    log: list[str] = []
    slow = Scripted(log, "slow", [50.0])
    times, _ = interleave({"a": Scripted(log, "a", [1.0]), "slow": slow}, 3, 1.0, pause=0)
    assert log.count("slow") == 1 and log.count("a") == 3
    assert times["slow"] == [50.0]


def test_a_contestant_that_fails_is_left_out_and_named() -> None:
    log: list[str] = []
    contestants = {"a": Scripted(log, "a", [1.0]), "b": Scripted(log, "b", [1.0], fails_at=1)}
    times, failures = interleave(contestants, 3, 1.0, pause=0)
    assert times == {"a": [1.0] * 3}
    assert failures == {"b": "worker ended"}
    assert log.count("b") == 2
