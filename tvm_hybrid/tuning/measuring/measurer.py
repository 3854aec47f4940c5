"""Measurer: what measures candidates: a worker process, remote machines, or recorded results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template

from .measure import Effort, Measurement


class Measurer(Protocol):
    """Measures candidates of a region."""

    def measure(
        self,
        region: Region,
        template: Template[Any],
        configs: Sequence[Config],
        baseline: Config | None,
        effort: Effort,
    ) -> Iterator[tuple[Config, Measurement]]:
        """Each candidate with what came of it, as soon as it is known, in any order.

        Parameters
        ----------
        configs : sequence of Config
            The candidates.
        baseline : Config or None
            The configuration that each is sampled in turns with.
        effort : Effort
            How long.

        Raises
        ------
        CompileError
            If no candidate of this region can be measured.
        """
