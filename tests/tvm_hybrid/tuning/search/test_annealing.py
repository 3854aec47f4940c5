"""Annealing finds the best legal point; its moves stay within the space."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tvm_hybrid.tuning.regions import scores_of, space_of
from tvm_hybrid.records.record_store import ConfigSpace
from tvm_hybrid.tuning.search.cost_model import Annealing, Neighbours

SIZE = (64, 96, 128)


def annealing(seed: int = 0, **numbers: float) -> Annealing:
    made = Annealing(space_of(*SIZE), np.random.default_rng(seed))
    vars(made).update(numbers)
    return made


def test_moves_reach_all_neighbours_and_nothing_else() -> None:
    space, generator = space_of(*SIZE), np.random.default_rng(0)
    neighbours = Neighbours(space.points)
    for index in range(0, len(space), 37):
        found = neighbours.draw(np.full(2000, index), generator)
        apart = (space.points != space.points[index]).sum(axis=1)
        assert set(found.tolist()) == set(np.flatnonzero(apart == 1).tolist() or [index])


def test_every_free_knob_is_changed_as_often() -> None:
    points = np.array([[0, 0]] + [[0, y] for y in range(1, 10)] + [[1, 0]], np.int32)
    found = Neighbours(points).draw(np.zeros(6000, np.intp), np.random.default_rng(0))
    share = float((found == 10).mean())
    # 1/2 with a standard deviation of 0.0065.
    assert share == pytest.approx(0.5, abs=0.04)


def test_it_finds_the_best_in_order() -> None:
    scores = scores_of(*SIZE)
    allowed = np.ones(len(scores), bool)
    found = annealing().search(lambda indices: scores[indices], 5, allowed)
    assert scores[found[0]] == scores.max()
    assert scores[found].tolist() == sorted(scores[found], reverse=True)
    assert len(set(found)) == 5


def test_what_is_not_allowed_is_passed_through_only() -> None:
    scores = scores_of(*SIZE)
    allowed = scores < np.quantile(scores, 0.9)
    found = annealing().search(lambda indices: scores[indices], 3, allowed)
    assert scores[found[0]] == scores[allowed].max()


def test_chains_go_on_where_they_stopped_and_seeds_repeat() -> None:
    scores = scores_of(*SIZE)
    allowed = np.ones(len(scores), bool)
    runs = []
    for _ in range(2):
        search, asked = annealing(seed=3, steps=5, leap=0.0), set[int]()

        def score(indices: np.ndarray, asked: set[int] = asked) -> np.ndarray:
            asked.update(indices.tolist())
            return scores[indices]

        first = search.search(score, 4, allowed)
        assert len(asked) < len(scores)
        runs.append((first, search.search(score, 4, allowed)))
        # Chains that have climbed before start higher than random ones.
        assert scores[runs[-1][1][0]] >= scores[first[0]]
    assert runs[0] == runs[1]


def test_as_many_are_found_as_there_are() -> None:
    scores = scores_of(*SIZE)
    allowed = np.zeros(len(scores), bool)
    allowed[[4, 9]] = True
    search = annealing(chains=1, steps=1, leap=0.0)
    found = search.search(lambda indices: scores[indices], 10, allowed)
    assert sorted(found) == [4, 9]


def test_a_space_of_one_configuration() -> None:
    space = ConfigSpace(space_of(*SIZE).configs[0], ())
    search = Annealing(space, np.random.default_rng(0))
    assert search.search(lambda indices: np.zeros(len(indices)), 3, np.ones(1, bool)) == [0]
