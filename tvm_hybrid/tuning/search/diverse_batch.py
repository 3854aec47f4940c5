"""Choosing a batch that is both good and diverse.

    L(S) = - sum of f(s) over s in S  +  alpha * sum over knobs j of |values of j in S|

of Chen et al., arXiv 1805.08166, section 3.4, with the sign of the first term as of a cost: f is a
score here, higher is better, and L is made large. Diversity is submodular, so that adding what
gains most, one after the other, reaches 1 - 1/e of the optimum. `alpha` counts in standard
deviations of the scores, shared by all knobs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def diverse_batch(
    candidates: Sequence[int],
    scores: np.ndarray,
    points: np.ndarray,
    count: int,
    alpha: float,
) -> list[int]:
    """The chosen candidates, in the order in which they were added: the best is the first.

    Parameters
    ----------
    candidates : sequence of int
        Configurations.
    scores : numpy.ndarray
        [candidates], their scores.
    points : numpy.ndarray
        [configurations, knobs]: `ConfigSpace.points`.
    count : int
        How many at most.
    alpha : float
        What it is worth if a configuration brings a new value of every knob; 0: nothing.
    """
    of = points[np.asarray(candidates, np.intp)]
    spread = float(np.std(scores))
    worth = alpha * (spread or 1.0) / max(1, of.shape[1])
    new = np.ones(of.shape, bool)
    left = np.ones(len(of), bool)
    chosen = []
    for place in range(min(count, len(of))):
        gain = scores + (worth * new.sum(axis=1) if place else 0.0)
        best = int(np.argmax(np.where(left, gain, -np.inf)))
        left[best] = False
        new &= of != of[best]
        chosen.append(int(candidates[best]))
    return chosen
