"""Arrays placed against unmapped pages, so that a read or write one byte outside crashes."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

_PROT_NONE = 0
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def guarded(array: np.ndarray, at_end: bool = True) -> np.ndarray:
    """A copy of `array` that ends where an unmapped page begins, or begins where one ends.

    At the end, the address is a multiple of the element size only: what the kernel is given is not
    aligned to a vector.
    """
    page = mmap.PAGESIZE
    pages = -(-max(array.nbytes, 1) // page)
    memory = mmap.mmap(-1, (pages + 2) * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for fence in (address, address + (pages + 1) * page):
        if _libc.mprotect(fence, page, _PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect failed")
    offset = page + (pages * page - array.nbytes if at_end else 0)
    view = np.frombuffer(memory, array.dtype, array.size, offset).reshape(array.shape)
    view[...] = array
    return view
