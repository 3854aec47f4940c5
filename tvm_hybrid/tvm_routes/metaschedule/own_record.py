"""Our record as TVM's tuning record and back: a trace, our times, the record in an annotation."""

from __future__ import annotations

import math

import msgspec
from tvm import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import TuningRecord, Workload
from tvm.target import Target

from microkernels.base.errors import ConfigError, RecordError, TargetError, TvmHybridError
from microkernels.base.tvm_compat.metaschedule_database import ANNOTATION, Entry
from tir_schedules.core.template import template_for

from ...records.record import Record
from ...targets.resolve import resolve_target
from .schedule import schedule_product
from .trace import MICROSECONDS, first_line


def tuning_record(record: Record, program: IRModule) -> TuningRecord:
    """A record as TVM has it.

    Parameters
    ----------
    record : Record
        Successful.
    program : IRModule
        With the product of the record's region.

    Raises
    ------
    TvmHybridError
        If no schedule expresses it.
    """
    config = template_for(record.region.op).config_type.from_dict(record.config)
    schedule = Schedule(program)
    try:
        schedule_product(schedule, config)
        # Last: after an annotation of the root TVM may take blocks of the trace for others.
        schedule.annotate(schedule.get_sblock("root"), ANNOTATION, note_of(record))
    except TvmHybridError:
        raise
    except Exception as error:  # a primitive of TVM's that the program does not allow
        raise ConfigError(f"TVM refuses the schedule: {first_line(error)}") from error
    trace = schedule.trace
    assert trace is not None  # a schedule keeps one unless told not to
    return TuningRecord(
        trace.simplified(False),
        Workload(program),
        [time / MICROSECONDS for time in record.times_us],
        target_of(record),
        ArgInfo.from_prim_func(program["main"]),
    )


def note_of(record: Record) -> str:
    """The record as text that TVM's JSON can hold: one line of ASCII."""
    text = record.to_line().decode().strip()
    return "".join(char if char.isascii() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    """A character of a JSON string as its escape, a surrogate pair if it needs one."""
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def target_of(record: Record) -> Target:
    """TVM's target for the machine that a record was measured on.

    Raises
    ------
    ConfigError
        If TVM does not know it.
    """
    description = {"kind": "llvm", "mcpu": record.machine, "num-cores": record.threads}
    try:
        return resolve_target(description)
    except TargetError as error:
        raise ConfigError(f"the machine {record.machine}: {error}") from error


def own_record(entry: Entry) -> Record | None:
    """The record that `export` wrote along; None in a foreign trace.

    If MetaSchedule has measured the trace since, the times and the machine are its own.

    Raises
    ------
    RecordError
        If what was written along is no record any more.
    """
    note = entry.note
    if note is None:
        return None
    record = Record.from_line(note.encode())
    if record.workload != record.region.key:
        raise RecordError("a damaged record of ours: its key is not that of its region")
    if entry.seconds and not _same_times(record.times_us, entry.seconds):
        measured = [seconds * MICROSECONDS for seconds in entry.seconds]
        return msgspec.structs.replace(
            record,
            times_us=measured,
            baseline_us=None,
            confirmed=None,
            machine=str(entry.target.get("mcpu") or record.machine),
        )
    return record


def _same_times(times_us: list[float], seconds: tuple[float, ...]) -> bool:
    return len(times_us) == len(seconds) and all(
        math.isclose(time, second * MICROSECONDS, rel_tol=1e-9)
        for time, second in zip(times_us, seconds, strict=True)
    )
