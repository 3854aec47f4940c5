"""Model-guided search: a cost model learns from every trial which configuration to try next.

    prior       f = prediction learned from earlier workloads, or else the template's estimate
    repeat      simulated annealing over f finds candidates; a diverse batch of them is proposed,
                a few at random; f = prior + trees trained on the measurements

The loop of Chen et al., arXiv 1805.08166, algorithm 1, for spaces of hundreds, where every trial
counts: it refits after every few trials instead of every 64, and begins with the prior instead of
a random batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import numpy as np

from microkernels.base.errors import TvmHybridError
from microkernels.base.logs import logger
from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import has_template, template_for

from ...records.record import Record
from .cost_model import Annealing, CostModel, target
from .feature_table import Features, FeatureTable, shared_features
from .strategies import SearchTask

FEWEST = 2
"""Fewest trials to train a model on."""
TRUST = 3.0
"""Weight of a factor of 2 in the prior, in the model's units."""


class ModelSearch:
    """Proposes the configurations that the model expects to be fastest; see `SearchStrategy`.

    Values that were not tuned by simulation are the paper's.

    Attributes
    ----------
    batch : int
        Most proposals before the model is trained again, even if more are requested.
    epsilon : float
        Share of random proposals.
    patience : int
        Trials without improvement after which the model may be wrong.
    restless : float
        Share of random proposals from then on, until a better configuration is found.
    alpha : float
        Weight of diversity in a batch; see `diverse_batch`.
    first_alpha : float
        Weight of diversity while there is neither an estimate nor a measurement.
    candidates : int
        Number of candidates from annealing that a batch is chosen from.
    """

    batch: int = 2
    epsilon: float = 0.05
    patience: int = 4
    restless: float = 0.5
    alpha: float = 0.3
    first_alpha: float = 4.0
    candidates: int = 64

    def __init__(self, task: SearchTask, generator: random.Random) -> None:
        self.space = task.space
        table = FeatureTable.of(task.region, task.machine, task.space)
        self.features = table.all.values
        # The prior as log2 of speed; blind if it is neither learned nor estimated.
        estimate = estimated(table.cycles, len(task.space))
        known = transferred(task, table.shared, estimate)
        self._belief = estimate if known is None else known
        self._blind = known is None and table.cycles is None
        seed = generator.getrandbits(63)
        self._generator = np.random.default_rng(seed)
        self._model = CostModel(seed=seed & 0x7FFFFFFF)
        self._annealing = Annealing(task.space, self._generator)
        self._left = np.ones(len(task.space), bool)
        self._observed: dict[int, float] = {}
        self._best, self._stalled = 0.0, 0
        self._mean: np.ndarray | None = None
        self._worth: np.ndarray | None = None

    def propose(self, count: int) -> list[int]:
        """Returns the next batch, at most `batch` configurations; see `SearchStrategy`."""
        count = min(count, self.batch, int(self._left.sum()))
        if count <= 0:
            return []
        worth = self._worths()
        # Do not trust a model that finds nothing better.
        epsilon = self.restless if self._stalled >= self.patience else self.epsilon
        at_random = int((self._generator.random(count) < epsilon).sum())
        if not self._observed and self._left[0]:
            # Always try the default first: the template's best guess is rarely beaten by others'.
            worth = worth.copy()
            worth[0] = worth.max() + 1.0
            at_random = 0
        best = count - at_random
        candidates = self._annealing.search(
            lambda indices: worth[indices], max(count, self.candidates), self._left
        )
        alpha = self.alpha
        if self._blind and len(self._observed) < FEWEST:
            alpha = self.first_alpha
        chosen = diverse_batch(candidates, worth[candidates], self.space.points, best, alpha)
        self._left[chosen] = False
        for _ in range(at_random):
            index = int(self._generator.choice(np.flatnonzero(self._left)))
            self._left[index] = False
            chosen.append(index)
        return chosen

    def observe(self, results: Sequence[tuple[int, float]]) -> None:
        """Takes scores; the model is trained again at the next proposal."""
        for index, score in results:
            self._stalled = 0 if score > self._best else self._stalled + 1
            self._best = max(self._best, score)
            self._observed[index] = score
            self._left[index] = False
        self._mean = self._worth = None

    def predicted(self) -> float | None:
        """Best predicted score of the untried configurations; None if nothing is known or left."""
        return self._expected(self._left) if self._left.any() else None

    def prediction(self, index: int) -> float | None:
        """Predicted score of a configuration; None before the model was trained."""
        return self._expected(index)

    def _expected(self, which: int | np.ndarray) -> float | None:
        """Best predicted score, by a line with slope >= 0 fitted from predictions to scores."""
        if len(self._observed) < FEWEST:
            return None
        self._worths()
        assert self._mean is not None
        value = float(self._mean[which].max())
        tried, scores = self._measured()
        known, targets = self._mean[tried], target(scores)
        slope, middle = 0.0, known.mean()
        spread = float(((known - middle) ** 2).sum())
        if spread > 0:
            slope = max(0.0, float(((known - middle) * (targets - targets.mean())).sum()) / spread)
        return float(2.0 ** (targets.mean() + slope * (value - middle)))

    def _measured(self) -> tuple[np.ndarray, np.ndarray]:
        tried = np.array(sorted(self._observed), np.intp)
        return tried, np.array([self._observed[int(index)] for index in tried])

    def _worths(self) -> np.ndarray:
        """Score of every configuration, by which the next one is chosen."""
        if self._worth is not None:
            return self._worth
        belief = self._belief * TRUST
        # Break ties at random, different in every search, but with the default first.
        ties = self._generator.random(len(belief)) * 1e-6
        ties[0] = 1e-6
        if len(self._observed) < FEWEST:
            self._mean, self._worth = belief, belief + ties
            return self._worth
        tried, scores = self._measured()
        self._model.fit(self.features[tried], scores, belief[tried])
        self._mean = self._model.predict(self.features, belief)
        self._worth = self._mean + ties
        return self._worth


def diverse_batch(
    candidates: Sequence[int], scores: np.ndarray, points: np.ndarray, count: int, alpha: float
) -> list[int]:
    """Chooses a batch that is both good and diverse; the best candidate comes first.

        L(S) = - sum of f(s) over s in S  +  alpha * sum over knobs j of |values of j in S|

    of Chen et al., arXiv 1805.08166, section 3.4. There f is a cost; here it is a score (higher is
    better), so the first term is positive and L is maximised. Diversity is submodular, so greedily
    adding the candidate that gains most reaches 1 - 1/e of the optimum.

    Parameters
    ----------
    candidates : sequence of int
        Configurations.
    scores : numpy.ndarray
        [candidates], their scores.
    points : numpy.ndarray
        [configurations, knobs]: `ConfigSpace.points`.
    count : int
        Most configurations to choose.
    alpha : float
        Worth of a configuration that brings a new value of every knob, in standard deviations of
        the scores; 0: diversity does not count.
    """
    chosen_from = points[np.asarray(candidates, np.intp)]
    spread = float(np.std(scores))
    worth = alpha * (spread or 1.0) / max(1, chosen_from.shape[1])
    new = np.ones(chosen_from.shape, bool)
    left = np.ones(len(chosen_from), bool)
    chosen = []
    for place in range(min(count, len(chosen_from))):
        gain = scores + (worth * new.sum(axis=1) if place else 0.0)
        best = int(np.argmax(np.where(left, gain, -np.inf)))
        left[best] = False
        new &= chosen_from != chosen_from[best]
        chosen.append(int(candidates[best]))
    return chosen


# Learns from records of other workloads: the global model of arXiv 1805.08166.
#
#     f(s) = f_global(relation features of s) + f_local(all features of s)        section 4
#
# The global model learns, from features that are comparable across workloads, by how much
# configurations of earlier workloads are faster or slower than their template's estimate. Training
# sets and models are cached: one run searches many regions with one history.


WORKLOAD_FEWEST = 4
"""A workload with fewer records is not learned from: it says nothing about order."""


MOST = 512
"""Most records of a workload that are learned from: the best, and others evenly spaced by rank."""

# By simulation (recorded convolutions, products, a chain): regression trees predict how much faster
# a configuration is, so their prediction adds up with what is measured of another workload.
_TREES = partial(
    CostModel, objective="regression", depth=4, rounds=300, rate=0.1, columns=0.7, rows=0.7
)


def transferred(task: SearchTask, features: Features, estimate: np.ndarray) -> np.ndarray | None:
    """Predicts log2 of speed from earlier workloads; None if they say nothing.

    Records of another ISA, of older templates and of the searched workload itself are ignored.
    Workloads of the searched template come first; others are used only if there are none, because
    the error of an estimate depends on the template (simulated: a quarter fewer trials than with
    all workloads). `features` are the relation features, `estimate` comes from `estimated`.
    """
    history, region, machine = task.history(), task.region, task.machine
    own = [record for record in history if record.region.op == region.op]
    sets = _known(own, region, machine) or _known(history, region, machine)
    if not sets:
        return None
    model = _models.get(tuple(map(id, sets)), sets, partial(_model, sets))
    return model.predict(features.values, estimate)


def _known(history: Sequence[Record], region: Region, machine: Machine) -> list[_TrainingSet]:
    """Makes a training set for each usable workload but the region's own."""
    groups: dict[tuple[str, str, int], list[Record]] = {}
    for record in history:
        if record.workload != region.key and record.isa == machine.isa.name:
            groups.setdefault((record.workload, record.machine, record.threads), []).append(record)
    sets = []
    for records in groups.values():
        key = (machine, *map(id, records))
        found = _training_sets.get(key, records, partial(_training_set, records, machine))
        if found is not None:
            sets.append(found)
    return sets


def estimated(cycles: np.ndarray | None, count: int) -> np.ndarray:
    """Converts estimated cycles to log2 of speed, 0 for the first; all 0 without an estimate."""
    if cycles is None:
        return np.zeros(count)
    return -np.log2(np.maximum(cycles, 1e-9) / cycles[0])


@dataclass(frozen=True)
class _TrainingSet:
    """What is learned from the records of one workload."""

    features: np.ndarray
    scores: np.ndarray
    estimate: np.ndarray


def _training_set(records: Sequence[Record], machine: Machine) -> _TrainingSet | None:
    first = records[0]
    if not has_template(first.region.op):
        return None
    template = template_for(first.region.op)
    machine = dataclasses.replace(machine, threads=first.threads)
    scores = _scores(records)
    chosen = _spread(scores, MOST)
    configs: list[Config] = []
    kept: list[int] = []
    for number in chosen:
        record = records[number]
        if (record.template, record.version) == (template.name, template.version):
            with contextlib.suppress(TvmHybridError):  # of an older version of the space
                config = template.config_type.from_dict(record.config)
                template.check(record.region, config, machine.isa)
                configs.append(config)
                kept.append(number)
    if len(kept) < WORKLOAD_FEWEST:
        return None
    try:
        default = template.default_config(first.region, machine)
        features, cycles = shared_features(first.region, machine, default, configs)
    except TvmHybridError as error:
        logger.warning("records of %s are not learned from: %s", first.workload, error)
        return None
    return _TrainingSet(features.values, scores[kept], estimated(cycles, len(kept)))


def _scores(records: Sequence[Record]) -> np.ndarray:
    """Speeds relative to the best; 0 for failures."""
    times = [record.relative if record.status == "ok" else None for record in records]
    if all(time is None for time in times):
        times = [record.median_us if record.status == "ok" else None for record in records]
    speeds = np.array([1 / time if time else 0.0 for time in times])
    return speeds / (speeds.max() or 1.0)


def _spread(scores: np.ndarray, most: int) -> list[int]:
    """Chooses at most `most` records: half are the best, others are evenly spaced by rank."""
    order = np.argsort(-scores, kind="stable")
    if len(order) > most:
        rest = order[most // 2 :]
        even = np.linspace(0, len(rest) - 1, most - most // 2).round().astype(int)
        order = np.concatenate([order[: most // 2], rest[even]])
    return sorted(int(number) for number in order)


def _model(sets: Sequence[_TrainingSet]) -> CostModel:
    parts = zip(*((each.features, each.scores, each.estimate) for each in sets), strict=True)
    model = _TREES()
    features, scores, margins = map(np.concatenate, parts)
    model.fit(features, scores, margins, [len(each.scores) for each in sets])
    return model


V = TypeVar("V")


class _Recent(Generic[V]):
    """A least-recently-used cache; it keeps the sources of its keys alive, so ids stay unique."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[Hashable, ...], tuple[object, V]] = OrderedDict()

    def get(self, key: tuple[Hashable, ...], source: object, make: Callable[[], V]) -> V:
        """Returns the value of a key; makes it, from `source`, if it is missing."""
        if key not in self._kept:
            self._kept[key] = (source, make())
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key][1]


_training_sets = _Recent[_TrainingSet | None](256)
_models = _Recent[CostModel](32)
