"""Tests whether a candidate is faster than the default configuration, or was only lucky.

Both were sampled in turns, so that each pair of samples saw the same machine. The exact sign test
(Dixon and Mood, 1946) asks how likely so many pairs in favour of the candidate would be if in
truth it were no faster: it needs neither normal times nor equal variances, and a few samples that
an interrupt spoiled do not move it.

What is asked is that the candidate be faster by `MARGIN`: two builds of the same code differ by up
to about one percent with the places of their buffers and instructions, in every pair alike, which
no test over the pairs of one build can tell from being faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
