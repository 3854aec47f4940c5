"""CostModel orders unseen points, starts from its margin, and is repeatable."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_hybrid.tuning.search.cost_model import LOWEST, CostModel, Objective, target

FEATURES: np.ndarray = np.random.default_rng(0).random((300, 6)).astype(np.float32)
SCORES: np.ndarray = np.exp2(FEATURES[:, 0] - 2 * (FEATURES[:, 1] - 0.5) ** 2)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    ranks = [np.argsort(np.argsort(values)) for values in (a, b)]
    return float(np.asarray(np.corrcoef(ranks))[0, 1])


@pytest.mark.parametrize("objective", ["rank", "regression"])
def test_it_ranks_what_it_has_not_seen(objective: Objective) -> None:
    model = CostModel(objective=objective, seed=1)
    model.fit(FEATURES[:100], SCORES[:100])
    mean = model.predict(FEATURES[100:])
    # 0.9 and more measured; an uninformed model gives 0.0 +- 0.07.
    assert rank_correlation(mean, SCORES[100:]) > 0.8


@pytest.mark.parametrize("objective", ["rank", "regression"])
def test_equal_seeds_and_data_make_equal_models(objective: Objective) -> None:
    found = []
    for _ in range(2):
        model = CostModel(objective=objective, seed=5)
        model.fit(FEATURES[:50], SCORES[:50])
        found.append(model.predict(FEATURES))
    assert np.array_equal(*found)


@pytest.mark.parametrize("objective", ["rank", "regression"])
def test_of_equal_scores_only_the_margin_is_left(objective: Objective) -> None:
    margins = np.linspace(0, 1, 40)
    model = CostModel(objective=objective)
    model.fit(FEATURES[:40], np.ones(40), np.zeros(40))
    mean = model.predict(FEATURES[:40], margins)
    assert np.diff(mean) == pytest.approx(np.diff(margins), abs=1e-5)  # float32 sums


def test_a_right_margin_leaves_nothing_to_learn() -> None:
    margins = target(SCORES)
    model = CostModel(objective="regression")
    model.fit(FEATURES[:20], SCORES[:20], margins[:20])
    mean = model.predict(FEATURES, margins)
    assert mean == pytest.approx(margins, abs=1e-5)


@pytest.mark.parametrize("objective", ["rank", "regression"])
def test_only_order_within_a_group_counts(objective: Objective) -> None:
    scores = np.concatenate([SCORES[:100], 1000 * SCORES[100:200]])
    together = CostModel(objective=objective)
    together.fit(FEATURES[:200], scores, groups=[100, 100])
    mean = together.predict(FEATURES[200:])
    assert rank_correlation(mean, SCORES[200:]) > 0.8


def test_failures_are_as_bad_as_the_slowest() -> None:
    assert target(np.array([0.0, LOWEST / 8, LOWEST, 2.0])).tolist() == [-4.0, -4.0, -4.0, 1.0]
