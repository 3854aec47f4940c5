"""Tuning a list of regions: try, record, compare the best again."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from tir_schedules.config import Config
from tir_schedules.machine import Machine
from tir_schedules.region import Region
from tir_schedules.template import Template, template_for

from .interruption import Interruption
from .measure import Effort, Measurement
from .record import Record, make_record
from .records import Located, RecordStore, config_key, latest, ranked
from .search import Strategy, candidates

logger = logging.getLogger("tvm_hybrid")

FINALISTS = 3
SEARCH_EFFORT = Effort(samples=9, seconds=0.5)
FINAL_EFFORT = Effort(samples=41, seconds=2.0)


class Measurer(Protocol):
    """Measures one candidate: a worker process, or a file of former measurements."""

    def measure(
        self,
        region: Region,
        template: Template,
        config: Config,
        baseline: Config | None,
        effort: Effort,
    ) -> Measurement:
        """What came of this configuration, sampled in turns with `baseline`."""


@dataclass(frozen=True)
class Trial:
    """One step of the search, for whoever shows progress.

    Attributes
    ----------
    region, regions : int
        Number of the region, from 0, and how many there are.
    workload : str
        The region's key.
    trial, trials : int
        Number of the trial, from 1, and how many the region gets; the finals count too.
    record : Record or None
        What was measured; None for a region that begins.
    best : float or None
        Best speed-up over the default configuration so far.
    """

    region: int
    regions: int
    workload: str
    trial: int
    trials: int
    record: Record | None
    best: float | None


Progress = Callable[[Trial], None]


@dataclass(frozen=True)
class RegionResult:
    """What tuning one region found.

    Attributes
    ----------
    region : Region
        The region.
    default_us, best_us : float or None
        Median microseconds of the default and of the best configuration; None if none ran.
    best : dict or None
        Fields of the best Config.
    speedup : float
        The default's time over the best's, measured in turns; 1.0 if the default is the best.
    trials : int
        Configurations measured in this run.
    known : int
        Configurations that the file held already.
    failures : int
        Configurations that did not come out "ok".
    """

    region: Region
    default_us: float | None
    best_us: float | None
    best: dict[str, object] | None
    speedup: float
    trials: int
    known: int
    failures: int


@dataclass
class TuneResult:
    """The outcome of a tuning run; everything in it is in the record file as well."""

    regions: list[RegionResult] = field(default_factory=list)
    interrupted: bool = False

    def __str__(self) -> str:
        lines = [
            f"{result.speedup:6.3f}x  {_microseconds(result.default_us)} -> "
            f"{_microseconds(result.best_us)}  {result.region.key}"
            for result in self.regions
        ]
        return "\n".join([*lines, *(["interrupted"] if self.interrupted else [])])


def _microseconds(value: float | None) -> str:
    return "failed" if value is None else f"{value:.2f} us"


@dataclass(frozen=True)
class Plan:
    """How to search.

    Attributes
    ----------
    strategy : callable
        See `search`.
    trials : int
        Configurations of each region, the default and those known already included.
    seed : int
        Of the strategy.
    resume : bool
        Whether what the file holds is not measured again.
    finals : bool
        Whether the best are measured again, longer, at the end.
    space : callable or None
        (region, template) -> configurations; None for the template's own space.
    """

    strategy: Strategy
    trials: int = 64
    seed: int = 0
    resume: bool = True
    finals: bool = True
    space: Callable[[Region, Template], Iterable[Config]] | None = None


def tune_regions(
    regions: Sequence[Region],
    machine: Machine,
    measurer: Measurer,
    store: RecordStore,
    plan: Plan,
    progress: Progress | None = None,
) -> TuneResult:
    """Searches every region in turn; each measurement is on the disk before the next begins.

    Ctrl-C ends it and returns what was found so far.
    """
    result = TuneResult()
    with Interruption() as interruption:
        for number, region in enumerate(regions):
            search = _Search(region, machine, measurer, store, plan)
            search.position = Trial(number, len(regions), region.key, 0, plan.trials, None, None)
            search.progress = progress
            search.interruption = interruption
            try:
                search.run()
            except KeyboardInterrupt:
                result.interrupted = True
            result.regions.append(search.result())
            if result.interrupted:
                logger.warning("interrupted; %d of %d regions begun", number + 1, len(regions))
                break
    return result


class _Search:
    """One region."""

    position: Trial
    progress: Progress | None
    interruption: Interruption

    def __init__(
        self, region: Region, machine: Machine, measurer: Measurer, store: RecordStore, plan: Plan
    ) -> None:
        self.region, self.machine, self.measurer = region, machine, measurer
        self.store, self.plan = store, plan
        self.template = template_for(region.op)
        self.default = self.template.default_config(region, machine)
        self.default_key = config_key(self.default.to_dict())
        self.found: list[Located] = []
        self.baseline: Config | None = None
        self.known = 0
        self.measured = 0

    def run(self) -> None:
        if self.plan.resume:
            self.found = latest(self.store.tried(self.region, self.template, self.machine))
        held = {config_key(located.record.config): located.record for located in self.found}
        self.known = len(held)
        chosen = self._candidates()
        self.position = replace(self.position, trials=len(chosen))
        self._show(None)
        for number, config in enumerate(chosen, 1):
            self.position = replace(self.position, trial=number)
            record = held.get(config_key(config.to_dict()))
            if record is None:
                record = self._measure(config, SEARCH_EFFORT)
            if number == 1 and record.status == "ok":
                self.baseline = config
            self._show(record)
        if self.plan.finals and self.measured:
            self._finals()

    def _candidates(self) -> list[Config]:
        space = self.plan.space(self.region, self.template) if self.plan.space else None
        if space is None:
            space = self.template.space(self.region, self.machine)
        generator = random.Random(f"{self.plan.seed} {self.region.key}")
        return candidates(self.default, space, self.plan.strategy, self.plan.trials, generator)

    def _measure(self, config: Config, effort: Effort) -> Record:
        self.interruption.check()
        with self.interruption.at_once():
            measured = self.measurer.measure(
                self.region, self.template, config, self.baseline, effort
            )
        record = make_record(
            self.region,
            self.template,
            self.machine,
            config,
            measured.status,
            measured.times_us,
            measured.baseline_us,
            measured.error,
        )
        if config_key(record.config) == self.default_key and record.times_us:
            record = msgspec.structs.replace(record, baseline_us=record.median_us)
        self.store.append(record)
        self.measured += 1
        self.found.append(Located(record, ""))
        if record.status != "ok":
            logger.info("%s: %s: %s", record.status, config, record.error)
        return record

    def _finals(self) -> None:
        """Measures the few best again: the fastest of many measurements is partly luck."""
        leading = [
            self.template.config_type.from_dict(located.record.config)
            for located in ranked(self.found)[:FINALISTS]
            if config_key(located.record.config) != self.default_key
        ]
        if leading and self.baseline is not None:
            leading.append(self.baseline)
        self.position = replace(self.position, trials=self.position.trials + len(leading))
        for config in leading:
            self.position = replace(self.position, trial=self.position.trial + 1)
            self._show(self._measure(config, FINAL_EFFORT))

    def _show(self, record: Record | None) -> None:
        if self.progress is not None:
            best = ranked(self.found)[:1]
            relative = best[0].record.relative if best else None
            speedup = 1 / relative if relative else None
            self.progress(replace(self.position, record=record, best=speedup))

    def result(self) -> RegionResult:
        newest = latest(self.found)
        best = next(iter(ranked(newest)), None)
        defaults = [
            located.record
            for located in newest
            if config_key(located.record.config) == self.default_key and located.record.times_us
        ]
        relative = best.record.relative if best else None
        default_us = defaults[0].median_us if defaults else None
        if best and best.record.baseline_us:
            default_us = best.record.baseline_us  # measured in turns with the best
        return RegionResult(
            region=self.region,
            default_us=default_us,
            best_us=best.record.median_us if best else None,
            best=best.record.config if best else None,
            speedup=1 / relative if relative else 1.0,
            trials=self.measured,
            known=self.known,
            failures=sum(located.record.status != "ok" for located in newest),
        )
