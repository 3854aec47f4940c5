"""Simulates a search from a file of records: answers come from the file, nothing is measured."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from microkernels.base.errors import RecordError
from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template

from ...records.read_records import read_records
from ...records.record import Record
from ...records.record_file import Located
from ...records.record_store import config_key, latest
from .measure import Effort, Measurement


class Replay:
    """A measurer that only knows what was measured before.

    Parameters
    ----------
    path : path-like
        Where from: a record file, plain or compressed by xz.
    machine : Machine
        Whose records: its name, ISA and threads.

    Raises
    ------
    RecordError
        If the file is missing or cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], machine: Machine) -> None:
        self.path, self.machine = path, machine
        self._by_workload: dict[str, list[Located]] = {}
        for item in read_records(path):
            if item.record.machine == machine.name:
                self._by_workload.setdefault(item.record.workload, []).append(item)
        self._known: dict[tuple[str, str], dict[bytes, Record]] = {}

    def knows(self, region: Region, template: Template[Any]) -> bool:
        """Whether anything is recorded of a region."""
        return bool(self._of(region, template))

    def space(self, region: Region, template: Template[Any]) -> Iterator[Config]:
        """The configurations that the file holds for a region."""
        for record in self._of(region, template).values():
            yield template.config_type.from_dict(record.config)

    def measure(
        self,
        region: Region,
        template: Template[Any],
        configs: Sequence[Config],
        baseline: Config | None,
        effort: Effort,
    ) -> Iterator[tuple[Config, Measurement]]:
        """What the file says of each.

        Raises
        ------
        RecordError
            If a configuration was never measured.
        """
        del baseline, effort
        known = self._of(region, template)
        for config in configs:
            record = known.get(config_key(config.to_dict()))
            if record is None:
                raise RecordError(f"{self.path}: nothing is recorded of {config} for {region.key}")
            yield (
                config,
                Measurement(
                    status=record.status,
                    times_us=record.times_us,
                    baseline_us=record.baseline_us,
                    error=record.error,
                ),
            )

    def _of(self, region: Region, template: Template[Any]) -> dict[bytes, Record]:
        key = (region.key, template.name)
        if key not in self._known:
            fitting = [
                item
                for item in self._by_workload.get(region.key, ())
                if item.record.fits(template, self.machine)
            ]
            self._known[key] = {config_key(record.config): record for record, _ in latest(fitting)}
        return self._known[key]
