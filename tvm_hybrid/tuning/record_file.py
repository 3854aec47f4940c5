"""A file of records: appended so that nothing finished is lost, read so that damage is survived.

A line is written by one call, flushed to the disk, under a lock, always after a newline; a process
killed at any instant leaves at most one torn line, the last one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from microkernels.errors import RecordError

from .record import Record

logger = logging.getLogger("tvm_hybrid")


class Located(NamedTuple):
    """A record and where it stands."""

    record: Record
    place: str
    """FILE:LINE."""


class RecordFile:
    """One file, read once and again only from where it grew.

    Parameters
    ----------
    path : path-like
        Need not exist; it is made by the first `append`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._forget()

    def _forget(self) -> None:
        self.records: list[Located] = []
        self.damaged: list[str] = []
        self.generation = getattr(self, "generation", -1) + 1
        self._identity: tuple[int, int] | None = None
        self._changed = 0
        self._offset = 0
        self._lines = 0
        self._tail: Located | None = None
        self._tail_size = 0

    def append(self, record: Record) -> None:
        """Adds one record; when this returns, it is on the disk.

        Raises
        ------
        RecordError
            If the file cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self.path}.lock"):
                _append(self.path, record.to_line())
        except OSError as error:
            raise RecordError(f"cannot write records to {self.path}: {error.strerror}") from error

    def refresh(self) -> list[Located]:
        """All records; reads what was added since the last call.

        Raises
        ------
        RecordError
            If the file exists but cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                identity = (status.st_dev, status.st_ino)
                known = self._offset + self._tail_size
                if identity == self._identity and status.st_size == known:
                    if status.st_mtime_ns == self._changed:
                        return self.records
                    self._forget()
                elif identity != self._identity or status.st_size < known:
                    self._forget()
                self._identity, self._changed = identity, status.st_mtime_ns
                file.seek(self._offset)
                self._read(file.read())
        except FileNotFoundError:
            if self._identity is not None:
                self._forget()
        except OSError as error:
            raise RecordError(f"cannot read records from {self.path}: {error.strerror}") from error
        return self.records

    def _read(self, text: bytes) -> None:
        if self._tail is not None:
            # It is read again, now perhaps with its newline.
            self.records.pop()
            self.generation += 1
            self._tail = None
        whole, newline, tail = text.rpartition(b"\n")
        for line in whole.split(b"\n") if newline else ():
            self._lines += 1
            if line.strip():
                self._take(line, f"{self.path}:{self._lines}")
        self._offset += len(whole) + len(newline)
        self._tail_size = len(tail)
        if tail.strip():
            self._tail = self._take(tail, f"{self.path}:{self._lines + 1}")

    def _take(self, line: bytes, place: str) -> Located | None:
        try:
            located = Located(Record.from_line(line), place)
        except RecordError as error:
            message = f"{place}: skipped, not a whole record: {error}"
            if message not in self.damaged:
                self.damaged.append(message)
                logger.warning("%s", message)
            return None
        self.records.append(located)
        return located

    def __iter__(self) -> Iterator[Located]:
        return iter(self.refresh())


def _append(path: Path, line: bytes) -> None:
    new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        while line:
            line = line[os.write(descriptor, line) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if new:
        # The name of a new file is on the disk only after its folder is.
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
