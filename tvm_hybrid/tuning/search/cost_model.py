"""CostModel: gradient-boosted trees that order configurations by speed.

    score(s)  ~  margin(s) + sum of trees(features(s))

The margin is what was believed before anything was measured; the trees learn what it leaves out.
The objective is to rank (pairs of configurations of one workload in the right order) or to regress
the logarithm of the score, with the parameters of Chen et al., arXiv 1805.08166, as their code has
them. An ensemble, each member trained on a bootstrap sample, also says how sure it is.

Of XGBoost only DMatrix, train and predict are used, which have not changed in years.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from microkernels.errors import ConfigError

Objective = Literal["rank", "regression"]
Acquisition = Literal["mean", "ei", "ucb"]

LOWEST = 1 / 16
"""Scores below it are alike, failures among them: how bad a bad configuration is matters little."""

_OBJECTIVES = {"rank": "rank:pairwise", "regression": "reg:squarederror"}


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
    split_gain, leaf_weight : float
        The least gain of a split, and the least weight of a leaf.
    columns : float
        Share of the features that a split may choose from.
    rows : float
        Share of the samples that a tree is trained on.
    pairs : int
        Partners of each configuration in a round, to rank.
    members : int
        Models of the ensemble; 1: a single one, trained on everything.
    """

    objective: Objective = "rank"
    rounds: int = 50
    depth: int = 3
    rate: float = 0.3
    split_gain: float = 1e-4
    leaf_weight: float = 1.0
    columns: float = 1.0
    rows: float = 1.0
    pairs: int = 8
    members: int = 1

    def __post_init__(self) -> None:
        if self.objective not in get_args(Objective):
            known = ", ".join(get_args(Objective))
            raise ConfigError(f"no objective {self.objective!r}; there are {known}")
        if min(self.rounds, self.depth, self.pairs, self.members) < 1:
            raise ConfigError(f"rounds, depth, pairs and members must be at least 1: {self}")


class CostModel:
    """Trees over one matrix of features.

    Parameters
    ----------
    options : CostModelOptions
        Its numbers.
    seed : int
        Of bootstrap samples and pairs; equal seeds and data make equal models.
    """

    def __init__(self, options: CostModelOptions | None = None, seed: int = 0) -> None:
        self.options = options or CostModelOptions()
        self.seed = seed
        self._members: list[Any] = []

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
        targets = target(scores)
        margins = np.zeros(len(scores)) if margins is None else np.asarray(margins, np.float64)
        sizes = list(groups) or [len(scores)]
        if self.options.objective == "regression":
            targets, margins = (_centred(values, sizes) for values in (targets, margins))
        self._members = []
        for member in range(self.options.members):
            generator = np.random.default_rng((self.seed, member))
            rows, counts = _sample(sizes, generator if self.options.members > 1 else None)
            self._members.append(
                self._train(features[rows], targets[rows], margins[rows], counts, member)
            )

    def predict(
        self, features: np.ndarray, margins: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation over the members; higher is faster.

        Of a rank model only the order means something; of regression it is `target` up to a
        constant.
        """
        found = np.stack(
            [member.predict(_matrix(features, margins), output_margin=True)
             for member in self._members]
        )  # fmt: skip
        return found.mean(axis=0, dtype=np.float64), found.std(axis=0, dtype=np.float64)

    def _train(
        self,
        features: np.ndarray,
        targets: np.ndarray,
        margins: np.ndarray,
        sizes: Sequence[int],
        member: int,
    ) -> Any:
        import xgboost

        options = self.options
        parameters: dict[str, Any] = {
            "objective": _OBJECTIVES[options.objective],
            "max_depth": options.depth,
            "eta": options.rate,
            "gamma": options.split_gain,
            "min_child_weight": options.leaf_weight,
            "colsample_bynode": options.columns,
            "subsample": options.rows,
            "lambda": 1.0,
            "alpha": 0.0,
            "base_score": 0.0,
            "nthread": 1,
            "seed": self.seed + member,
            "verbosity": 0,
        }
        data = _matrix(features, margins)
        data.set_label(targets)
        if options.objective == "rank":
            parameters["lambdarank_pair_method"] = "mean"
            parameters["lambdarank_num_pair_per_sample"] = options.pairs
            data.set_group(list(sizes))
        return xgboost.train(parameters, data, num_boost_round=options.rounds)


def target(scores: np.ndarray) -> np.ndarray:
    """What a model learns: log2 of the score, failures and very slow ones alike."""
    return np.log2(np.maximum(np.asarray(scores, np.float64), LOWEST))


def acquisition(
    kind: Acquisition, mean: np.ndarray, spread: np.ndarray, best: float, weight: float = 1.0
) -> np.ndarray:
    """What it is worth to try a configuration.

    Parameters
    ----------
    kind : str
        "mean"; "ei", the improvement over `best` that a normal distribution lets expect; "ucb",
        the mean and `weight` deviations more.
    mean, spread : numpy.ndarray
        As of `CostModel.predict`.
    best : float
        The best that was measured, as the mean counts.

    Raises
    ------
    ConfigError
        If there is no such kind.
    """
    if kind == "mean":
        return mean
    if kind == "ucb":
        return mean + weight * spread
    if kind != "ei":
        known = ", ".join(get_args(Acquisition))
        raise ConfigError(f"no acquisition {kind!r}; there are {known}")
    sure = np.maximum(spread, 1e-9)
    z = (mean - best) / sure
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in z])
    return (mean - best) * below + sure * density


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


def _sample(
    sizes: Sequence[int], generator: np.random.Generator | None
) -> tuple[np.ndarray, list[int]]:
    """All rows, or a bootstrap sample within every group."""
    rows, first = [], 0
    for size in sizes:
        of_group = np.arange(first, first + size)
        if generator is not None:
            of_group = np.sort(generator.choice(of_group, size))
        rows.append(of_group)
        first += size
    return np.concatenate(rows), list(sizes)
