"""Writes records as a database of MetaSchedule, for those who compile with TVM's own pipeline.

For every region the best record becomes a trace: TVM's own program of the region, scheduled around
our microkernel by the record's configuration. The record itself goes along as an annotation, so
that it can be read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import TuningRecord, Workload
from tvm.target import Target

from microkernels.errors import ConfigError, RecordError, TargetError, TvmHybridError
from tir_schedules.template import has_template, template_for

from ..targets import resolve_target
from .metaschedule_database import ANNOTATION
from .metaschedule_schedule import schedule_product
from .metaschedule_trace import MICROSECONDS, TraceRecord, traces_of
from .metaschedule_workload import workload_of
from .metaschedule_writer import DatabaseWriter, first_line
from .record import Record
from .records import Located, RecordStore, trusted


@dataclass
class Exchange:
    """What an export or import came to.

    Attributes
    ----------
    taken : list of str
        Workload keys of the records that were written.
    known : int
        Records that were there already.
    left_out : list of (str, str)
        What was not written, and why.
    partly : list of (str, str)
        What was written for only one of the forms in which TVM compiles it (weights as they are,
        weights packed at compile time), and why not for the other.
    programs : int
        Entries written to the database; for an export.
    foreign : int
        Records that are not ours, among those taken; for an import.
    """

    taken: list[str] = field(default_factory=list)
    known: int = 0
    left_out: list[tuple[str, str]] = field(default_factory=list)
    partly: list[tuple[str, str]] = field(default_factory=list)
    programs: int = 0
    foreign: int = 0


def export_records(
    store: RecordStore, folder: Path, machine: str | None = None, threads: int | None = None
) -> Exchange:
    """Writes the best record of every region into a database; adds to it what it lacks.

    Parameters
    ----------
    store : RecordStore
        Our records.
    folder : Path
        For `MetaScheduleApplyDatabase(work_dir)`.
    machine : str or None
        Only records of this CPU (LLVM's name).
    threads : int or None
        Only records of so many threads.

    Returns
    -------
    Exchange
        `left_out` says which regions a schedule cannot express, and why.

    Raises
    ------
    RecordError
        If the records are of several machines, instruction sets or numbers of threads: TVM looks up
        by program alone, and would apply one's to the other. Or if the folder cannot be used.
    """
    best, result = _best(store, machine, threads)
    writer = DatabaseWriter(folder)
    for located in best:
        record = located.record
        _add(writer, record.workload, _forms(record), result)
    for trace in _traces(store, machine, threads):
        _add(writer, trace.workload, {"": trace.tuning_record}, result)
    return result


def _add(
    writer: DatabaseWriter,
    workload: str,
    forms: Mapping[str, Callable[[], TuningRecord]],
    result: Exchange,
) -> None:
    """Writes one record in all its forms, and notes what came of it."""
    reasons: dict[str, str] = {}
    new = []
    for form, make in forms.items():
        try:
            new.append(writer.add(make()))
        except TvmHybridError as error:
            reasons.setdefault(str(error), form)
    result.programs += sum(new)
    if not new:
        result.left_out.append((workload, "; ".join(reasons)))
        return
    if any(new):
        result.taken.append(workload)
    else:
        result.known += 1
    result.partly += [(workload, f"{form}: {why}") for why, form in reasons.items()]


def _best(
    store: RecordStore, machine: str | None, threads: int | None
) -> tuple[list[Located], Exchange]:
    """The best record of every region; why there is none of others."""
    groups: dict[str, list[Located]] = {}
    kinds: set[tuple[str, str, int]] = set()
    result = Exchange()
    for located in store:
        record = located.record
        if machine not in (None, record.machine) or threads not in (None, record.threads):
            continue
        groups.setdefault(record.workload, []).append(located)
        kinds.add((record.machine, record.isa, record.threads))
    for trace in _traces(store, machine, threads):
        kinds.add((trace.machine, trace.isa, trace.threads))
    if len(kinds) > 1:
        names = ", ".join(f"{name} ({isa}, {count} threads)" for name, isa, count in sorted(kinds))
        raise RecordError(
            f"records of {names}: TVM would apply one's to the other; choose by machine and threads"
        )
    best = []
    for workload, records in groups.items():
        current = [item for item in records if _is_current(item.record)]
        ranking = trusted(current)
        if ranking:
            best.append(ranking[0])
        else:
            reason = "no successful record" if current else "records of another template"
            result.left_out.append((workload, reason))
    return best, result


def _is_current(record: Record) -> bool:
    """Whether the template that measured it is the one that is here."""
    if not has_template(record.region.op):
        return False
    template = template_for(record.region.op)
    return (record.template, record.version) == (template.name, template.version)


def _traces(store: RecordStore, machine: str | None, threads: int | None) -> Iterator[TraceRecord]:
    """The traces of others that a store holds."""
    for trace, _ in traces_of(store):
        if machine in (None, trace.machine) and threads in (None, trace.threads):
            yield trace


def _forms(record: Record) -> dict[str, Callable[[], TuningRecord]]:
    """The forms in which TVM compiles a region, in words -> what makes the record of each."""
    if any(tensor.constant for tensor in record.region.inputs):
        return {
            "weights as they are": lambda: tuning_record(record, False),
            "weights packed at compile time": lambda: tuning_record(record, True),
        }
    return {"as it is": lambda: tuning_record(record, False)}


def tuning_record(record: Record, constants: bool) -> TuningRecord:
    """A record as TVM has it.

    Parameters
    ----------
    record : Record
        Successful.
    constants : bool
        As of `workload_of`.

    Raises
    ------
    TvmHybridError
        If no schedule expresses it.
    """
    config = template_for(record.region.op).config_type.from_dict(record.config)
    program = workload_of(record.region, constants)
    schedule = Schedule(program)
    schedule.annotate(schedule.get_sblock("root"), ANNOTATION, note_of(record))
    try:
        schedule_product(schedule, config)
    except TvmHybridError:
        raise
    except Exception as error:  # a primitive of TVM's that the program does not allow
        raise ConfigError(f"TVM refuses the schedule: {first_line(error)}") from error
    return TuningRecord(
        schedule.trace.simplified(False),
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
