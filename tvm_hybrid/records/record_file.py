"""A file of records: appending loses no finished record, and reading survives damaged lines."""

from __future__ import annotations

import lzma
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from filelock import FileLock, Timeout

from microkernels.base.errors import RecordError
from microkernels.base.files import require_room, sync, why_not_written
from microkernels.base.logs import logger

from .record import RECORD, L, Record, RecordLine, UnreadableLine, read_header

LOCK_SECONDS = 120.0
_POLL_SECONDS = 0.005
_LONGEST = 1 << 20  # bytes of a line that suffice to tell its kind


def lock_of(path: Path) -> FileLock:
    """The lock of a file; all names of a file share it."""
    return FileLock(f"{real_path(path)}.lock", LOCK_SECONDS, poll_interval=_POLL_SECONDS)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a file's lock; makes the folder if necessary.

    Raises
    ------
    RecordError
        If another process holds it too long.
    OSError
        If the folder is not writable.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = lock_of(path)
    if not os.path.exists(lock.lock_file):
        # In some folders, such as /proc, a lock that cannot be made looks like one that is held.
        require_room(real_path(path).parent)
    try:
        with lock:
            yield
    except Timeout as error:
        raise RecordError(
            f"another process has held {error.lock_file} for {LOCK_SECONDS:.0f} s; end it, then "
            "repeat"
        ) from error


def real_path(path: Path) -> Path:
    """Resolves symbolic links; the file need not exist."""
    return Path(os.path.realpath(path))


def require_appendable(path: Path) -> None:
    """Refuses a file that cannot be appended to; makes its folder, but not the file.

    Raises
    ------
    RecordError
        If it cannot be written, or is not a record file.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        require_room(real_path(path).parent)
        if path.exists():
            os.close(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC))
        if path.is_file():
            require_records(path)
    except OSError as error:
        raise not_written(path, error) from error


def require_records(path: Path) -> None:
    """Refuses a file whose first line is neither a record nor a record that was cut off.

    Raises
    ------
    RecordError
        If the first line is something else.
    OSError
        If the file cannot be read.
    """
    with path.open("rb") as file:
        first = file.readline(_LONGEST).strip()
    try:
        if first:
            read_header(first)
    except UnreadableLine as problem:
        cut_off = problem.why == "torn" and first.startswith(b"{")
        if problem.why != "newer" and not cut_off:
            raise RecordError(
                f"{path} is no record file and stays as it is; name another file"
            ) from problem


def append_line(path: Path, line: bytes) -> None:
    """Appends a line that ends with a newline; when this returns, the line is on disk.

    Raises
    ------
    RecordError
        If the file cannot be written, or is not a record file. Then it is unchanged.
    """
    try:
        with locked(path):
            if path.is_file():
                require_records(path)
            _append(real_path(path), line)
    except OSError as error:
        raise not_written(path, error) from error


def replace_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Replaces the content of a file by lines without newlines; the caller must hold its lock.

    Raises
    ------
    OSError
        If the file cannot be written. Then it is unchanged.
    """
    path = real_path(path)
    # The lock protects this name, too; a draft of a killed process is overwritten.
    draft = path.with_name(f"{path.name}.new")
    try:
        with draft.open("wb") as file:
            file.writelines(line + b"\n" for line in lines)
            file.flush()
            if path.exists():
                os.fchmod(file.fileno(), path.stat().st_mode & 0o7777)
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync(path.parent)


def is_being_written(path: Path, size: int) -> bool:
    """Whether another process is writing the file, or has written since it had this size."""
    lock = lock_of(path)
    if not os.path.exists(lock.lock_file):
        return False
    try:
        with lock.acquire(timeout=0):
            return path.stat().st_size != size
    except Timeout:
        return True
    except OSError:  # files may be readable in folders that are not writable
        return False


def _append(path: Path, line: bytes) -> None:
    new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        try:
            while line:
                line = line[os.write(descriptor, line) :]
            os.fsync(descriptor)
        except OSError:  # the disk is full
            os.ftruncate(descriptor, size)
            if new:
                path.unlink()
            raise
    finally:
        os.close(descriptor)
    if new:
        # The name of a new file is on disk only after its folder is synced.
        sync(path.parent)


def not_written(path: Path, error: OSError) -> RecordError:
    """Makes the error for a record file that cannot be written."""
    return RecordError(why_not_written(path, error, "records to"))


class Located(NamedTuple):
    """A record and its place."""

    record: Record
    place: str
    """FILE:LINE."""


class RecordFile:
    """A record file; only appended lines are read again. It is thread-safe.

    Parameters
    ----------
    path : path-like
        Need not exist; the first `append` creates it.

    Attributes
    ----------
    records : list of Located
        The records, in the order of their lines.
    others : dict
        Kind -> lines of kinds other than records.
    damaged : list of str
        Place of every skipped line, and why: "FILE:LINE: skipped, torn: ...".
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._mutex = threading.RLock()
        self._forget()

    def _forget(self) -> None:
        self.records: list[Located] = []
        self.others: dict[str, list[Line]] = {}
        self.damaged: list[str] = []
        self.generation = getattr(self, "generation", -1) + 1
        self._identity: tuple[int, int] | None = None
        self._changed = 0
        self._offset = 0
        self._lines = 0
        self._last = b""
        self._tail_size = 0
        self._tail_in: list[Any] = []

    def append(self, record: RecordLine) -> None:
        """Appends one line; when this returns, the line is on disk.

        Raises
        ------
        RecordError
            If the file cannot be written.
        """
        append_line(self.path, record.to_line())

    def refresh(self) -> list[Located]:
        """Returns all records; reads only what was added since the last call.

        Raises
        ------
        RecordError
            If the file exists but cannot be read.
        """
        with self._mutex:
            try:
                with self.path.open("rb") as file:
                    self._update(file)
            except FileNotFoundError:
                if self._identity is not None:
                    self._forget()
            except OSError as error:
                raise RecordError(
                    f"cannot read records from {self.path}: {error.strerror}"
                ) from error
            return self.records

    def _update(self, file: BinaryIO) -> None:
        status = os.fstat(file.fileno())
        identity = (status.st_dev, status.st_ino)
        known = self._offset + self._tail_size
        if (identity, status.st_size) == (self._identity, known):
            if status.st_mtime_ns == self._changed:
                return
            self._forget()
        elif (
            identity != self._identity
            or status.st_size < known
            # Check the last known line: a new file may have the inode number of an old one.
            or os.pread(file.fileno(), len(self._last), self._offset - len(self._last))
            != self._last
        ):
            self._forget()
        self._identity, self._changed = identity, status.st_mtime_ns
        file.seek(self._offset)
        self._read(file.read(status.st_size - self._offset))

    def _read(self, text: bytes) -> None:
        if self._tail_in:
            # The unfinished last line is read again, now perhaps with its newline.
            self._tail_in.pop()
            self._tail_in = []
            self.generation += 1
        whole, newline, tail = text.rpartition(b"\n")
        lines = whole.split(b"\n") if newline else []
        for line in lines:
            self._lines += 1
            if line.strip():
                self._take(line, f"{self.path}:{self._lines}")
        if lines:
            self._last = lines[-1] + newline
        self._offset += len(whole) + len(newline)
        self._tail_size = len(tail)
        if tail.strip():
            size = self._offset + self._tail_size
            self._tail_in = self._take(tail, f"{self.path}:{self._lines + 1}", size) or []

    def _take(self, text: bytes, place: str, size: int | None = None) -> list[Any] | None:
        """Stores a line and returns its list; None if the line is skipped."""
        line = _line(text, place)
        if line.record is not None:
            self.records.append(Located(line.record, place))
            return self.records
        if line.problem is None:
            others = self.others.setdefault(line.kind, [])
            others.append(line)
            return others
        message = f"{place}: skipped, {line.problem}"
        # Only an unfinished line has a `size`: that of the file.
        written = size is not None and is_being_written(self.path, size)
        if not written and self.damaged[-1:] != [message]:  # an unfinished line is read twice
            self.damaged.append(message)
            logger.warning("%s", message)
        return None

    def __iter__(self) -> Iterator[Located]:
        return iter(self.refresh())

    def of_kind(self, kind: type[L]) -> list[tuple[L, str]]:
        """Lines of a kind other than records, with FILE:LINE.

        A line with wrong fields is skipped with a warning.
        """
        self.refresh()
        found = []
        for line in self.others.get(kind.KIND, ()):
            try:
                found.append((kind.from_line(line.text), line.place))
            except UnreadableLine as error:
                logger.warning("%s: this %s line is not used: %s", line.place, kind.KIND, error)
        return found


COMPRESSED = ".xz"


@dataclass(frozen=True)
class Line:
    """One line of a file.

    Attributes
    ----------
    text : bytes
        The line without its newline.
    place : str
        FILE:LINE.
    record : Record or None
        The record; None if the line is something else.
    problem : UnreadableLine or None
        Why the line cannot be read; None if it can.
    kind : str
        Kind of a readable line.
    """

    text: bytes
    place: str
    record: Record | None = None
    problem: UnreadableLine | None = None
    kind: str = RECORD

    @property
    def lost(self) -> bool:
        """Whether the line is unreadable for all versions; a newer version can read its own."""
        return self.problem is not None and self.problem.why != "newer"


def read_records(path: str | os.PathLike[str]) -> list[Located]:
    """Reads the records of a file, in the order of its lines.

    Damaged lines are skipped with a warning that names them.

    Raises
    ------
    RecordError
        If there is no such file, or it cannot be read.
    """
    path = Path(path)
    if not path.is_file():
        raise RecordError(f"there is no record file {path}")
    if path.suffix != COMPRESSED:
        return list(RecordFile(path))
    lines = read_lines(path)
    for line in lines:
        if line.problem is not None:
            logger.warning("%s: skipped, not a whole record: %s", line.place, line.problem)
    return [Located(line.record, line.place) for line in lines if line.record is not None]


def read_lines(path: Path) -> list[Line]:
    """Reads all lines of a file except empty ones.

    Raises
    ------
    RecordError
        If it cannot be read.
    """
    try:
        text = path.read_bytes()
        if path.suffix == COMPRESSED:
            text = lzma.decompress(text)
    except (OSError, EOFError, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RecordError(f"cannot read records from {path}: {reason}") from error
    numbered = enumerate(text.split(b"\n"), 1)
    return [_line(line, f"{path}:{number}") for number, line in numbered if line.strip()]


def _line(text: bytes, place: str) -> Line:
    try:
        kind = read_header(text).kind
        record = Record.from_line(text) if kind == RECORD else None
        return Line(text, place, record, kind=kind)
    except UnreadableLine as problem:
        return Line(text, place, problem=problem)
