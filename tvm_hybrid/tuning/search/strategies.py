"""SearchStrategy: which configurations of a space are tried next, and the plain strategies.

A strategy proposes indices of a `ConfigSpace` and is told what became of them. It never measures,
so a recorded space serves it as well as hardware does. Equal seeds and equal observations give
equal proposals.
"""

from __future__ import annotations

import importlib.util
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from microkernels.base.errors import ConfigError
from microkernels.machines.machine import Machine
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template

from ...records.record import Record
from ...records.record_store import ConfigSpace

FAILED = 0.0
"""The score of a configuration that did not run, or was wrong."""


@dataclass(frozen=True)
class SearchTask:
    """What is searched.

    Attributes
    ----------
    region : Region
        The region.
    template : Template
        What builds it.
    machine : Machine
        What it runs on.
    space : ConfigSpace
        Its configurations; number 0 is the default.
    history : callable
        Reads earlier records of other workloads, for strategies that learn from them.
    """

    region: Region
    template: Template[Any]
    machine: Machine
    space: ConfigSpace
    history: Callable[[], Sequence[Record]] = field(default=tuple, repr=False)


class SearchStrategy(Protocol):
    """Orders a space while its measurements come in."""

    def propose(self, count: int) -> list[int]:
        """Up to `count` configurations to try next, none of them proposed or observed before.

        Empty when all of the space was.
        """

    def observe(self, results: Sequence[tuple[int, float]]) -> None:
        """Takes (index, score) of configurations, proposed by it or not.

        A score is the speed as a multiple of the default configuration's (its time over this
        one's, measured in turns), or FAILED.
        """

    def predicted(self) -> float | None:
        """The best score that is expected of what was not tried yet; None if nothing is known."""
        return None


MakeStrategy = Callable[[SearchTask, random.Random], SearchStrategy]


class FixedOrder(SearchStrategy):
    """Proposes in a given order, leaving out what was observed before its turn came.

    Parameters
    ----------
    order : sequence of int
        Every configuration of the space once.
    """

    def __init__(self, order: Sequence[int]) -> None:
        self._order = iter(order)
        self._seen: set[int] = set()

    def propose(self, count: int) -> list[int]:
        """The next ones; see `SearchStrategy`."""
        left = (index for index in self._order if index not in self._seen)
        return list(itertools.islice(left, count))

    def observe(self, results: Sequence[tuple[int, float]]) -> None:
        """Remembers which were tried; how they did changes nothing."""
        self._seen.update(index for index, _ in results)


class RandomSearch(FixedOrder):
    """Random search: uniformly without replacement.

    It is what every other strategy is measured against.

    More trials with the same seed begin with the same configurations.
    """

    def __init__(self, task: SearchTask, generator: random.Random) -> None:
        order = list(range(len(task.space)))
        generator.shuffle(order)
        super().__init__(order)


class GridSearch(FixedOrder):
    """Exhaustive if there are trials enough; uses no random numbers."""

    def __init__(self, task: SearchTask, generator: random.Random) -> None:
        del generator
        super().__init__(evenly_spread(len(task.space)))


def evenly_spread(count: int) -> list[int]:
    """0 to count - 1, ordered by van der Corput's sequence in base 2.

    It reverses the bits of 0, 1, 2, ...: halves, then quarters, then eighths of the range, so that
    the search need not know beforehand how many trials there will be.
    """
    bits = max(count - 1, 0).bit_length()
    reverses = (int(f"{number:0{bits}b}"[::-1], 2) for number in range(1 << bits))
    return [index for index in reverses if index < count]


# Evolutionary search: the best configurations so far are crossed and mutated.
#
# A steady-state genetic algorithm without a cost model: fitness is what was measured. AutoTVM's
# baseline (arXiv 1805.08166, population 100) and MetaSchedule (arXiv 2207.04296, population 512,
# mutations 0.85 and random ones 0.05 of all) spend thousands of trials; the population here suits
# tens of them (found by simulation), the shares are MetaSchedule's.


class EvolutionarySearch(SearchStrategy):
    """Children are drawn from the space itself, so that each is legal and new.

    Attributes
    ----------
    population : int
        As many are drawn at random before any are bred, and as many of the best may be parents.
    mutation : float
        Share of the children that are a parent with one or two knobs changed; the others have
        every knob from either of two parents.
    two_knobs : float
        Share of the mutations that change two.
    epsilon : float
        Share of the proposals that are drawn at random all the same.
    """

    population: int = 4
    mutation: float = 0.85
    two_knobs: float = 0.3
    epsilon: float = 0.05

    def __init__(self, task: SearchTask, generator: random.Random) -> None:
        self.points = task.space.points
        self.generator = generator
        self._new = np.ones(len(self.points), bool)
        self._scores: dict[int, float] = {}
        self._drawn = 0

    def propose(self, count: int) -> list[int]:
        """The next generation; see `SearchStrategy`."""
        # Equal scores: the smaller index first, so that the order of observations is no matter.
        alive = [index for index, score in self._scores.items() if score > FAILED]
        elite = sorted(alive, key=lambda index: (-self._scores[index], index))
        elite = elite[: self.population]
        chosen = []
        for _ in range(min(count, int(self._new.sum()))):
            index = self._child(elite)
            self._new[index] = False
            self._drawn += 1
            chosen.append(index)
        return chosen

    def observe(self, results: Sequence[tuple[int, float]]) -> None:
        """Takes scores; see `SearchStrategy`."""
        for index, score in results:
            self._scores[index] = score
            self._new[index] = False

    def _child(self, elite: Sequence[int]) -> int:
        generator = self.generator
        begun = max(self._drawn, len(self._scores)) >= self.population
        if not elite or not begun or generator.random() < self.epsilon:
            return self._draw(self._new)
        if generator.random() >= self.mutation:
            mother, father = self.points[self._parent(elite)], self.points[self._parent(elite)]
            crossed = ((self.points == mother) | (self.points == father)).all(axis=1) & self._new
            if crossed.any():
                return self._draw(crossed)
        # One or two knobs changed, and of the others no more than legality asks for.
        parent, knobs = self.points[self._parent(elite)], range(self.points.shape[1])
        count = 2 if generator.random() < self.two_knobs else 1
        chosen = generator.sample(knobs, min(count, len(knobs)))
        differs = self.points != parent
        among = self._new & differs[:, chosen].all(axis=1)
        if not among.any():
            among = self._new
        changed = differs.sum(axis=1)
        return self._draw(among & (changed == changed[among].min()))

    def _parent(self, elite: Sequence[int]) -> int:
        """The better of two: a tournament."""
        return elite[min(self.generator.randrange(len(elite)) for _ in range(2))]

    def _draw(self, among: np.ndarray) -> int:
        return int(self.generator.choice(np.flatnonzero(among)))


_CLASSES: dict[str, MakeStrategy] = {
    "evolutionary": EvolutionarySearch,
    "random": RandomSearch,
    "grid": GridSearch,
}
DEFAULT_STRATEGY = "model"
STRATEGIES = (DEFAULT_STRATEGY, *_CLASSES)


def check_strategy(name: str) -> None:
    """Raises ConfigError unless there is a strategy of that name, and what it needs is there."""
    if name not in STRATEGIES:
        raise ConfigError(f"no search strategy {name!r}; there are {', '.join(STRATEGIES)}")
    if name == DEFAULT_STRATEGY and importlib.util.find_spec("xgboost") is None:
        raise ConfigError(
            f"the search strategy {name!r} needs xgboost, which is not installed; pip install "
            f"xgboost-cpu brings it, and {', '.join(_CLASSES)} do without"
        )


def make_strategy(name: str, task: SearchTask, seed: int) -> SearchStrategy:
    """A strategy for one search.

    Parameters
    ----------
    name : str
        One of STRATEGIES.
    task : SearchTask
        What is searched.
    seed : int
        Equal seeds and equal observations give equal proposals; regions draw apart.

    Raises
    ------
    ConfigError
        If there is no such strategy, or a package that it needs is missing.
    """
    check_strategy(name)
    if name == DEFAULT_STRATEGY:  # imported on use: it needs xgboost, which costs a second
        make: MakeStrategy = importlib.import_module(".model_search", __package__).ModelSearch
    else:
        make = _CLASSES[name]
    return make(task, random.Random(f"{seed} {task.region.key}"))
