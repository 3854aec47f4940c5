"""Adds records to a database of MetaSchedule, each once, and none that TVM could not read again."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tvm_ffi
from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord

from microkernels.base.errors import ConfigError, OutputError, RecordError
from microkernels.base.files import why_not_written
from microkernels.base.tvm_compat.metaschedule_database import (
    RECORDS,
    WORKLOADS,
    MetaScheduleFolder,
)

from .schedule import register_intrinsic


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
        if (path / WORKLOADS).exists():
            present = MetaScheduleFolder(path)
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
            reason = first_line(error)
            raise RecordError(
                f"TVM cannot read the database in {path}: {reason}. Choose another folder"
            ) from error

    def add(self, record: TuningRecord) -> bool:
        """Adds a record; False if it is there already.

        Raises
        ------
        ConfigError
            If TVM does not read back what it writes, as with infinite constants. One such line
            spoils a whole database.
        OutputError
            If the disk is full. The database is then as it was before.
        """
        with tempfile.TemporaryDirectory() as folder:
            alone = JSONDatabase(work_dir=folder)
            alone.commit_workload(record.workload.mod)
            alone.commit_tuning_record(record)
            try:
                (read,) = JSONDatabase(work_dir=folder).get_all_tuning_records()
            except Exception as error:
                raise ConfigError(f"TVM's JSON does not hold it: {first_line(error)}") from error
            written = MetaScheduleFolder(Path(folder))
        if not tvm_ffi.structural_equal(read.workload.mod, record.workload.mod):
            raise ConfigError("TVM's JSON does not hold its program")
        if not written.entries:
            raise ConfigError(f"not JSON as others read it: {'; '.join(written.problems)}")
        key = written.hashes[0], written.entries[0].key
        if key in self._written:
            return False
        with self._whole():
            workload = self._database.commit_workload(record.workload.mod)
            self._database.commit_tuning_record(
                TuningRecord(
                    record.trace, workload, record.run_secs, record.target, record.args_info
                )
            )
        self._written.add(key)
        return True

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """TVM does not look whether the disk took a line: half a line is taken back."""
        files = [self._path / WORKLOADS, self._path / RECORDS]
        sizes = [file.stat().st_size for file in files]
        yield
        grown = files[1].stat().st_size > sizes[1]
        if grown and all(_ends_with_newline(file) for file in files):
            return
        for file, size in zip(files, sizes, strict=True):
            os.truncate(file, size)
        full = OSError(errno.ENOSPC, "")
        raise OutputError(why_not_written(self._path, full, "a database to"))


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return size == 0 or file.read() == b"\n"


def first_line(error: Exception) -> str:
    """What an error of TVM's says first."""
    return next((line for line in str(error).splitlines() if line.strip()), "")[:160]
