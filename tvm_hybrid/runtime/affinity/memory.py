"""Linux's system calls that say on which memory nodes pages lie."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

PAGE = mmap.PAGESIZE
# Nodes take turns by so many bytes: a huge page moves as a whole.
TURN = 1 << 21

# Of x86-64; Linux, include/uapi/linux/mempolicy.h and arch/x86/entry/syscalls/syscall_64.tbl.
_MBIND, _MOVE_PAGES = 237, 279
_PREFERRED, _INTERLEAVE = 1, 3
_MOVE = 1 << 1  # pages of this process that lie elsewhere already, too
_WORD = 8 * ctypes.sizeof(ctypes.c_ulong)


class MemoryCalls(Protocol):
    """What is asked of the operating system; tests have one of their own."""

    def place(self, start: int, size: int, nodes: Sequence[int]) -> int:
        """Moves whole pages to nodes, in turns, and keeps them there.

        Returns
        -------
        int
            Bytes that are there; not those of pages that nobody has touched, or that are busy.

        Raises
        ------
        OSError
            If Linux refuses, as it does in many containers.
        """


class LinuxCalls:
    """The system calls themselves."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def place(self, start: int, size: int, nodes: Sequence[int]) -> int:
        """As `MemoryCalls.place`, by `mbind` and `move_pages`.

        `mbind` alone would leave a page where it is that lies on any of the nodes.
        """
        mask, bits = _mask(nodes)
        self._call(_MBIND, start, size, _policy(nodes), mask, bits, 0)
        pages = np.arange(start, start + size, PAGE, dtype=np.uint64)
        wanted = np.array(nodes, np.int32)[pages // TURN % len(nodes)]
        return PAGE * int(np.count_nonzero(self._move(pages, wanted) == wanted))

    def nodes_of(self, start: int, size: int) -> list[int]:
        """The node of each page; negative: an errno, as of one that nobody has touched.

        Raises
        ------
        OSError
            If Linux refuses.
        """
        return self._move(np.arange(start, start + size, PAGE, dtype=np.uint64), None).tolist()

    def _move(
        self, pages: np.ndarray[Any, Any], nodes: np.ndarray[Any, Any] | None
    ) -> np.ndarray[Any, Any]:
        """The node of each page after it was moved, or as it is."""
        found = np.empty(len(pages), np.int32)
        wanted = None if nodes is None else nodes.ctypes.data_as(ctypes.c_void_p)
        addresses, answers = (each.ctypes.data_as(ctypes.c_void_p) for each in (pages, found))
        self._call(_MOVE_PAGES, 0, len(pages), addresses, wanted, answers, _MOVE)
        return found

    def _call(self, number: int, *arguments: object) -> None:
        longs = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
        if self._libc.syscall(ctypes.c_long(number), *longs) < 0:
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
