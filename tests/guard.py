"""Arrays placed against unmapped pages, so that a read or write one byte outside crashes.

Also makes arrays read-only for a while, so that a write crashes.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def guarded(array: np.ndarray, at_end: bool = True) -> np.ndarray:
    """A copy of `array` that ends at the start of an unmapped page, or starts at the end of one.

    With `at_end`, the address is only aligned to the element size: the kernel gets an array that is
    not aligned to a vector.
    """
    page = mmap.PAGESIZE
    pages = -(-max(array.nbytes, 1) // page)
    memory = mmap.mmap(-1, (pages + 2) * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for fence in (address, address + (pages + 1) * page):
        _protect(fence, page, _PROT_NONE)
    offset = page + (pages * page - array.nbytes if at_end else 0)
    view = np.frombuffer(memory, array.dtype, array.size, offset).reshape(array.shape)
    view[...] = array
    return view


def on_pages(array: np.ndarray) -> np.ndarray:
    """A copy of `array` that begins at a page's start."""
    view = np.frombuffer(mmap.mmap(-1, array.nbytes), array.dtype).reshape(array.shape)
    view[...] = array
    return view


@contextmanager
def read_only(array: np.ndarray) -> Iterator[None]:
    """Within, the whole pages of an array are read-only."""
    address = array.ctypes.data
    assert address % mmap.PAGESIZE == array.nbytes % mmap.PAGESIZE == 0
    _protect(address, array.nbytes, _PROT_READ)
    try:
        yield
    finally:
        _protect(address, array.nbytes, _PROT_READ | _PROT_WRITE)


def _protect(address: int, size: int, rights: int) -> None:
    if _libc.mprotect(address, size, rights):
        raise OSError(ctypes.get_errno(), "mprotect failed")
