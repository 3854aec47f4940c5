"""CostModel: gradient-boosted trees that order configurations by speed.

    score(s)  ~  margin(s) + sum of trees(features(s))

The margin is what was believed before anything was measured; the trees learn what it leaves out.
The objective is to rank (pairs of configurations of one workload in the right order) or to regress
the logarithm of the score, with the parameters of Chen et al., arXiv 1805.08166, as their code has
them.

Of XGBoost only DMatrix, train and predict are used, which have not changed in years.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Objective = Literal["rank", "regression"]

LOWEST = 1 / 16
"""Scores below it are alike, failures among them: how bad a bad configuration is matters little."""

_OBJECTIVES = {"rank": "rank:pairwise", "regression": "reg:squarederror"}
_PAIRS = 8
"""Partners of each configuration in a round, to rank."""


@dataclass(frozen=True)
class CostModelOptions:
    """Numbers of a model.

    Attributes
    ----------
    objective : str
        "rank" or "regression".
    rounds, depth : int
        Trees, and how deep they are.
    rate : float
        What each tree adds of what it has learned.
    columns : float
        Share of the features that a split may choose from.
    rows : float
        Share of the samples that a tree is trained on.
    """

    objective: Objective = "rank"
    rounds: int = 50
    depth: int = 3
    rate: float = 0.3
    columns: float = 1.0
    rows: float = 1.0


class CostModel:
    """Trees over one matrix of features.

    Parameters
    ----------
    options : CostModelOptions
        Its numbers.
    seed : int
        Equal seeds and data make equal models.
    """

    def __init__(self, options: CostModelOptions | None = None, seed: int = 0) -> None:
        self.options = options or CostModelOptions()
        self.seed = seed
        self._trees: Any = None

    def fit(
        self,
        features: np.ndarray,
        scores: np.ndarray,
        margins: np.ndarray | None = None,
        groups: Sequence[int] = (),
    ) -> None:
        """Learns from scratch.

        Parameters
        ----------
        features : numpy.ndarray
            [samples, features].
        scores : numpy.ndarray
            [samples], as of `SearchStrategy.observe`, comparable within a group.
        margins : numpy.ndarray or None
            [samples], as `target` counts.
        groups : sequence of int
            How many consecutive samples are of one workload; empty: all of them.
        """
        import xgboost

        targets = target(scores)
        margins = np.zeros(len(scores)) if margins is None else np.asarray(margins, np.float64)
        sizes = list(groups) or [len(scores)]
        if self.options.objective == "regression":
            targets, margins = (_centred(values, sizes) for values in (targets, margins))
        data = _matrix(features, margins)
        data.set_label(targets)
        parameters = self._parameters()
        if self.options.objective == "rank":
            parameters["lambdarank_pair_method"] = "mean"
            parameters["lambdarank_num_pair_per_sample"] = _PAIRS
            data.set_group(sizes)
        self._trees = xgboost.train(parameters, data, num_boost_round=self.options.rounds)

    def predict(self, features: np.ndarray, margins: np.ndarray | None = None) -> np.ndarray:
        """What is expected of each sample, float64; higher is faster.

        Of a rank model only the order means something; of regression it is `target` up to a
        constant.
        """
        found = self._trees.predict(_matrix(features, margins), output_margin=True)
        return np.asarray(found, np.float64)

    def _parameters(self) -> dict[str, Any]:
        options = self.options
        return {
            "objective": _OBJECTIVES[options.objective],
            "max_depth": options.depth,
            "eta": options.rate,
            "gamma": 1e-4,
            "min_child_weight": 1.0,
            "colsample_bynode": options.columns,
            "subsample": options.rows,
            "lambda": 1.0,
            "alpha": 0.0,
            "base_score": 0.0,
            "nthread": 1,
            "seed": self.seed,
            "verbosity": 0,
        }


def target(scores: np.ndarray) -> np.ndarray:
    """What a model learns: log2 of the score, failures and very slow ones alike."""
    return np.log2(np.maximum(np.asarray(scores, np.float64), LOWEST))


def _matrix(features: np.ndarray, margins: np.ndarray | None) -> Any:
    import xgboost

    data = xgboost.DMatrix(features)
    if margins is not None:
        data.set_base_margin(margins)
    return data


def _centred(values: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Minus the mean of every group."""
    ends = np.cumsum(sizes)
    parts = np.split(values, ends[:-1])
    return np.concatenate([part - part.mean() for part in parts])
