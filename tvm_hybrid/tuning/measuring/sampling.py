"""Sampling: runs two kernels in turns until the ratio of their times is known well enough.

Only the quotient of two samples taken one right after the other is used: a change of the clock
rate or of the caches affects both. Order statistics tell how well the median quotient is known
(Conover, "Practical Nonparametric Statistics", section 3.2). Of n quotients, the true median lies
between the k-th smallest and the k-th largest unless fewer than k fell on one side of it, each with
probability 1/2. That holds for any distribution: one outlier moves an end of the interval by at
most one rank.

The interval is tested after every pair, and sampling stops once it is narrow enough. That errs a
little more often than a single test, which is good enough for a search. Final claims are measured
with a fixed number of pairs (`accuracy` and `best_ratio` at their defaults).
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
        Most samples of the candidate, each taken in turns with one of the default configuration.
    seconds : float
        No further sample is started after this time, once there are three. Serial kernels count CPU
        time, so that waiting for the CPU costs no samples.
    accuracy : float
        Sampling stops once the median quotient is known up to this relative error, at 90%
        confidence; 0.0: all samples are taken.
    hopeless : float
        Gives up after three samples that are all slower than the best by this factor.
    best_ratio : float or None
        Time of the fastest configuration so far, as a multiple of the default's. A candidate that
        is certainly slower is given up; an undecided one gets all samples. None: the default counts
        as the best, and only `hopeless` gives a candidate up.
    processes : int
        Number of fresh processes that the samples are spread over: the addresses of code and
        buffers differ between processes, and decide a few percent. (A candidate measured on a
        server always has one process to itself.)
    """

    samples: int = 9
    seconds: float = 1.0
    accuracy: float = 0.0
    hopeless: float = 2.0
    best_ratio: float | None = None
    processes: int = 1


RECORDING_EFFORT = Effort(samples=15, seconds=0.3, accuracy=0.01, hopeless=3.0)
"""For recording whole spaces: quotients within 1%, in 0.1 s for a mid-sized kernel."""


class Contestant(Protocol):
    """Something that can be timed."""

    def sample(self, clock: Callable[[], float]) -> float:
        """Returns the seconds of one call, as the mean of several."""


def sample_in_turns(
    kernel: Contestant,
    other: Contestant | None,
    effort: Effort,
    clock: Callable[[], float],
    interruptions: Callable[[], int],
) -> tuple[list[float], list[float]]:
    """Times both and returns their samples in microseconds; equal places are one pair.

    A pair during which another process got the CPU is repeated, up to a third of `effort.samples`
    times: on a machine that is always disturbed, the median must suffice. `clock` returns seconds,
    `interruptions` how often this process has lost a CPU.
    """
    contestants = [kernel] if other is None else [kernel, other]
    times: list[list[float]] = [[], []]
    others = times[1]
    repeats = effort.samples // 3
    end = clock() + effort.seconds
    turn = 0
    while len(times[0]) < effort.samples:
        before = interruptions()
        # Also alternate which one goes first, so that neither drift nor order favours one.
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
    """Whether more samples are useless; without a baseline, `times` stand for the quotients."""
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
    """Interval of the true median at confidence `CONFIDENCE`; None for fewer than five values."""
    rank = _rank(len(values))
    if not rank:
        return None
    ordered = sorted(values)
    return ordered[rank - 1], ordered[-rank]


@lru_cache(maxsize=256)
def _rank(count: int) -> int:
    """Largest k whose k-th smallest and k-th largest values enclose the median; 0 if none does."""
    outside, rank = 0.0, 0
    while rank < count // 2:
        outside += 2 * math.comb(count, rank) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        rank += 1
    return rank


def interruptions_of(threads: int) -> Callable[[], int]:
    """Counts involuntary context switches: of this thread if serial, else of the whole process."""
    who = resource.RUSAGE_THREAD if threads == 1 else resource.RUSAGE_SELF
    return lambda: resource.getrusage(who).ru_nivcsw


# Tests whether a candidate is really faster than the default configuration, or was only lucky.
#
# Both were sampled in turns, so each pair of samples saw the machine in one state. The exact sign
# test (Dixon and Mood, 1946) gives the probability of this many pairs in favour of a candidate that
# is in truth no faster. It needs neither normal times nor equal variances, and a few samples
# spoiled by an interrupt do not move it.
#
# The candidate must be faster by `MARGIN`: two builds of identical code differ by up to about one
# percent with the addresses of their buffers and instructions. Every pair of a build shares that
# difference, so no test over the pairs can tell it from a real gain.


LEVEL = 0.01
MARGIN = 0.01


def sign_test(times: Sequence[float], baseline: Sequence[float], margin: float = MARGIN) -> float:
    """Returns the p-value of the sign test: the probability of at least this many pairs in which
    the candidate is faster by `margin` (a share of the default's time), if it is not.

    Samples without a partner do not count.
    """
    pairs = list(zip(times, baseline, strict=False))
    faster = sum(time < (1 - margin) * other for time, other in pairs)
    if not pairs:
        return 1.0
    ways = sum(math.comb(len(pairs), count) for count in range(faster, len(pairs) + 1))
    return ways / 2 ** len(pairs)


def is_faster(times: Sequence[float], baseline: Sequence[float], tests: int = 1) -> bool:
    """Whether a candidate is faster at `LEVEL`, divided by the number of tests (Bonferroni)."""
    return sign_test(times, baseline) < LEVEL / tests
