"""Random search: uniformly without replacement.

It is what every other strategy is measured against.
"""

from __future__ import annotations

import random

from .strategy import FixedOrder, SearchTask


class RandomSearch(FixedOrder):
    """More trials with the same seed begin with the same configurations."""

    def __init__(self, task: SearchTask, generator: random.Random) -> None:
        order = list(range(len(task.space)))
        generator.shuffle(order)
        super().__init__(order)
