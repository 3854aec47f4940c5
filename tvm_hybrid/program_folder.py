"""The folder of the cache of programs: which files belong together, and its bound."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from microkernels.cache_dir import cache_dir

from .logs import logger

BYTES_VARIABLE = "TVM_HYBRID_CACHE_BYTES"
DEFAULT_BYTES = 4 << 30
STALE_SECONDS = 3600
_LOCK_SECONDS = 10
_LIBRARY, _NOTE, _DRAFTS = ".so", ".json", ".tvm_hybrid_*"


@dataclass
class _Entry:
    """The files of one program: how many libraries, bytes in all, when one was used last."""

    libraries: int = 0
    size: int = 0
    used: float = 0.0


def folder() -> Path:
    """Where programs are kept; it need not exist."""
    return cache_dir() / "programs"


def make_folder() -> None:
    """Makes the folder, which only its owner can write to.

    Raises
    ------
    OSError
        If that fails.
    """
    folder().mkdir(mode=0o700, parents=True, exist_ok=True)


def library_path(key: str) -> Path:
    """The library of a program, which need not exist."""
    return folder() / f"{key}{_LIBRARY}"


def note_path(key: str) -> Path:
    """The note of a program, which need not exist."""
    return folder() / f"{key}{_NOTE}"


def usage() -> tuple[int, int]:
    """How many programs there are, and the bytes of the folder."""
    entries = _entries(folder()).values()
    return sum(entry.libraries for entry in entries), sum(entry.size for entry in entries)


def shrink(newest: str) -> None:
    """Removes what was used longest ago until the rest fits; the newest program goes last.

    What killed processes left behind goes, too. One process at a time does so.
    """
    from filelock import FileLock, Timeout

    place = folder()
    limit = most_bytes()
    try:
        with FileLock(place / ".lock", timeout=_LOCK_SECONDS):
            _remove_drafts(place)
            entries = _entries(place)
            total = sum(entry.size for entry in entries.values())
            order = sorted(entries.items(), key=lambda item: (item[0] == newest, item[1].used))
            for key, entry in order:
                if total <= limit:
                    break
                remove(key)
                total -= entry.size
                reason = "alone larger than the cache" if key == newest else "used longest ago"
                logger.info("removed from the cache of programs, %s: %s", reason, key)
    except Timeout:
        logger.info("%s: another process holds its lock; nothing is removed", place)


def remove(key: str) -> None:
    """Removes a program; the library first, so that none lacks its note."""
    for path in (library_path(key), note_path(key)):
        with contextlib.suppress(OSError):
            path.unlink()


def most_bytes() -> int:
    """The bound of the folder."""
    text = os.environ.get(BYTES_VARIABLE, "")
    if text.isascii() and text.isdigit():
        return int(text)
    if text:
        logger.warning("%s must be a whole number of bytes, not %r", BYTES_VARIABLE, text)
    return DEFAULT_BYTES


def _entries(place: Path) -> dict[str, _Entry]:
    """The programs by their keys."""
    found: dict[str, _Entry] = {}
    for suffix in (_LIBRARY, _NOTE):
        for path in place.glob(f"*{suffix}"):
            try:
                state = path.stat()
            except OSError:
                continue  # another process has removed it
            entry = found.setdefault(path.stem, _Entry())
            entry.libraries += suffix == _LIBRARY
            entry.size += state.st_size
            entry.used = max(entry.used, state.st_mtime)
    return found


def _remove_drafts(place: Path) -> None:
    """Removes folders that nobody writes to any more."""
    for path in place.glob(_DRAFTS):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
