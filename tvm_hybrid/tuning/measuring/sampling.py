"""Sampling: two kernels run in turns until it is known how many times faster one of them is.

Only the quotient of two samples taken one right after the other is used: what the machine does
meanwhile to its clock and caches, it does to both. How well their median is known is told by order
statistics (Conover, "Practical Nonparametric Statistics", section 3.2): of n quotients, the true
median lies between the k-th smallest and the k-th largest unless fewer than k of them fell on one
side of it, each with probability 1/2. That holds for any distribution: one bad moment moves the
interval's ends by no more than one place.

Testing the interval after every pair, and stopping when it is narrow enough, errs a little more
often than a single interval. That is good enough for a search. Final claims are measured with a
fixed number of pairs (`accuracy` and `best_ratio` at their defaults).
"""

from __future__ import annotations

import math
import resource
import statistics
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

import msgspec

FEWEST = 3
CONFIDENCE = 0.9


class Effort(msgspec.Struct, frozen=True):
    """How much time a measurement may take.

    Attributes
    ----------
    samples : int
        Samples of the candidate at most, each in turns with one of the default configuration.
    seconds : float
        After this time no further sample is begun, once there are three. CPU time for a serial
        kernel: waiting for the CPU costs it no samples.
    accuracy : float
        No further sample once the median quotient of their times is known up to this part of it,
        with a confidence of nine in ten; 0.0: all samples are taken.
    hopeless : float
        Given up after three samples that all take so many times longer than the best.
    best_ratio : float or None
        Time of the fastest configuration so far as a multiple of the default's. A candidate that is
        slower for certain is given up; one that may be either gets all samples. None: the default
        is the best, and nothing depends on being slower than it but `hopeless`.
    processes : int
        Processes that the samples are shared among, each started for this candidate. Where code and
        buffers come to lie differs from one to the next, and decides some percent. (A candidate at
        a server always has a process of its own, and but one.)
    """

    samples: int = 9
    seconds: float = 1.0
    accuracy: float = 0.0
    hopeless: float = 2.0
    best_ratio: float | None = None
    processes: int = 1


RECORDING_EFFORT = Effort(samples=15, seconds=0.3, accuracy=0.01, hopeless=3.0)
"""For whole spaces: quotients within 1%, in a tenth of a second for a mid-sized kernel."""


class Contestant(Protocol):
    """Something that can be timed."""

    def sample(self, clock: Callable[[], float]) -> float:
        """Seconds of one call, as the mean of some."""


def sample_in_turns(
    kernel: Contestant,
    other: Contestant | None,
    effort: Effort,
    clock: Callable[[], float],
    interruptions: Callable[[], int],
) -> tuple[list[float], list[float]]:
    """Samples of both in microseconds; those of one pair have the same place.

    A pair during which another process got the CPU is taken again, but for at most a third of
    `effort.samples`: where no pair is left in peace, the median has to do.

    Parameters
    ----------
    kernel, other : Contestant, Contestant or None
        The candidate and what it is compared with.
    effort : Effort
        How long.
    clock : callable
        What time it is, in seconds.
    interruptions : callable
        How often this process lost a CPU so far.
    """
    contestants = [kernel] if other is None else [kernel, other]
    times: list[list[float]] = [[], []]
    others = times[1]
    repeats = effort.samples // 3
    end = clock() + effort.seconds
    turn = 0
    while len(times[0]) < effort.samples:
        before = interruptions()
        # In turns, and in turns who is first, so that neither drift nor order favours one.
        turn += 1
        order = range(len(contestants)) if turn % 2 else reversed(range(len(contestants)))
        taken = {i: contestants[i].sample(clock) * 1e6 for i in order}
        if interruptions() != before and repeats and clock() < end:
            repeats -= 1
            continue
        for i, value in taken.items():
            times[i].append(value)
        if len(times[0]) >= FEWEST and (clock() >= end or settled(times[0], others, effort)):
            break
    return times[0], others


def settled(times: Sequence[float], baseline: Sequence[float], effort: Effort) -> bool:
    """Whether more samples are of no use.

    Parameters
    ----------
    times, baseline : sequence of float
        Samples so far, pair by pair; no baseline: there is nothing to compare them with.
    effort : Effort
        What is wanted.
    """
    best = effort.best_ratio
    if not baseline:
        quotients, best = list(times), None
    else:
        quotients = [mine / other for mine, other in zip(times, baseline, strict=True)]
        if min(quotients) > effort.hopeless * (1.0 if best is None else best):
            return True
    if best is None and not effort.accuracy:
        return False
    interval = median_interval(quotients)
    if interval is None:
        return False
    low, high = interval
    if best is not None and high >= best:
        return low > best
    return high - low < 2 * effort.accuracy * statistics.median(quotients)


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Where the true median lies with a probability of `CONFIDENCE`; None for fewer than five."""
    rank = _rank(len(values))
    if not rank:
        return None
    ordered = sorted(values)
    return ordered[rank - 1], ordered[-rank]


@lru_cache(maxsize=256)
def _rank(count: int) -> int:
    """The largest k for which the k-th smallest and the k-th largest enclose it; 0 if none does."""
    outside, rank = 0.0, 0
    while rank < count // 2:
        outside += 2 * math.comb(count, rank) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        rank += 1
    return rank


def interruptions_of(threads: int) -> Callable[[], int]:
    """Counts how often this thread, or with several any of the process, had to leave its CPU."""
    who = resource.RUSAGE_THREAD if threads == 1 else resource.RUSAGE_SELF
    return lambda: resource.getrusage(who).ru_nivcsw


# Tests whether a candidate is faster than the default configuration, or was only lucky.
#
# Both were sampled in turns, so that each pair of samples saw the same machine. The exact sign test
# (Dixon and Mood, 1946) asks how likely so many pairs in favour of the candidate would be if in
# truth it were no faster: it needs neither normal times nor equal variances, and a few samples that
# an interrupt spoiled do not move it.
#
# What is asked is that the candidate be faster by `MARGIN`: two builds of the same code differ by
# up to about one percent with the places of their buffers and instructions, in every pair alike,
# which no test over the pairs of one build can tell from being faster.


LEVEL = 0.01
MARGIN = 0.01


def sign_test(times: Sequence[float], baseline: Sequence[float], margin: float = MARGIN) -> float:
    """The probability of so many pairs in which the candidate is faster by a margin, or of more,
    if it is not.

    Parameters
    ----------
    times, baseline : sequence of float
        Samples of the candidate and of the default, taken in turns. Without a partner they do not
        count.
    margin : float
        The share of the default's time by which the candidate must be faster.
    """
    pairs = list(zip(times, baseline, strict=False))
    faster = sum(time < (1 - margin) * other for time, other in pairs)
    if not pairs:
        return 1.0
    ways = sum(math.comb(len(pairs), count) for count in range(faster, len(pairs) + 1))
    return ways / 2 ** len(pairs)


def is_faster(times: Sequence[float], baseline: Sequence[float], tests: int = 1) -> bool:
    """Whether a candidate is faster at the level `LEVEL`, shared by so many tests (Bonferroni)."""
    return sign_test(times, baseline) < LEVEL / tests
