"""Simulates a search from a file of records: answers come from the file, nothing is measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from microkernels.errors import RecordError
from tir_schedules.config import Config
from tir_schedules.machine import Machine
from tir_schedules.region import Region
from tir_schedules.template import Template

from .measure import Effort, Measurement
from .records import RecordStore, config_key, latest


class Replay:
    """A measurer that only knows what was measured before.

    Parameters
    ----------
    store : RecordStore
        Where from.
    machine : Machine
        Whose records: its name, ISA and threads.
    """

    def __init__(self, store: RecordStore, machine: Machine) -> None:
        self.store, self.machine = store, machine

    def space(self, region: Region, template: Template) -> Iterator[Config]:
        """The configurations that the file holds for a region."""
        for record, _ in latest(self.store.tried(region, template, self.machine)):
            yield template.config_type.from_dict(record.config)

    def measure(
        self,
        region: Region,
        template: Template,
        config: Config,
        baseline: Config | None,
        effort: Effort,
    ) -> Measurement:
        """What the file says.

        Raises
        ------
        RecordError
            If the configuration was never measured.
        """
        del baseline, effort
        wanted = config_key(config.to_dict())
        known: Iterable = latest(self.store.tried(region, template, self.machine))
        for record, _ in known:
            if config_key(record.config) == wanted:
                return Measurement(
                    status=record.status,
                    times_us=record.times_us,
                    baseline_us=record.baseline_us,
                    error=record.error,
                )
        raise RecordError(f"nothing is recorded of {config} for {region.key}")
