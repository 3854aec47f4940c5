"""SearchStrategy: which configurations of a space are tried next, and the plain strategies.

A strategy proposes indices of a `ConfigSpace` and is told their scores. It never measures, so it
can search a recorded space just as well as hardware. Equal seeds and equal observations give equal
proposals.
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
"""The score of a configuration that did not run, or computed a wrong result."""


@dataclass(frozen=True)
class SearchTask:
    """A region to search.

    Attributes
    ----------
    region : Region
        The region.
    template : Template
        Builds the region's kernels.
    machine : Machine
        The machine to tune for.
    space : ConfigSpace
        The region's configurations; number 0 is the default.
    history : callable
        Reads records of other workloads, for strategies that learn from them.
    """

    region: Region
    template: Template[Any]
    machine: Machine
    space: ConfigSpace
    history: Callable[[], Sequence[Record]] = field(default=tuple, repr=False)


class SearchStrategy(Protocol):
    """Chooses the order in which a space is measured, as measurements come in."""

    def propose(self, count: int) -> list[int]:
        """Returns up to `count` configurations that were neither proposed nor observed before.

        The list is empty when the whole space was proposed or observed.
        """

    def observe(self, results: Sequence[tuple[int, float]]) -> None:
        """Takes (index, score) of configurations, whether this strategy proposed them or not.

        A score is the speed relative to the default configuration (the default's time over this
        configuration's time, measured in turns), or FAILED.
        """

    def predicted(self) -> float | None:
        """Returns the best expected score of the untried configurations; None if unknown."""
        return None


MakeStrategy = Callable[[SearchTask, random.Random], SearchStrategy]


class FixedOrder(SearchStrategy):
    """Proposes in a given order, without configurations that were observed before their turn.

    `order` holds every configuration of the space once.
    """

    def __init__(self, order: Sequence[int]) -> None:
        self._order = iter(order)
        self._seen: set[int] = set()

    def propose(self, count: int) -> list[int]:
        """Returns the next configurations of the order; see `SearchStrategy`."""
        left = (index for index in self._order if index not in self._seen)
        return list(itertools.islice(left, count))

    def observe(self, results: Sequence[tuple[int, float]]) -> None:
        """Remembers which configurations were tried; their scores change nothing."""
        self._seen.update(index for index, _ in results)


class RandomSearch(FixedOrder):
    """Random search, uniform without replacement: the baseline of every other strategy.

    A search with more trials begins with the configurations of a shorter one with equal seed.
    """

    def __init__(self, task: SearchTask, generator: random.Random) -> None:
        order = list(range(len(task.space)))
        generator.shuffle(order)
        super().__init__(order)


class GridSearch(FixedOrder):
    """Evenly spread over the space, exhaustive if there are enough trials; not random."""

    def __init__(self, task: SearchTask, generator: random.Random) -> None:
        del generator
        super().__init__(evenly_spread(len(task.space)))


def evenly_spread(count: int) -> list[int]:
    """Orders 0 to count - 1 by van der Corput's sequence in base 2.

    It reverses the bits of 0, 1, 2, ...: halves, then quarters, then eighths of the range, so that
    the number of trials need not be known in advance.
    """
    bits = max(count - 1, 0).bit_length()
    reverses = (int(f"{number:0{bits}b}"[::-1], 2) for number in range(1 << bits))
    return [index for index in reverses if index < count]


# Evolutionary search: the best configurations so far are crossed and mutated.
#
# A steady-state genetic algorithm without a cost model: the fitness is the measured score.
# AutoTVM's baseline (arXiv 1805.08166, population 100) and MetaSchedule (arXiv 2207.04296,
# population 512, mutations 0.85 and random ones 0.05 of all) spend thousands of trials. The
# population here suits tens of trials (found by simulation); the shares are MetaSchedule's.


class EvolutionarySearch(SearchStrategy):
    """Draws children from the space itself, so that each is legal and new.

    Attributes
    ----------
    population : int
        Number of random configurations before any is bred, and of the best that may be parents.
    mutation : float
        Share of children that copy a parent and change one or two knobs; the others take every
        knob from either of two parents.
    two_knobs : float
        Share of the mutations that change two knobs.
    epsilon : float
        Share of the proposals that are drawn at random.
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
        # Ties: the smaller index first, so that the order of observations does not matter.
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
        # Change the one or two chosen knobs, and as few others as legality allows.
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
        """Chooses a parent by a tournament of two."""
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
    """Raises ConfigError if the strategy does not exist, or a package that it needs is missing."""
    if name not in STRATEGIES:
        raise ConfigError(f"no search strategy {name!r}; there are {', '.join(STRATEGIES)}")
    if name == DEFAULT_STRATEGY and importlib.util.find_spec("xgboost") is None:
        raise ConfigError(
            f"the search strategy {name!r} needs xgboost, which is not installed; pip install "
            f"xgboost-cpu brings it, and {', '.join(_CLASSES)} do without"
        )


def make_strategy(name: str, task: SearchTask, seed: int) -> SearchStrategy:
    """Makes the strategy of this name for one search.

    Equal seeds and equal observations give equal proposals; each region has its own random numbers.

    Raises
    ------
    ConfigError
        If the strategy does not exist, or a package that it needs is missing.
    """
    check_strategy(name)
    if name == DEFAULT_STRATEGY:  # imported on use: it needs xgboost, which costs a second
        make: MakeStrategy = importlib.import_module(".model_search", __package__).ModelSearch
    else:
        make = _CLASSES[name]
    return make(task, random.Random(f"{seed} {task.region.key}"))
