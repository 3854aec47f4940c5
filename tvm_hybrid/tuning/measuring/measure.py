"""Measures one candidate in this process: builds, compiles, checks and times it.

Used inside worker processes only, because a candidate may crash or never return.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from microkernels.base.errors import RecordError
from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template

from ...records.record import Record, Status
from ...records.record_file import Located, read_records
from ...records.record_store import config_key, latest
from .case import Case, Kernel, PreparedCase, Rotation, never_right, time_in_turns
from .sampling import Effort

__all__ = ["Bench", "Effort", "Measurement", "Report"]

Report = Callable[[str], None]


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of measuring one candidate.

    Attributes
    ----------
    status : str
        "ok", or the kind of failure.
    times_us : list of float
        Microseconds of one call, one number for each sample.
    baseline_times_us : list of float
        Microseconds of one call of the baseline; samples at equal places were taken one right after
        the other.
    baseline_us : float or None
        The median of `times_us` divided by the median quotient of the pairs. (The baseline's own
        median would be of other moments than the candidate's.)
    error : str
        Description of the failure.
    """

    status: Status
    times_us: list[float] = []
    baseline_times_us: list[float] = []
    baseline_us: float | None = None
    error: str = ""

    @property
    def ratio(self) -> float | None:
        """Time as a multiple of the baseline's; None without a baseline."""
        if not self.times_us or not self.baseline_us:
            return None
        return statistics.median(self.times_us) / self.baseline_us


class Bench(PreparedCase):
    """Measures candidates of one region in this process, one after the other."""

    def __init__(self, case: Case, template: Template[Any]) -> None:
        super().__init__(case, template)
        self.rotation, self.baseline_rotation = (Rotation(self.footprint_bytes) for _ in range(2))
        self.blank, self.common = never_right(self.region, self.expected.value), Rotation(0)
        self.baseline: tuple[Config, Kernel] | None = None

    def measure(
        self, config: Config, baseline: Config | None, effort: Effort, report: Report
    ) -> Measurement:
        """Builds, checks and times one candidate, in turns with the baseline if there is one.

        `report` is called with the name of every stage before it begins.
        """
        report("compile")
        try:
            kernel = self._kernel(config, self.rotation)
        except Exception as error:  # any failure of a candidate is a result
            return Measurement(status="compile_error", error=error_text(error))
        report("check")
        try:
            wrong = self.expected.difference(kernel.run())
            if wrong is not None:
                return Measurement(status="wrong_result", error=wrong)
            report("baseline")
            if baseline is not None and (self.baseline is None or self.baseline[0] != baseline):
                self.baseline = baseline, self._kernel(baseline, self.baseline_rotation)
            other = self.baseline[1] if baseline is not None and self.baseline else None
            report("measure")
            return measured(*time_in_turns(kernel, other, effort, self.threads))
        except Exception as error:
            return Measurement(status="runtime_error", error=error_text(error))

    def _kernel(self, config: Config, rotation: Rotation) -> Kernel:
        code, constants = self.compile(config, "candidate")
        function = code["candidate"]
        return Kernel(function, self.arrays, constants, self.blank, rotation, self.common)


def measured(times_us: Sequence[float], baseline_times_us: Sequence[float]) -> Measurement:
    """Makes the outcome of successful samples; the baseline's may be empty."""
    baseline_us = None
    if baseline_times_us:
        pairs = zip(times_us, baseline_times_us, strict=True)
        ratio = statistics.median(time / other for time, other in pairs)
        baseline_us = round(statistics.median(times_us) / ratio, 4)
    mine, others = ([round(value, 4) for value in each] for each in (times_us, baseline_times_us))
    return Measurement(
        status="ok", times_us=mine, baseline_times_us=others, baseline_us=baseline_us
    )


def joined(parts: Sequence[Measurement]) -> Measurement:
    """Joins several measurements of one candidate; returns the last one if that failed."""
    if parts[-1].status != "ok":
        return parts[-1]
    times = [time for part in parts for time in part.times_us]
    return measured(times, [time for part in parts for time in part.baseline_times_us])


def error_text(error: Exception) -> str:
    """Describes an error for a record: its type and the last line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:500]


class Candidates(NamedTuple):
    """Candidates to measure.

    Attributes
    ----------
    region : Region
        What is computed.
    template : Template
        Builds the candidates.
    configs : sequence of Config
        The candidates.
    baseline : Config or None
        The configuration that each candidate is sampled in turns with.
    effort : Effort
        How much time to spend.
    """

    region: Region
    template: Template[Any]
    configs: Sequence[Config]
    baseline: Config | None
    effort: Effort


class Measurer(Protocol):
    """Measures candidates of a region."""

    def measure(self, wanted: Candidates) -> Iterator[tuple[Config, Measurement]]:
        """Yields each candidate with its outcome as soon as it is known, in any order.

        Raises
        ------
        CompileError
            If no candidate of this region can be measured.
        """


class Replay:
    """A measurer that returns recorded measurements.

    Parameters
    ----------
    path : path-like
        A record file, plain or compressed by xz.
    machine : Machine
        Selects records by its name, ISA and threads.

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
        """Whether the file has records of a region."""
        return bool(self._of(region, template))

    def space(self, region: Region, template: Template[Any]) -> Iterator[Config]:
        """Yields the configurations that the file holds for a region."""
        for record in self._of(region, template).values():
            yield template.config_type.from_dict(record.config)

    def measure(self, wanted: Candidates) -> Iterator[tuple[Config, Measurement]]:
        """Yields the recorded outcome of each candidate.

        Raises
        ------
        RecordError
            If a configuration was never measured.
        """
        region = wanted.region
        known = self._of(region, wanted.template)
        for config in wanted.configs:
            record = known.get(config_key(config.to_dict()))
            if record is None:
                raise RecordError(f"{self.path}: nothing is recorded of {config} for {region.key}")
            fields = ("status", "times_us", "baseline_us", "error")
            yield config, Measurement(**{name: getattr(record, name) for name in fields})

    def _of(self, region: Region, template: Template[Any]) -> dict[bytes, Record]:
        key = (region.key, template.name)
        if key not in self._known:
            items = self._by_workload.get(region.key, ())
            fitting = [item for item in items if item.record.fits(template, self.machine)]
            self._known[key] = {config_key(record.config): record for record, _ in latest(fitting)}
        return self._known[key]
