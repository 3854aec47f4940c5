"""The base of all engines of the table: reads tokens, and forgets some. Needs only NumPy."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

import numpy as np

from .llama import Sizes

STEPS, WARM = 10, 2  # steps of a turn; the WARM first ones are not counted
PROMPTS = 2  # prompts of a turn; the first one is not counted


def tokens(sizes: Sizes, count: int) -> list[int]:
    """Seeded tokens; the first words of a vocabulary may be special and are left out."""
    return np.random.default_rng(1).integers(3, sizes.words, count).tolist()


class Engine(ABC):
    """A model in an engine, for one sequence; `length` tokens have keys and values in its cache."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes, self.length = sizes, 0

    @abstractmethod
    def read(self, ids: list[int]) -> np.ndarray:
        """Scores of all words after the last one of these tokens."""

    @abstractmethod
    def keep(self, count: int) -> None:
        """Forgets all tokens but the first `count` ones."""

    def scores(self, count: int) -> np.ndarray:
        """Scores after a prompt of `count` tokens, to compare engines by."""
        self.keep(0)
        return self.read(tokens(self.sizes, count))

    def steps(self, past: int) -> list[float]:
        """Seconds of each token, one by one, after a past of `past` tokens."""
        if self.length < past:
            self.keep(0)
            self.read(tokens(self.sizes, past))
        self.keep(past)
        return [self.timed([7 + step]) for step in range(WARM + STEPS)][WARM:]

    def prompts(self, count: int) -> list[float]:
        """Seconds of prompts of `count` tokens."""
        found = []
        for _ in range(PROMPTS):
            self.keep(0)
            found.append(self.timed(tokens(self.sizes, count)))
        return found[1:]

    def timed(self, ids: list[int]) -> float:
        """Seconds of reading tokens and of finding the word with the highest score."""
        start = time.perf_counter()
        self.read(ids).argmax()
        return time.perf_counter() - start
