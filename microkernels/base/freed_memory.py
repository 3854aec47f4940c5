"""Gives Linux back the memory that compiling took and has freed."""

from __future__ import annotations

import contextlib
import ctypes

from .code_pages import return_compiler_pages


def return_freed_memory() -> None:
    """Has glibc give back what it keeps for later: after compiling that is twice the weights."""
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))


def return_what_compiling_took() -> None:
    """The same, and the compiler's own code; for the end, as the next one reads it anew."""
    return_freed_memory()
    return_compiler_pages()
