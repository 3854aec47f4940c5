"""Linux's system calls that say on which memory nodes pages lie."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Sequence
from typing import Protocol

PAGE = mmap.PAGESIZE

# Of x86-64; Linux, include/uapi/linux/mempolicy.h and arch/x86/entry/syscalls/syscall_64.tbl.
_MBIND, _SET_MEMPOLICY, _MOVE_PAGES = 237, 238, 279
_PREFERRED, _INTERLEAVE = 1, 3
_MOVE = 1 << 1  # pages of this process that lie elsewhere already, too
_WORD = 8 * ctypes.sizeof(ctypes.c_ulong)


class MemoryCalls(Protocol):
    """What is asked of the operating system; tests have one of their own."""

    def place(self, start: int, size: int, nodes: Sequence[int]) -> None:
        """Spreads whole pages over nodes, those that are in use too.

        Raises
        ------
        OSError
            If Linux refuses, as it does in many containers.
        """

    def touch_on(self, nodes: Sequence[int]) -> None:
        """Lets pages that the calling thread touches first come from these nodes in turns.

        Raises
        ------
        OSError
            If Linux refuses.
        """


class LinuxCalls:
    """The system calls themselves."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def place(self, start: int, size: int, nodes: Sequence[int]) -> None:
        """As `MemoryCalls.place`, by `mbind`."""
        mask, bits = _mask(nodes)
        self._call(_MBIND, start, size, _policy(nodes), mask, bits, _MOVE)

    def touch_on(self, nodes: Sequence[int]) -> None:
        """As `MemoryCalls.touch_on`, by `set_mempolicy`."""
        mask, bits = _mask(nodes)
        self._call(_SET_MEMPOLICY, _policy(nodes), mask, bits)

    def nodes_of(self, pages: Iterable[int]) -> list[int]:
        """The node of each page, by its address; negative: an errno, as of one never touched.

        Raises
        ------
        OSError
            If Linux refuses.
        """
        addresses = list(pages)
        found = (ctypes.c_int * len(addresses))()
        array = (ctypes.c_void_p * len(addresses))(*addresses)
        self._call(_MOVE_PAGES, 0, len(addresses), array, None, found, 0)
        return list(found)

    def _call(self, number: int, *arguments: object) -> None:
        longs = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
        if self._libc.syscall(ctypes.c_long(number), *longs) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))


def _policy(nodes: Sequence[int]) -> int:
    """One node is preferred, so that a full one is no error; several get pages in turns."""
    return _PREFERRED if len(nodes) == 1 else _INTERLEAVE


def _mask(nodes: Sequence[int]) -> tuple[ctypes.Array[ctypes.c_ulong], int]:
    """The nodes as bits, and one more than there are: Linux does not look at the last."""
    words = (ctypes.c_ulong * (max(nodes) // _WORD + 1))()
    for node in nodes:
        words[node // _WORD] |= 1 << node % _WORD
    return words, _WORD * len(words) + 1
