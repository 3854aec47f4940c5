"""CacheFolder: a folder of files that can be recreated, grouped by key, with a size limit."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from microkernels.base.files import cache_dir
from microkernels.base.logs import logger

CACHE_VARIABLE = "TVM_HYBRID_CACHE"
BYTES_VARIABLE = "TVM_HYBRID_CACHE_BYTES"
DEFAULT_BYTES = 4 << 30
STALE_SECONDS = 3600
DRAFT = ".tvm_hybrid_"
_LOCK_SECONDS = 10


def is_enabled() -> bool:
    """Whether `TVM_HYBRID_CACHE` allows caches."""
    return os.environ.get(CACHE_VARIABLE) != "0"


def belongs_to_us(descriptor: int) -> bool:
    """Whether an open file is of this user or of root: others must not decide which code runs."""
    return os.fstat(descriptor).st_uid in (0, os.geteuid())


@dataclass
class _Entry:
    """The files of one key: count of the first kind, bytes of all, time of the last use."""

    count: int = 0
    size: int = 0
    used: float = 0.0


@dataclass(frozen=True)
class CacheFolder:
    """A folder inside the user's cache folder.

    Attributes
    ----------
    name : str
        Its name, which tells its content.
    suffixes : tuple of str
        Suffixes of the files of one key. The first one is removed first.
    share : int
        The size limit is TVM_HYBRID_CACHE_BYTES divided by this.
    """

    name: str
    suffixes: tuple[str, ...]
    share: int = 1

    @property
    def place(self) -> Path:
        """Path of the folder; it need not exist."""
        return cache_dir() / self.name

    def make(self) -> None:
        """Creates the folder, writable only by its owner.

        Raises
        ------
        OSError
            If that fails.
        """
        self.place.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, key: str, suffix: str) -> Path:
        """Path of a file of a key; it need not exist."""
        return self.place / f"{key}{suffix}"

    def usage(self) -> tuple[int, int]:
        """Number of files of the first kind, and bytes of the folder."""
        entries = self._entries().values()
        return sum(entry.count for entry in entries), sum(entry.size for entry in entries)

    def shrink(self, newest: str = "") -> None:
        """Removes the least recently used keys until the others fit; the newest key goes last.

        Also removes files that killed processes left. Only one process does so at a time.
        """
        from filelock import FileLock, Timeout

        limit = self.most_bytes()
        try:
            with FileLock(self.place / ".lock", timeout=_LOCK_SECONDS):
                self._remove_drafts()
                entries = self._entries()
                total = sum(entry.size for entry in entries.values())
                order = sorted(entries.items(), key=lambda item: (item[0] == newest, item[1].used))
                for key, entry in order:
                    if total <= limit:
                        break
                    self.remove(key)
                    total -= entry.size
                    reason = "alone larger than the cache" if key == newest else "used longest ago"
                    logger.info("removed from the cache of %s, %s: %s", self.name, reason, key)
        except Timeout:
            logger.info("%s: another process holds its lock; nothing is removed", self.place)

    def remove(self, key: str) -> None:
        """Removes the files of a key, the first kind first: a library never lacks its note."""
        for suffix in self.suffixes:
            with contextlib.suppress(OSError):
                self.path(key, suffix).unlink()

    def most_bytes(self) -> int:
        """Size limit of the folder."""
        text = os.environ.get(BYTES_VARIABLE, "")
        if text.isascii() and text.isdigit():
            return int(text) // self.share
        if text:
            logger.warning("%s must be a whole number of bytes, not %r", BYTES_VARIABLE, text)
        return DEFAULT_BYTES // self.share

    def _entries(self) -> dict[str, _Entry]:
        """Key -> its files."""
        found: dict[str, _Entry] = {}
        for suffix in self.suffixes:
            for path in self.place.glob(f"*{suffix}"):
                try:
                    state = path.stat()
                except OSError:
                    continue  # another process has removed it
                entry = found.setdefault(path.stem, _Entry())
                entry.count += suffix == self.suffixes[0]
                entry.size += state.st_size
                entry.used = max(entry.used, state.st_mtime)
        return found

    def _remove_drafts(self) -> None:
        """Removes drafts that no process writes any more."""
        for path in self.place.glob(f"{DRAFT}*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime <= STALE_SECONDS:
                    continue
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()


LIBRARY, NOTE, KERNEL = ".so", ".json", ".kernel"
PROGRAMS = CacheFolder("programs", (LIBRARY, NOTE))
KERNELS = CacheFolder("kernels", (KERNEL,), share=16)
