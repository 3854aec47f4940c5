"""CostModel: gradient-boosted trees that order configurations by speed.

    score(s)  ~  margin(s) + sum of trees(features(s))

The margin is the prior, believed before any measurement; the trees learn its error. The objective
is to rank (order pairs of configurations of one workload) or to regress the logarithm of the score.
Parameters are those of the code of Chen et al., arXiv 1805.08166.

Of XGBoost only DMatrix, train and predict are used, which have not changed in years.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...records.record_store import ConfigSpace

Objective = Literal["rank", "regression"]

LOWEST = 1 / 16
"""Lower scores, failures too, count as equal: how bad a bad configuration is matters little."""

_OBJECTIVES = {"rank": "rank:pairwise", "regression": "reg:squarederror"}
_PAIRS = 8
"""Partners of each configuration in one ranking round."""


@dataclass
class CostModel:
    """Boosted trees over one matrix of features.

    Parameters
    ----------
    objective : str
        "rank" or "regression".
    rounds, depth : int
        Number of trees, and their depth.
    rate : float
        Learning rate.
    columns : float
        Share of the features that a split may choose from.
    rows : float
        Share of the samples that a tree is trained on.
    seed : int
        Equal seeds and data make equal models.
    """

    objective: Objective = "rank"
    rounds: int = 50
    depth: int = 3
    rate: float = 0.3
    columns: float = 1.0
    rows: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        self._trees: Any = None

    def fit(
        self,
        features: np.ndarray,
        scores: np.ndarray,
        margins: np.ndarray | None = None,
        groups: Sequence[int] = (),
    ) -> None:
        """Trains from scratch.

        Parameters
        ----------
        features : numpy.ndarray
            [samples, features].
        scores : numpy.ndarray
            [samples], see `SearchStrategy.observe`; comparable within a group.
        margins : numpy.ndarray or None
            [samples], the prior in the units of `target`.
        groups : sequence of int
            Number of consecutive samples of each workload; empty: all are of one workload.
        """
        import xgboost

        targets = target(scores)
        margins = np.zeros(len(scores)) if margins is None else np.asarray(margins, np.float64)
        sizes = list(groups) or [len(scores)]
        if self.objective == "regression":  # minus the mean of every group
            ends = np.cumsum(sizes)[:-1]
            parts = (np.split(values, ends) for values in (targets, margins))
            targets, margins = (
                np.concatenate([part - part.mean() for part in group]) for group in parts
            )
        data = _matrix(features, margins)
        data.set_label(targets)
        parameters: dict[str, Any] = {
            "objective": _OBJECTIVES[self.objective],
            "max_depth": self.depth,
            "eta": self.rate,
            "gamma": 1e-4,
            "colsample_bynode": self.columns,
            "subsample": self.rows,
            "base_score": 0.0,
            "nthread": 1,
            "seed": self.seed,
            "verbosity": 0,
        }
        if self.objective == "rank":
            parameters["lambdarank_pair_method"] = "mean"
            parameters["lambdarank_num_pair_per_sample"] = _PAIRS
            data.set_group(sizes)
        self._trees = xgboost.train(parameters, data, num_boost_round=self.rounds)

    def predict(self, features: np.ndarray, margins: np.ndarray | None = None) -> np.ndarray:
        """Predicts each sample, float64; higher is faster.

        A rank model predicts only the order; regression predicts `target` up to a constant.
        """
        found = self._trees.predict(_matrix(features, margins), output_margin=True)
        return np.asarray(found, np.float64)


def target(scores: np.ndarray) -> np.ndarray:
    """Converts scores to what a model learns: log2, with failures and very slow ones equal."""
    return np.log2(np.maximum(np.asarray(scores, np.float64), LOWEST))


def _matrix(features: np.ndarray, margins: np.ndarray | None) -> Any:
    import xgboost

    data = xgboost.DMatrix(features, nthread=1)
    if margins is not None:
        data.set_base_margin(margins)
    return data


# Parallel simulated annealing over a space of configurations, guided by a model's scores.
#
#     chains start anywhere, later where they stopped;  at each step every chain
#         moves to a neighbour: another value of one knob
#         stays with probability 1 - exp((new score - old score) / temperature)
#     the best configurations that any chain visited are kept
#
# After Chen et al., arXiv 1805.08166, section 3.3: 128 persistent chains of 500 steps, temperature
# from 1 to 0, ended early when the best configurations stop changing. Scores are scaled by their
# spread, so that a temperature means the same for every model.


Scores = Callable[[np.ndarray], np.ndarray]
"""Numbers of configurations -> their scores, float64; higher is better."""


class Annealing:
    """Persistent annealing chains on one space.

    Attributes
    ----------
    chains, steps : int
        Number of chains, and the most steps of each.
    hot, cold : float
        First and last temperature, in standard deviations of the scores at the start.
    patience : int
        Ends after this many steps without a change of the best configurations.
    leap : float
        Share of moves to a random configuration: legal ones may form islands in the grid.
    """

    chains: int = 128
    steps: int = 500
    hot: float = 1.0
    cold: float = 0.0
    patience: int = 50
    leap: float = 0.05

    def __init__(self, space: ConfigSpace, generator: np.random.Generator) -> None:
        self.generator = generator
        self.size = len(space)
        self._neighbours = Neighbours(space.points)
        self._chains: np.ndarray | None = None

    def search(self, scores: Scores, count: int, allowed: np.ndarray) -> list[int]:
        """Returns the `count` best allowed configurations that chains visited, the best first.

        Fewer only if fewer are allowed. `scores` is called once for each visited configuration;
        chains also pass through configurations that are not `allowed` [configurations].
        """
        generator = self.generator
        known = np.full(self.size, np.nan)

        def score_of(indices: np.ndarray) -> np.ndarray:
            new = np.unique(indices[np.isnan(known[indices])])
            if len(new):
                known[new] = scores(new)
            return known[indices]

        at = self._chains
        if at is None:
            at = generator.integers(self.size, size=self.chains)
        own = score_of(at)
        scale = float(np.std(own)) or 1.0
        kept, calm = np.zeros(0, np.intp), 0
        for temperature in np.linspace(self.hot, self.cold, self.steps):
            there = self._neighbours.draw(at, generator)
            leaps = generator.random(len(at)) < self.leap
            there[leaps] = generator.integers(self.size, size=int(leaps.sum()))
            theirs = score_of(there)
            odds = np.exp(np.minimum((theirs - own) / scale / (temperature + 1e-5), 0.0))
            moves = generator.random(len(at)) < odds
            at, own = np.where(moves, there, at), np.where(moves, theirs, own)
            best = _best(known, allowed, count)
            calm = calm + 1 if np.array_equal(best, kept) else 0
            kept = best
            if calm >= self.patience:
                break
        self._chains = at
        if len(kept) < count:
            score_of(np.flatnonzero(allowed))
            kept = _best(known, allowed, count)
        return [int(index) for index in kept]


class Neighbours:
    """Finds, for each configuration, those that differ in exactly one knob.

    `points` is [configurations, knobs], without equal rows.
    """

    def __init__(self, points: np.ndarray) -> None:
        count, knobs = points.shape
        self._count = count
        # For each knob: configurations sorted by group; members of a group differ in it only.
        self._members = np.zeros((knobs, count), np.intp)
        self._first = np.zeros((knobs, count), np.intp)
        self._size = np.ones((knobs, count), np.intp)
        for knob in range(knobs):
            others = np.delete(points, knob, axis=1)
            _, group = np.unique(others, axis=0, return_inverse=True)
            group = group.reshape(-1)
            sizes = np.bincount(group)
            self._members[knob] = np.argsort(group, kind="stable")
            self._first[knob] = (np.cumsum(sizes) - sizes)[group]
            self._size[knob] = sizes[group]
        self._free = (self._size > 1).T
        self._choices = self._free.sum(axis=1)

    def draw(self, indices: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Draws a neighbour of each, with every variable knob equally likely; itself if none."""
        if not len(self._members):
            return indices.copy()
        # Choose the n-th knob that has another value.
        wanted = (generator.random(len(indices)) * self._choices[indices]).astype(np.intp)
        knob = (self._free[indices].cumsum(axis=1) > wanted[:, None]).argmax(axis=1)
        size, first = self._size[knob, indices], self._first[knob, indices]
        place = first + (generator.random(len(indices)) * (size - 1)).astype(np.intp)
        found = self._members[knob, place]
        # The group holds the configuration itself; its place goes to the last member.
        itself = found == indices
        last = self._members[knob, first + size - 1]
        skipped = np.where(itself, last, found)
        return np.where(self._choices[indices] > 0, skipped, indices)


def _best(scores: np.ndarray, allowed: np.ndarray, count: int) -> np.ndarray:
    """Returns the best allowed configurations with known scores; ties are in index order."""
    found = np.flatnonzero(allowed & ~np.isnan(scores))
    if len(found) > count:
        found = found[np.argpartition(-scores[found], count - 1)[:count]]
    return found[np.lexsort((found, -scores[found]))]
