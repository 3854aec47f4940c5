"""TraceRecord: a schedule that MetaSchedule found, as a line of a record file.

    {"schema": 1, "kind": "metaschedule", "workload": "matmul(...) ...", "trace": [...], ...}

No template builds it, so compiling a model never chooses it. It is kept, shown, and written back by
`export`, for those who apply it with TVM's own pipeline.
"""

from __future__ import annotations

import errno
import math
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec
import tvm_ffi
from tvm import IRModule
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord, Workload

from microkernels.base.errors import ConfigError, OutputError, RecordError, TargetError
from microkernels.base.files import why_not_written
from microkernels.base.tvm_compat import metaschedule_database as databases
from microkernels.isa import target_isa
from tir_schedules.core.region import Region

from ...records.record import RecordLine
from ...records.record_store import RecordStore
from ...targets.resolve import cpu_name, resolve_target
from .schedule import register_intrinsic
from .workload import first_line, knows_constants, workload_of

MICROSECONDS = 1e6
_TARGET = ("kind", "mcpu", "mattr", "num-cores")


class TraceRecord(RecordLine, frozen=True, kw_only=True):
    """One trace for the program of one region.

    Attributes
    ----------
    schema, kind
        As in every line of a record file.
    workload, region, machine, isa, threads, times_us
        As in a `Record`; no times if the program could not be run.
    constants : bool
        Whether the program marks its constants; see `workload_of`.
    target : dict
        TVM's target, as the database stores it.
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
        """Converts the trace to TVM's tuning record.

        Raises
        ------
        ConfigError
            If TVM no longer accepts the trace.
        """
        program = workload_of(self.region, self.constants)
        seconds = [time / MICROSECONDS for time in self.times_us] or None
        arguments = [info.as_json() for info in ArgInfo.from_prim_func(program["main"])]
        fields = [self.trace, seconds, self.target, arguments]
        try:
            return TuningRecord.from_json(fields, Workload(program))
        except Exception as error:
            raise ConfigError(f"TVM does not apply its trace: {first_line(error)}") from error


def trace_record(entry: databases.Entry, program: IRModule, region: Region) -> TraceRecord:
    """Converts a database entry to a TraceRecord for a region.

    Raises
    ------
    ConfigError
        If the target is no CPU that we support, or the region has a constant that JSON cannot hold.
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
    """The traces in a store's files, each with its FILE:LINE."""
    for file in store.files:
        yield from file.of_kind(TraceRecord)


class DatabaseWriter:
    """A database in a folder, made if it is not there.

    Parameters
    ----------
    path : Path
        The folder.

    Raises
    ------
    RecordError
        If the folder cannot be made, or TVM cannot read what is in it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: set[tuple[str | None, str]] = set()
        if (path / databases.WORKLOADS).exists():
            present = databases.MetaScheduleFolder(path)
            self._written = {
                (present.hashes.get(entry.workload), entry.key) for entry in present.entries
            }
            for name in {name for entry in present.entries for name in entry.intrinsics}:
                register_intrinsic(name)  # TVM applies every trace that it reads
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._database = JSONDatabase(work_dir=str(path))
        except OSError as error:
            raise RecordError(why_not_written(path, error, "a database to")) from error
        except Exception as error:
            text = f"TVM cannot read the database in {path}: {first_line(error)}"
            raise RecordError(f"{text}. Choose another folder") from error

    def add(self, record: TuningRecord) -> bool:
        """Adds a record; returns False if the database has it already.

        Raises
        ------
        ConfigError
            If TVM cannot read back what it writes, as with infinite constants. One such line spoils
            a whole database.
        OutputError
            If the disk is full; the database is then as it was before.
        """
        with tempfile.TemporaryDirectory() as folder:
            alone = JSONDatabase(work_dir=folder)
            alone.commit_workload(record.workload.mod)
            alone.commit_tuning_record(record)
            try:
                (read,) = JSONDatabase(work_dir=folder).get_all_tuning_records()
            except Exception as error:
                raise ConfigError(f"TVM's JSON does not hold it: {first_line(error)}") from error
            written = databases.MetaScheduleFolder(Path(folder))
        if not tvm_ffi.structural_equal(read.workload.mod, record.workload.mod):
            raise ConfigError("TVM's JSON does not hold its program")
        if not written.entries:
            raise ConfigError(f"not JSON as others read it: {'; '.join(written.problems)}")
        key = written.hashes[0], written.entries[0].key
        if key in self._written:
            return False
        files = [self._path / databases.WORKLOADS, self._path / databases.RECORDS]
        sizes = [file.stat().st_size for file in files]
        workload = self._database.commit_workload(record.workload.mod)
        self._database.commit_tuning_record(
            TuningRecord(record.trace, workload, record.run_secs, record.target, record.args_info)
        )
        if files[1].stat().st_size > sizes[1] and all(map(_ends_with_newline, files)):
            self._written.add(key)
            return True
        # TVM does not check whether the disk took a line, so a partial line is removed here.
        for file, size in zip(files, sizes, strict=True):
            os.truncate(file, size)
        full = OSError(errno.ENOSPC, "")
        raise OutputError(why_not_written(self._path, full, "a database to"))


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return size == 0 or file.read() == b"\n"
