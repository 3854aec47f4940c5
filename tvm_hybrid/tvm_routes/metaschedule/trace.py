"""TraceRecord: a schedule that MetaSchedule found; a line of a record file.

    {"schema": 1, "kind": "metaschedule", "workload": "matmul(...) ...", "trace": [...], ...}

No template builds it, so it is never chosen when a model is compiled; it is kept, shown, and
written back by `export`, for those who apply it with TVM's own pipeline.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import msgspec
from tvm import IRModule
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import TuningRecord, Workload

from microkernels.base.errors import ConfigError, TargetError
from microkernels.base.tvm_compat.metaschedule_database import Entry
from microkernels.isa import target_isa
from tir_schedules.core.region import Region

from ...records.record_line import RecordLine
from ...records.record_store import RecordStore
from ...targets.resolve import cpu_name, resolve_target
from .recognize import knows_constants
from .workload import workload_of

MICROSECONDS = 1e6
_TARGET = ("kind", "mcpu", "mattr", "num-cores")


class TraceRecord(RecordLine, frozen=True, kw_only=True):
    """One trace for one region's program.

    Attributes
    ----------
    schema, kind
        As in every line.
    workload, region, machine, isa, threads, times_us
        As in a `Record`; no times if it could not be run.
    constants : bool
        Whether the program knows its constants: `workload_of`.
    target : dict
        TVM's target, as the database has it.
    trace : list
        Instructions and decisions, as TVM's JSON.
    """

    KIND: ClassVar[str] = "metaschedule"
    kind: Literal["metaschedule"] = "metaschedule"
    workload: str
    region: Region
    constants: bool = False
    machine: str
    isa: str
    threads: int
    target: dict[str, Any]
    trace: list[list[Any]]
    times_us: list[float] = msgspec.field(default_factory=list)

    @property
    def median_us(self) -> float:
        """Median of the runs, in microseconds; infinite if there are none."""
        return statistics.median(self.times_us) if self.times_us else math.inf

    def tuning_record(self) -> TuningRecord:
        """The same as TVM has it.

        Raises
        ------
        ConfigError
            If TVM does not take the trace any more.
        """
        program = workload_of(self.region, self.constants)
        seconds = [time / MICROSECONDS for time in self.times_us] or None
        arguments = [info.as_json() for info in ArgInfo.from_prim_func(program["main"])]
        fields = [self.trace, seconds, self.target, arguments]
        try:
            return TuningRecord.from_json(fields, Workload(program))
        except Exception as error:
            reason = next((line for line in str(error).splitlines() if line.strip()), "")
            raise ConfigError(f"TVM does not apply its trace: {reason[:160]}") from error


def trace_record(entry: Entry, program: IRModule, region: Region) -> TraceRecord:
    """What an entry of a database says about a region.

    Raises
    ------
    ConfigError
        If its target is no CPU of ours, or the region has a constant that JSON does not hold.
    """
    if not all(math.isfinite(step.value or 0.0) for step in region.epilogue):
        raise ConfigError("an infinite constant")
    description = {name: entry.target[name] for name in _TARGET if entry.target.get(name)}
    try:
        target = resolve_target(description)
        isa = target_isa(target)
    except TargetError as error:
        raise ConfigError(f"its target: {error}") from error
    return TraceRecord(
        workload=region.key,
        region=region,
        constants=knows_constants(program),
        machine=cpu_name(target),
        isa=isa.name,
        threads=int(entry.target.get("num-cores") or 1),
        target=entry.target,
        trace=[entry.instructions, entry.decisions],
        times_us=[seconds * MICROSECONDS for seconds in entry.seconds],
    )


def traces_of(store: RecordStore) -> Iterator[tuple[TraceRecord, str]]:
    """The traces in a store's files, with FILE:LINE."""
    for file in store.files:
        yield from file.of_kind(TraceRecord)
