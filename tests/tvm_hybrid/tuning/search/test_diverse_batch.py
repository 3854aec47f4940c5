"""Diverse batches: the best first, and new values of knobs if they are worth it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from tvm_hybrid.tuning.search.model_search import diverse_batch

POINTS = np.array(list(itertools.product(range(4), range(4))), np.int32)
SCORES = np.array([10.0 - x - y / 10 for x, y in POINTS])


def distinct_values(batch: Sequence[int], points: np.ndarray) -> int:
    """Sum over the knobs of the number of distinct values in a batch."""
    return sum(len(np.unique(column)) for column in points[list(batch)].T)


def test_without_a_worth_of_diversity_it_takes_the_best() -> None:
    order = np.argsort(-SCORES, kind="stable")
    assert diverse_batch(range(16), SCORES, POINTS, 5, 0.0) == order[:5].tolist()


def test_diversity_brings_more_values_of_every_knob() -> None:
    plain = diverse_batch(range(16), SCORES, POINTS, 4, 0.0)
    diverse = diverse_batch(range(16), SCORES, POINTS, 4, 20.0)
    assert distinct_values(plain, POINTS) == 1 + 4
    assert distinct_values(diverse, POINTS) == 4 + 4
    assert plain[0] == diverse[0] == int(np.argmax(SCORES))


def test_greedy_reaches_what_submodularity_promises() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        points = generator.integers(0, 4, (8, 3)).astype(np.int32)
        scores = np.zeros(8)
        batch = diverse_batch(range(8), scores, points, 3, 1.0)
        best = max(distinct_values(s, points) for s in itertools.combinations(range(8), 3))
        assert distinct_values(batch, points) >= (1 - 1 / np.e) * best


def test_candidates_are_numbers_of_the_space() -> None:
    chosen = diverse_batch([12, 3, 7], SCORES[[12, 3, 7]], POINTS, 2, 0.0)
    assert chosen == [3, 7]
    assert diverse_batch([12, 3], SCORES[[12, 3]], POINTS, 9, 1.0) == [3, 12]
    assert diverse_batch([], np.zeros(0), POINTS, 3, 1.0) == []
