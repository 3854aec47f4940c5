"""What every engine of the table does: reads tokens, and takes some back. Only NumPy is needed."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

import numpy as np

from .llama import Sizes

STEPS, WARM = 10, 2  # of a turn; the first ones are not counted
PROMPTS = 2  # of a turn; the first one is not counted


def tokens(sizes: Sizes, count: int) -> list[int]:
    """So many seeded tokens; the first words of a vocabulary may have a meaning."""
    return np.random.default_rng(1).integers(3, sizes.words, count).tolist()


class Engine(ABC):
    """A model in an engine, for one sequence.

    Parameters
    ----------
    sizes : Sizes
        What the model is.

    Attributes
    ----------
    length : int
        Number of tokens whose keys and values are kept.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes, self.length = sizes, 0

    @abstractmethod
    def read(self, ids: list[int]) -> np.ndarray:
        """Scores of all words behind the last one of these tokens."""

    @abstractmethod
    def keep(self, count: int) -> None:
        """Forgets all tokens but the first ones."""

    def scores(self, count: int) -> np.ndarray:
        """Scores behind a prompt of so many tokens, to compare engines by."""
        self.keep(0)
        return self.read(tokens(self.sizes, count))

    def steps(self, past: int) -> list[float]:
        """Seconds of tokens, one by one, behind a past of so many."""
        if self.length < past:
            self.keep(0)
            self.read(tokens(self.sizes, past))
        self.keep(past)
        return [self.timed([7 + step]) for step in range(WARM + STEPS)][WARM:]

    def prompts(self, count: int) -> list[float]:
        """Seconds of prompts of so many tokens."""
        found = []
        for _ in range(PROMPTS):
            self.keep(0)
            found.append(self.timed(tokens(self.sizes, count)))
        return found[1:]

    def timed(self, ids: list[int]) -> float:
        """Seconds that reading takes; the word with the highest score is found, as in decoding."""
        start = time.perf_counter()
        self.read(ids).argmax()
        return time.perf_counter() - start
