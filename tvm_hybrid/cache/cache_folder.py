"""CacheFolder: a folder of files that can be made again: which belong together, and its bound."""

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
    """Whether an open file is of this user or of root: others must not decide what runs."""
    return os.fstat(descriptor).st_uid in (0, os.geteuid())


@dataclass
class _Entry:
    """The files of one key: how many of the first kind, bytes in all, when one was used last."""

    count: int = 0
    size: int = 0
    used: float = 0.0


@dataclass(frozen=True)
class CacheFolder:
    """A folder in the cache folder.

    Attributes
    ----------
    name : str
        Its name, which says what is in it.
    suffixes : tuple of str
        How names of the files of one key end. The first one is removed first.
    share : int
        The folder may have one of so many parts of TVM_HYBRID_CACHE_BYTES.
    """

    name: str
    suffixes: tuple[str, ...]
    share: int = 1

    @property
    def place(self) -> Path:
        """Where it is; it need not exist."""
        return cache_dir() / self.name

    def make(self) -> None:
        """Makes the folder, which only its owner can write to.

        Raises
        ------
        OSError
            If that fails.
        """
        self.place.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, key: str, suffix: str) -> Path:
        """A file of a key, which need not exist."""
        return self.place / f"{key}{suffix}"

    def usage(self) -> tuple[int, int]:
        """How many files of the first kind there are, and the bytes of the folder."""
        entries = self._entries().values()
        return sum(entry.count for entry in entries), sum(entry.size for entry in entries)

    def shrink(self, newest: str = "") -> None:
        """Removes what was used longest ago until the rest fits; the newest key goes last.

        What killed processes left behind goes, too. One process at a time does so.
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
        """Removes the files of a key; the first kind first, so that it never lacks the others."""
        for suffix in self.suffixes:
            with contextlib.suppress(OSError):
                self.path(key, suffix).unlink()

    def most_bytes(self) -> int:
        """The bound of the folder."""
        text = os.environ.get(BYTES_VARIABLE, "")
        if text.isascii() and text.isdigit():
            return int(text) // self.share
        if text:
            logger.warning("%s must be a whole number of bytes, not %r", BYTES_VARIABLE, text)
        return DEFAULT_BYTES // self.share

    def _entries(self) -> dict[str, _Entry]:
        """Its files by their keys."""
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
        """Removes files and folders that nobody writes to any more."""
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
