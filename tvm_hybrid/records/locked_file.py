"""A file of lines that several processes append to, and that one may rewrite meanwhile.

A writer holds the lock, a file `NAME.lock` next to the real one, before it opens the file, because
the file may be replaced while it waits. A line is written by one call, always after a newline, and
flushed to the disk. So a process that is killed leaves at most one torn line, the last one, and the
next writer ends it. To rewrite a file, a new one is written and renamed, so that readers see the
old or the new file, complete.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from microkernels.base.errors import RecordError
from microkernels.base.files import require_room, sync, why_not_written

LOCK_SECONDS = 120.0
_POLL_SECONDS = 0.005


def lock_of(path: Path) -> FileLock:
    """The lock of a file, the same by whatever name it is called."""
    return FileLock(f"{real_path(path)}.lock", LOCK_SECONDS, poll_interval=_POLL_SECONDS)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a file's lock; makes the folder, if need be.

    Raises
    ------
    RecordError
        If another process holds it too long.
    OSError
        If nothing can be written there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = lock_of(path)
    if not os.path.exists(lock.lock_file):
        # In some folders, as of /proc, a lock that cannot be made looks like one that is held.
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
    """The file behind symbolic links; it need not exist."""
    return Path(os.path.realpath(path))


def require_appendable(path: Path) -> None:
    """Refuses a file that could not be appended to now; makes its folder, but not the file.

    Raises
    ------
    RecordError
        If it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        require_room(real_path(path).parent)
        if path.exists():
            os.close(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC))
    except OSError as error:
        raise not_written(path, error) from error


def append_line(path: Path, line: bytes) -> None:
    """Adds a line, which ends with a newline; when this returns, it is on the disk.

    Raises
    ------
    RecordError
        If the file cannot be written. It is then as it was before.
    """
    try:
        with locked(path):
            _append(real_path(path), line)
    except OSError as error:
        raise not_written(path, error) from error


def replace_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Makes these lines, without newlines, all that the file holds; the caller has its lock.

    Raises
    ------
    OSError
        If the file cannot be written. It is then as it was before.
    """
    path = real_path(path)
    # The lock makes this name ours; what a killed process left there is overwritten.
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
    """Whether someone is writing the file, or has since it had this size."""
    lock = lock_of(path)
    if not os.path.exists(lock.lock_file):
        return False
    try:
        with lock.acquire(timeout=0):
            return path.stat().st_size != size
    except Timeout:
        return True
    except OSError:  # one may read where one may not write
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
        # The name of a new file is on the disk only after its folder is.
        sync(path.parent)


def not_written(path: Path, error: OSError) -> RecordError:
    """What to raise when a file of records cannot be written."""
    return RecordError(why_not_written(path, error, "records to"))
