"""SearchStrategy: which configurations of a space are tried next. One file for each strategy.

A strategy proposes indices of a `ConfigSpace` and is told what became of them. It never measures,
so a recorded space serves it as well as hardware does. Equal seeds and equal observations give
equal proposals.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from microkernels.machines.machine import Machine
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template

from ....records.config_space import ConfigSpace
from ....records.record import Record

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


MakeStrategy = Callable[[SearchTask, random.Random], SearchStrategy]


class FixedOrder:
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
        chosen: list[int] = []
        while len(chosen) < count:
            index = next(self._order, None)
            if index is None:
                break
            if index not in self._seen:
                chosen.append(index)
        return chosen

    def observe(self, results: Sequence[tuple[int, float]]) -> None:
        """Remembers which were tried; how they did changes nothing."""
        self._seen.update(index for index, _ in results)

    def predicted(self) -> float | None:
        """Nothing is known of what comes."""
        return None
