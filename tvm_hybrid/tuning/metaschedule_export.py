"""Writes records as a database of MetaSchedule, for those who compile with TVM's own pipeline.

For every region the best record becomes a trace: TVM's own program of the region, scheduled around
our microkernel by the record's configuration. The record itself goes along as an annotation, so
that it can be read back.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import tvm_ffi
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord, Workload
from tvm.target import Target

from microkernels.errors import ConfigError, RecordError, TargetError, TvmHybridError
from tir_schedules.region import Region
from tir_schedules.template import has_template, template_for

from ..targets import resolve_target
from .metaschedule_database import ANNOTATION, WORKLOADS, MetaScheduleFolder, open_database
from .metaschedule_schedule import register_intrinsic, schedule_product
from .metaschedule_workload import workload_of
from .record import Record
from .records import Located, RecordStore, trusted

MICROSECONDS = 1e6


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
    written: set[tuple[str | None, str | None]] = set()
    if (folder / WORKLOADS).exists():
        present = MetaScheduleFolder(folder)
        written = {(present.hashes.get(entry.workload), entry.note) for entry in present.entries}
        for name in {name for entry in present.entries for name in entry.intrinsics}:
            register_intrinsic(name)  # TVM applies every trace that it reads
    database = open_database(folder)
    for located in best:
        record = located.record
        reasons: dict[str, str] = {}
        new = []
        for constants, form in _forms(record.region).items():
            try:
                new.append(_export(database, record, constants, written))
            except TvmHybridError as error:
                reasons.setdefault(str(error), form)
        result.programs += sum(new)
        if not new:
            result.left_out.append((record.workload, "; ".join(reasons)))
            continue
        if any(new):
            result.taken.append(record.workload)
        else:
            result.known += 1
        result.partly += [(record.workload, f"{form}: {why}") for why, form in reasons.items()]
    return result


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


def _forms(region: Region) -> dict[bool, str]:
    """Whether the program knows its constants -> that form in words."""
    if any(tensor.constant for tensor in region.inputs):
        return {False: "weights as they are", True: "weights packed at compile time"}
    return {False: "as it is"}


def _export(
    database: JSONDatabase,
    record: Record,
    constants: bool,
    written: set[tuple[str | None, str | None]],
) -> bool:
    """Writes one record, for one form of its region's program; False if it is there already.

    Raises
    ------
    TvmHybridError
        If it cannot be expressed.
    """
    config = template_for(record.region.op).config_type.from_dict(record.config)
    program = workload_of(record.region, constants)
    note = note_of(record)
    schedule = Schedule(program)
    schedule.annotate(schedule.get_sblock("root"), ANNOTATION, note)
    try:
        schedule_product(schedule, config)
    except TvmHybridError:
        raise
    except Exception as error:  # a primitive of TVM's that the program does not allow
        raise ConfigError(f"TVM refuses the schedule: {_first_line(error)}") from error
    target = target_of(record)
    seconds = [time / MICROSECONDS for time in record.times_us]
    arguments = ArgInfo.from_prim_func(program["main"])
    trace = schedule.trace.simplified(False)
    _check_readable(TuningRecord(trace, Workload(program), seconds, target, arguments))
    workload = database.commit_workload(program)
    if (str(workload.as_json()[0]), note) in written:
        return False
    database.commit_tuning_record(TuningRecord(trace, workload, seconds, target, arguments))
    return True


def _check_readable(record: TuningRecord) -> None:
    """Whether TVM reads back what it writes; one line that it does not spoils a whole database.

    Raises
    ------
    ConfigError
        If not, as with infinite constants.
    """
    with tempfile.TemporaryDirectory() as folder:
        database = JSONDatabase(work_dir=folder)
        database.commit_workload(record.workload.mod)
        database.commit_tuning_record(record)
        try:
            (read,) = JSONDatabase(work_dir=folder).get_all_tuning_records()
        except Exception as error:
            raise ConfigError(f"TVM's JSON does not hold it: {_first_line(error)}") from error
    if not tvm_ffi.structural_equal(read.workload.mod, record.workload.mod):
        raise ConfigError("TVM's JSON does not hold its program")


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "")[:160]


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
