"""Parallel simulated annealing over a space of configurations, guided by a model's scores.

    chains start anywhere, later where they stopped;  at each step every chain
        moves to a neighbour: another value of one knob
        stays with probability 1 - exp((new score - old score) / temperature)
    the best configurations that any chain visited are kept

After Chen et al., arXiv 1805.08166, section 3.3: 128 persistent chains of 500 steps, temperature
from 1 to 0, ended early when what is kept does not change. Scores are scaled by their spread, so
that a temperature means the same for every model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...records.config_space import ConfigSpace

Scores = Callable[[np.ndarray], np.ndarray]
"""Numbers of configurations -> their scores, float64; higher is better."""


@dataclass(frozen=True)
class AnnealingOptions:
    """Numbers of the search.

    Attributes
    ----------
    chains, steps : int
        How many walk, and how far at most.
    hot, cold : float
        First and last temperature, in standard deviations of the scores at the start.
    patience : int
        Steps without a change of what is kept after which it ends.
    leap : float
        Share of the moves that go anywhere: what is legal may be islands of the grid.
    """

    chains: int = 128
    steps: int = 500
    hot: float = 1.0
    cold: float = 0.0
    patience: int = 50
    leap: float = 0.05


class Annealing:
    """Chains on one space.

    Parameters
    ----------
    space : ConfigSpace
        Where they walk.
    generator : numpy.random.Generator
        Where randomness comes from.
    options : AnnealingOptions
        Numbers of the search.
    """

    def __init__(
        self,
        space: ConfigSpace,
        generator: np.random.Generator,
        options: AnnealingOptions | None = None,
    ) -> None:
        self.options = options or AnnealingOptions()
        self.generator = generator
        self.size = len(space)
        self._neighbours = Neighbours(space.points)
        self._chains: np.ndarray | None = None

    def search(self, scores: Scores, count: int, allowed: np.ndarray) -> list[int]:
        """The best allowed configurations that chains visited, the best first.

        Parameters
        ----------
        scores : callable
            See `Scores`; asked once for every configuration that is visited.
        count : int
            How many are wanted; as many come if so many are allowed.
        allowed : numpy.ndarray
            [configurations] bool; chains pass through the others too.
        """
        options, generator = self.options, self.generator
        known = np.full(self.size, np.nan)

        def score_of(indices: np.ndarray) -> np.ndarray:
            new = np.unique(indices[np.isnan(known[indices])])
            if len(new):
                known[new] = scores(new)
            return known[indices]

        at = self._chains
        if at is None:
            at = generator.integers(self.size, size=options.chains)
        own = score_of(at)
        scale = float(np.std(own)) or 1.0
        kept, calm = np.zeros(0, np.intp), 0
        for temperature in np.linspace(options.hot, options.cold, options.steps):
            there = self._neighbours.draw(at, generator)
            leaps = generator.random(len(at)) < options.leap
            there[leaps] = generator.integers(self.size, size=int(leaps.sum()))
            theirs = score_of(there)
            odds = np.exp(np.minimum((theirs - own) / scale / (temperature + 1e-5), 0.0))
            moves = generator.random(len(at)) < odds
            at, own = np.where(moves, there, at), np.where(moves, theirs, own)
            best = _best(known, allowed, count)
            calm = calm + 1 if np.array_equal(best, kept) else 0
            kept = best
            if calm >= options.patience:
                break
        self._chains = at
        if len(kept) < count:
            score_of(np.flatnonzero(allowed))
            kept = _best(known, allowed, count)
        return [int(index) for index in kept]


class Neighbours:
    """For every configuration those that differ in one knob; see `ConfigSpace.neighbours`.

    Parameters
    ----------
    points : numpy.ndarray
        [configurations, knobs], no two rows alike.
    """

    def __init__(self, points: np.ndarray) -> None:
        count, knobs = points.shape
        self._count = count
        # Of every knob: configurations in the order of their groups, which are alike but for it.
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
        """A neighbour of each, every knob that has another value equally likely; itself if none."""
        if not len(self._members):
            return indices.copy()
        # The n-th knob that is free to change.
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
    """The best of what is known and allowed, the best first; equals in order of their numbers."""
    found = np.flatnonzero(allowed & ~np.isnan(scores))
    if len(found) > count:
        found = found[np.argpartition(-scores[found], count - 1)[:count]]
    return found[np.lexsort((found, -scores[found]))]
