"""Interleaved measurement: contestants take turns, so that all see the same machine."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypeVar

from microkernels.base.errors import TvmHybridError

# ONNX Runtime's workers spin for a while after a run; the next contestant must not share a core
# with them.
PAUSE_SECONDS = 0.02
# A contestant that has used this multiple of its seconds skips the remaining rounds.
PATIENCE = 4.0
# Seconds of a slice of runs, for contestants that only know the mean of several runs.
SLICE_SECONDS = 2e-3

T = TypeVar("T")
# Finished turns, and all turns.
Progress = Callable[[int, int], object]


class ContestantError(TvmHybridError, RuntimeError):
    """A contestant is not installed, or cannot run the model; the message says which."""


class Contestant(Protocol):
    """Something that can run one inference repeatedly."""

    def run_for(self, seconds: float) -> list[float]:
        """Runs for about `seconds`, at least once; returns the seconds of every run."""


@dataclass(frozen=True)
class Timing:
    """Statistics of one contestant's runs; times are in microseconds of wall time.

    `median_us`, the 50th percentile, is the mean of two runs if their number is even.
    """

    median_us: float
    p90_us: float
    p95_us: float
    p99_us: float
    min_us: float
    mean_us: float
    runs: int

    @property
    def runs_per_second(self) -> float:
        """Rate of runs one after the other."""
        return 1e6 / self.mean_us

    @staticmethod
    def of(seconds: list[float]) -> Timing:
        """Computes the statistics of run times.

        Raises
        ------
        ValueError
            If the list is empty.
        """
        if not seconds:
            raise ValueError("no run was timed")
        ordered = sorted(seconds)
        p90, p95, p99 = (_percentile(ordered, percent) for percent in (90, 95, 99))
        mean = statistics.fmean(ordered)
        times = (statistics.median(ordered), p90, p95, p99, ordered[0], mean)
        median, p90, p95, p99, least, mean = (each * 1e6 for each in times)
        return Timing(median, p90, p95, p99, least, mean, len(ordered))


def _percentile(ordered: Sequence[float], percent: int) -> float:
    """Nearest rank: the smallest time that at least `percent` percent of the runs do not exceed."""
    return ordered[-(-percent * len(ordered) // 100) - 1]


def time_calls(
    call: Callable[[], object], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Calls for about `seconds`, at least once, without garbage collection.

    Returns the seconds of each call.
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
    """Repeats a measurement for about `seconds`, at least once; returns all results."""
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
    warmup: float = 0.0,
    progress: Progress = lambda done, total: None,
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Runs every contestant for `seconds` in every round.

    Parameters
    ----------
    contestants : mapping
        Contestants by name, in the order of their turns.
    rounds, seconds, pause, warmup, progress
        See `take_turns`.

    Returns
    -------
    times : dict
        Contestant that did not fail -> seconds of every run.
    failures : dict
        Contestant that failed -> why.
    """
    calls = {name: contestant.run_for for name, contestant in contestants.items()}
    turns, failures = take_turns(calls, rounds, seconds, math.fsum, pause, warmup, progress)
    return {name: list(chain.from_iterable(each)) for name, each in turns.items()}, failures


def take_turns(
    contestants: Mapping[str, Callable[[float], T]],
    rounds: int,
    seconds: float,
    cost: Callable[[T], float],
    pause: float = PAUSE_SECONDS,
    warmup: float = 0.0,
    progress: Progress = lambda done, total: None,
) -> tuple[dict[str, list[T]], dict[str, str]]:
    """Gives every contestant a turn of about `seconds` in every round.

    A contestant whose turns are much longer takes part in fewer rounds, but in at least one. One
    that raises ContestantError is left out from then on.

    Parameters
    ----------
    contestants : mapping
        Name -> function that runs one turn; the order is that of turns.
    rounds : int
        Number of turns of each.
    seconds : float
        Length of a turn.
    cost : callable
        Seconds that a turn took, from its result.
    pause : float
        Seconds between two turns.
    warmup : float
        Length of a first turn that does not count; 0 for none.
    progress : callable
        Called after each turn.

    Returns
    -------
    turns : dict
        Contestant that did not fail -> results of its turns.
    failures : dict
        Contestant that failed -> why.
    """
    turns: dict[str, list[T]] = {name: [] for name in contestants}
    used = dict.fromkeys(contestants, 0.0)
    budget = PATIENCE * rounds * seconds
    failures: dict[str, str] = {}
    lengths = [warmup] * (warmup > 0) + [seconds] * rounds
    done, total = 0, len(lengths) * len(contestants)
    for number, length in enumerate(lengths):
        counts = number >= len(lengths) - rounds
        for name, turn in contestants.items():
            if used[name] <= budget and name not in failures:
                time.sleep(pause)
                try:
                    result = turn(length)
                except ContestantError as error:
                    failures[name] = str(error)
                    del turns[name]
                else:
                    if counts:
                        turns[name].append(result)
                        used[name] += cost(result)
            done += 1
            progress(done, total)
    return turns, failures


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Formats a table as lines, with an empty line first."""
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, *rows)]
    return ["", lines[0], f"|{'---|' * len(columns)}", *lines[1:]]
