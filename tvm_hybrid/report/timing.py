"""Interleaved measurement: contestants take turns, so that all see the same machine."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from microkernels.errors import TvmHybridError

# ONNX Runtime's workers spin for a while after a run; the next contestant must not share a core
# with them.
PAUSE_SECONDS = 0.02
# A contestant that has used this many times its share of seconds sits out the other rounds.
PATIENCE = 4.0
# Where only the mean of several runs is known: seconds of runs in a slice.
SLICE_SECONDS = 2e-3


class ContestantError(TvmHybridError, RuntimeError):
    """A contestant is not installed, or cannot run the model; the message says which."""


class Contestant(Protocol):
    """Something that can run one inference again and again."""

    def run_for(self, seconds: float) -> list[float]:
        """Runs for about `seconds`, at least once; returns the seconds of every run."""


@dataclass(frozen=True)
class Timing:
    """What was measured of one contestant; times in microseconds of wall time."""

    median_us: float
    p90_us: float
    min_us: float
    runs: int

    @staticmethod
    def of(seconds: list[float]) -> Timing:
        """The statistics of a list of run times.

        Raises
        ------
        ValueError
            If the list is empty.
        """
        if not seconds:
            raise ValueError("no run was timed")
        ordered = sorted(seconds)
        # Nearest rank: the smallest time that at least 90% of the runs do not exceed.
        rank = -(-9 * len(ordered) // 10) - 1
        return Timing(
            median_us=statistics.median(ordered) * 1e6,
            p90_us=ordered[rank] * 1e6,
            min_us=ordered[0] * 1e6,
            runs=len(ordered),
        )


def time_calls(
    call: Callable[[], object],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Calls for about `seconds`, at least once, without garbage collection.

    Returns
    -------
    list of float
        Seconds of each call.
    """
    times = []
    collected = gc.isenabled()
    gc.disable()
    try:
        start = clock()
        end = start + seconds
        while True:
            call()
            now = clock()
            times.append(now - start)
            if now >= end:
                return times
            start = now
    finally:
        if collected:
            gc.enable()


def time_slices(measure: Callable[[], float], seconds: float) -> list[float]:
    """What slices give, one after the other for about `seconds`, at least one."""
    end = time.perf_counter() + seconds
    means = [measure()]
    while time.perf_counter() < end:
        means.append(measure())
    return means


def interleave(
    contestants: Mapping[str, Contestant],
    rounds: int,
    seconds: float,
    pause: float = PAUSE_SECONDS,
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """In every round every contestant runs for `seconds`.

    One whose single run is much longer than that takes part in fewer rounds, but in at least one.
    One that raises ContestantError is left out from there on.

    Parameters
    ----------
    contestants : mapping
        Contestants by name, in the order of their turns.
    rounds : int
        Number of turns of each.
    seconds : float
        Length of a turn.
    pause : float
        Seconds between two turns.

    Returns
    -------
    times : dict
        Seconds of every run, by contestant that did not fail.
    failures : dict
        Why, by contestant that failed.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    used = dict.fromkeys(contestants, 0.0)
    budget = PATIENCE * rounds * seconds
    failures: dict[str, str] = {}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            if used[name] > budget or name in failures:
                continue
            time.sleep(pause)
            try:
                turn = contestant.run_for(seconds)
            except ContestantError as error:
                failures[name] = str(error)
                del times[name]
                continue
            times[name] += turn
            used[name] += sum(turn)
    return times, failures
