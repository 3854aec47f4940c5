"""Evolutionary search: the best configurations so far are crossed and mutated.

A steady-state genetic algorithm without a cost model: fitness is what was measured. AutoTVM's
baseline (arXiv 1805.08166, population 100) and MetaSchedule (arXiv 2207.04296, population 512,
mutations 0.85 and random ones 0.05 of all) spend thousands of trials; the population here suits
tens of them (found by simulation), the shares are MetaSchedule's.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .strategy import FAILED, SearchTask


@dataclass(frozen=True)
class EvolutionOptions:
    """Numbers of the search.

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


class EvolutionarySearch:
    """Children are drawn from the space itself, so that each is legal and new."""

    def __init__(
        self,
        task: SearchTask,
        generator: random.Random,
        options: EvolutionOptions | None = None,
    ) -> None:
        self.points = task.space.points
        self.generator = generator
        self.options = options or EvolutionOptions()
        self._new = np.ones(len(self.points), bool)
        self._scores: dict[int, float] = {}
        self._drawn = 0

    def propose(self, count: int) -> list[int]:
        """The next generation; see `SearchStrategy`."""
        # Equal scores: the smaller index first, so that the order of observations is no matter.
        alive = [index for index, score in self._scores.items() if score > FAILED]
        elite = sorted(alive, key=lambda index: (-self._scores[index], index))
        elite = elite[: self.options.population]
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

    def predicted(self) -> float | None:
        """Nothing is predicted."""
        return None

    def _child(self, elite: Sequence[int]) -> int:
        options, generator = self.options, self.generator
        begun = max(self._drawn, len(self._scores)) >= options.population
        if not elite or not begun or generator.random() < options.epsilon:
            return self._draw(self._new)
        if generator.random() >= options.mutation:
            mother, father = self.points[self._parent(elite)], self.points[self._parent(elite)]
            crossed = ((self.points == mother) | (self.points == father)).all(axis=1) & self._new
            if crossed.any():
                return self._draw(crossed)
        return self._mutant(self.points[self._parent(elite)])

    def _mutant(self, parent: np.ndarray) -> int:
        """One or two knobs changed, and of the others no more than legality asks for."""
        knobs = range(self.points.shape[1])
        count = 2 if self.generator.random() < self.options.two_knobs else 1
        chosen = self.generator.sample(knobs, min(count, len(knobs)))
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
