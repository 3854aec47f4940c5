"""Grid search: the whole space, in an order whose every beginning is spread evenly over it."""

from __future__ import annotations

import random

from .strategy import FixedOrder, SearchTask


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
