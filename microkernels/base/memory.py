"""Releases what compiling took: heap memory, pages of the compiler's code, late collections."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from .tvm_compat.relax import compiler_library

# Returns to Linux the pages of TVM's compiler that compiling has read; the file still has them.
#
# A process that has compiled holds 125 MiB of the compiler's file (BERT-base), 84 of them since the
# imports, for as long as it runs. A model that runs needs next to none of it: its kernels are
# separate code, and TVM's runtime calls them. The pages stay in Linux's cache of files as long as
# there is room, and come back from there when the compiler is called once more.


_ENTRY = 8  # bytes of /proc/self/pagemap for a page
# Bits of an entry: the page is in memory, swapped out, or a page of a file.
_IN_MEMORY, _SWAPPED, _OF_FILE = (np.uint64(1 << bit) for bit in (63, 62, 61))


def return_pages(library: Path) -> None:
    """Returns the pages of a mapped file that cannot be written, and never were.

    A mapping with a private page (relocated addresses, patched code) stays, as it differs from the
    file.
    """
    with suppress(OSError, AttributeError):  # another system
        advise = ctypes.CDLL(None, use_errno=True).madvise
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        with open("/proc/self/pagemap", "rb", buffering=0) as pages:
            for first, end in _read_only(library):
                if _as_in_file(pages.fileno(), first, end):
                    advise(first, end - first, mmap.MADV_DONTNEED)


def _read_only(library: Path) -> Iterator[tuple[int, int]]:
    """First address and end of each mapping of a file that is private and cannot be written."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, access, *_, name = line.split(maxsplit=5)
        if access in ("r--p", "r-xp") and name == str(library):
            first, end = where.split("-")
            yield int(first, 16), int(end, 16)


def _as_in_file(pagemap: int, first: int, end: int) -> bool:
    """Whether all pages of a mapping that are in memory are the file's."""
    size = (end - first) // mmap.PAGESIZE * _ENTRY
    entries = os.pread(pagemap, size, first // mmap.PAGESIZE * _ENTRY)
    if len(entries) < size:
        return False
    flags = np.frombuffer(entries, np.uint64)
    of_file = (flags & _OF_FILE != 0) | (flags & _IN_MEMORY == 0)
    return bool(np.all(of_file & (flags & _SWAPPED == 0)))


_NEVER = 1 << 30  # collections of the middle generation before a full one
_YOUNG = 20_000  # objects before a collection of young ones; Python's 700 take 2 to 3% of passes

_lock = threading.Lock()
_compiling: list[tuple[int, int, int]] = []  # thresholds to restore, for each compilation


@contextmanager
def without_full_collections() -> Iterator[None]:
    """Keeps Python's garbage collector from looking through all objects while a model is compiled.

    A pass makes thousands of objects, so every few passes Python looks through all objects, those
    of all imports included. With collections of younger objects that took 5 to 6% of the time to
    compile QDQ BERTs. Hardly any object is garbage: one without users goes at once, and young
    objects are still looked through, less often.

    Full collections resume when the last compilation in this scope has ended.
    """
    with _lock:
        before = gc.get_threshold()
        _compiling.append(_compiling[0] if _compiling else before)
        gc.set_threshold(_YOUNG if before[0] else 0, before[1], _NEVER)  # 0: collections are off
    try:
        yield
    finally:
        with _lock:
            before = _compiling.pop()
            untouched = gc.get_threshold()[2] == _NEVER  # else other thresholds were set meanwhile
            if not _compiling and untouched:
                gc.set_threshold(*before)


def return_freed_memory() -> None:
    """Makes glibc return its free memory to Linux: after compiling that is twice the weights."""
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))


def return_what_compiling_took() -> None:
    """Releases heap memory and the compiler's pages; for the end, as a compilation reads them."""
    return_freed_memory()
    library = compiler_library()
    if library is not None:
        return_pages(library)
