"""Files that are written whole or not at all, and the folder of caches."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from .errors import OutputError, TvmHybridError

# Files that appear whole or not at all.
#
# Data is written into a new folder next to the file, and gets the file's name last. An error quotes
# the system's message. If possible, it is raised before the work.


_PAGE = 4096
_NO_ROOM = "free some space there, or write elsewhere"
_FORBIDDEN = "name a folder that may be written to"
_NO_FOLDER = "its folder does not exist: make it first, or name another"
_ADVICE = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EFBIG: "raise the limit of file sizes (ulimit -f)",
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EROFS: _FORBIDDEN,
    errno.ENOENT: _NO_FOLDER,
    errno.ENOTDIR: _NO_FOLDER,
    errno.EEXIST: "where its folder should be there is a file; name another folder",
    errno.EISDIR: "name a file, not a folder",
}


def why_not_written(path: str | os.PathLike[str], error: OSError, what: str = "") -> str:
    """The message for a file that cannot be written: why, and what to do.

    Parameters
    ----------
    path : path-like
        The file.
    error : OSError
        The system's error.
    what : str
        What the file is, such as "the plot".
    """
    reason = os.strerror(error.errno) if error.errno else str(error)
    advice = _ADVICE.get(error.errno or 0)
    return f"cannot write {what}{' ' * bool(what)}{path}: {reason}" + (
        f"; {advice}" if advice else ""
    )


def require_writable(
    path: str | os.PathLike[str], kind: type[TvmHybridError] = OutputError
) -> None:
    """Refuses a file that could not be written now; no file stays.

    Parameters
    ----------
    path : path-like
        The file; it need not exist, its folder must.
    kind : type
        The error to raise.

    Raises
    ------
    TvmHybridError
        Of type `kind`, if the file cannot be written.
    """
    target = Path(path)
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not is_special(target):
            require_room(_real(target).parent)
    except OSError as error:
        raise kind(why_not_written(target, error)) from error


def require_room(folder: Path) -> None:
    """Checks that a folder has room, by writing a page to a nameless file.

    Raises
    ------
    OSError
        If that fails.
    """
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.write(bytes(_PAGE))


def require_other_file(path: str | os.PathLike[str], given: str | os.PathLike[str]) -> None:
    """Refuses to write over a file that is read, under any name or link.

    Parameters
    ----------
    path : path-like
        The file to write; it need not exist.
    given : path-like
        The file that is read.

    Raises
    ------
    OutputError
        If both are one file.
    """
    try:
        same = os.path.samefile(path, given) and not is_special(Path(path))
    except OSError:  # one of them does not exist
        return
    if same:
        raise OutputError(f"{path} is the file that is read; write into another file")


@contextmanager
def replacing(
    path: str | os.PathLike[str], kind: type[TvmHybridError] = OutputError, what: str = ""
) -> Iterator[Path]:
    """Yields a path in a new folder next to a file; what is written there gets the file's name.

    If anything fails inside, Ctrl-C included, the file stays unchanged and the folder is removed. A
    device or a pipe is written to, not replaced.

    Parameters
    ----------
    path : path-like
        The file.
    kind : type
        The error to raise for an OSError inside.
    what : str
        As for `why_not_written`.

    Raises
    ------
    TvmHybridError
        Of type `kind`, if the file cannot be written.
    """
    target = Path(path)
    folder = None
    try:
        special = is_special(target)
        real = _real(target)
        with undisturbed():
            folder = Path(
                tempfile.mkdtemp(prefix=".tvm_hybrid_", dir=None if special else real.parent)
            )
        draft = folder / (target.name or "output")
        yield draft
        if special:
            with draft.open("rb") as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)
        else:
            if real.exists():
                draft.chmod(real.stat().st_mode & 0o7777)
            sync(draft)
            os.replace(draft, real)
            sync(real.parent)
    except OSError as error:
        if isinstance(error, TvmHybridError):
            raise
        raise kind(why_not_written(target, error, what)) from error
    finally:
        with undisturbed():
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)


def write_whole(path: str | os.PathLike[str], text: str | bytes, what: str = "") -> None:
    """Writes a file at once or not at all.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    with replacing(path, what=what) as draft:
        draft.write_bytes(text.encode() if isinstance(text, str) else text)


def sync(path: Path) -> None:
    """Flushes a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Delays Ctrl-C to the end of the scope.

    Python's own handler raises KeyboardInterrupt anywhere in the program, for instance between
    making a file and noting its name.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    pressed = []
    signal.signal(signal.SIGINT, lambda *arguments: pressed.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if pressed:
            handler(*pressed[0])


def _real(path: Path) -> Path:
    """The file behind symbolic links; it need not exist."""
    return Path(os.path.realpath(path))


def is_special(path: Path) -> bool:
    """Whether a path exists and is neither a file nor a folder."""
    return path.exists() and not path.is_file() and not path.is_dir()


CACHE_VARIABLE = "TVM_HYBRID_CACHE_DIR"


def cache_dir() -> Path:
    """`TVM_HYBRID_CACHE_DIR`, or else a folder in the user's cache; it need not exist yet."""
    folder = os.environ.get(CACHE_VARIABLE)
    if folder:
        return Path(folder).expanduser()
    return Path(platformdirs.user_cache_dir("tvm_hybrid", appauthor=False))
