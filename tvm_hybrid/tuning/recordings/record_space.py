"""Records a whole space: every configuration of a region, and the fastest ones more carefully.

The fastest of many measurements is partly luck. So configurations near the optimum are measured
again, with more samples, until the optimum itself is one of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for

from ...records.record import Record, make_record
from ...records.record_store import ConfigSpace, RecordStore, config_key, latest
from ..measuring.measure import Candidates, Measurer
from ..measuring.sampling import RECORDING_EFFORT, Effort

CAREFUL_EFFORT = Effort(samples=41, seconds=0.6, accuracy=0.003, hopeless=3.0)
NEAR = 1.03
"""Measures a configuration again if its time is at most this multiple of the optimum's."""
ROUND = 20
MOST_AGAIN = 200


@dataclass
class SpaceRecorder:
    """Measures missing configurations of a region's space in random order, then the fastest again.

    Parameters
    ----------
    region : Region
        The region.
    machine : Machine
        The machine that is measured.
    measurer : Measurer
        Measures candidates in turns with the default configuration.
    store : RecordStore
        Receives a record after each measurement; of its configurations only the fastest are
        measured again.
    progress : callable
        Receives a line now and then.
    """

    region: Region
    machine: Machine
    measurer: Measurer
    store: RecordStore
    progress: Callable[[str], object] = lambda message: None

    def __post_init__(self) -> None:
        self.template = template_for(self.region.op)
        self.space = ConfigSpace.of(self.region, self.template, self.machine)
        self.records: dict[bytes, Record] = {
            config_key(located.record.config): located.record
            for located in latest(self.store.tried(self.region, self.template, self.machine))
        }

    def run(self) -> None:
        """Measures the whole space, then its best configurations again.

        Raises
        ------
        RecordError
            If the store cannot be written.
        """
        missing = [config for config in self.space.configs if self._of(config) is None]
        default, others = missing[:1], missing[1:]
        if default and default[0] != self.space.configs[0]:
            default, others = [], missing
        random.Random(self.region.key).shuffle(others)  # so that drift favours no part of the space
        self._measure([*default, *others], RECORDING_EFFORT)
        self.progress(f"{len(self.space)} configurations, {len(missing)} of them measured now")
        again: dict[Config, float] = {}
        while len(again) < MOST_AGAIN:
            leading = self._leading(again)
            if not leading:
                break
            self._measure(leading, CAREFUL_EFFORT)
            again |= {config: self._relative(config) for config in leading}
        self.progress(f"{len(again)} measured again; the best has {1 / min(again.values()):.3f}x")

    def _leading(self, again: dict[Config, float]) -> list[Config]:
        """Fastest configurations not measured again yet, if one of them may be the fastest."""
        limit = NEAR * min(again.values(), default=float("inf"))
        others = [config for config in self.space.configs if config not in again]
        near = [config for config in others if self._relative(config) <= limit]
        return sorted(near, key=self._relative)[:ROUND]  # ties stay in the space's order

    def _of(self, config: Config) -> Record | None:
        return self.records.get(config_key(config.to_dict()))

    def _relative(self, config: Config) -> float:
        """Time as a multiple of the default's; infinite if it failed or was not measured."""
        record = self._of(config)
        relative = None if record is None else record.relative
        return float("inf") if relative is None else relative

    def _measure(self, configs: Sequence[Config], effort: Effort) -> None:
        default: Config = self.space.configs[0]
        wanted = Candidates(self.region, self.template, configs, default, effort)
        for number, (config, found) in enumerate(self.measurer.measure(wanted), 1):
            about = self.region, self.template, self.machine, config
            record = make_record(
                *about, found.status, found.times_us, found.baseline_us, error=found.error
            )
            if config == default and record.times_us:  # by definition
                record = msgspec.structs.replace(record, baseline_us=record.median_us)
            self.store.append(record)
            self.records[config_key(record.config)] = record
            if number % 100 == 0:
                self.progress(f"{number} of {len(configs)}")
