"""Places the weights of a program on memory nodes.

Linux puts a page on the node of the thread that writes to it first: for weights the thread that
compiles or loads. Threads near other nodes read it more slowly. Every program has its own weights,
whether compiled or loaded, so programs that are bound to different sockets are replicas.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from tvm.runtime import Tensor

from microkernels.base.errors import Argument, TargetError
from microkernels.base.logs import logger
from relay_passes.ir.constants import bytes_of

from .places import PoolSetting
from .topology import Topology, format_cpus

WEIGHTS = ("first-touch", "interleave", "replicate")

Nodes = tuple[int, ...]


def nodes_for(weights: str | None, setting: PoolSetting, topology: Topology) -> Nodes:
    """Chooses the nodes to spread weights over; empty if weights stay where they are.

    Parameters
    ----------
    weights : {"first-touch", "interleave", "replicate"} or None
        "first-touch": weights stay. "interleave": pages go in turns to the nodes of the threads'
        CPUs. "replicate": interleaves within one socket; programs that are bound to other sockets
        have their own weights there. None: "replicate" for threads that are bound to one socket,
        else "first-touch".
    setting : PoolSetting
        CPUs of the threads.
    topology : Topology
        The machine.

    Raises
    ------
    TargetError
        If there is no such choice, or "replicate" is asked of threads on several sockets.
    """
    if weights not in (None, *WEIGHTS):
        known = ", ".join(map(repr, WEIGHTS))
        raise TargetError(Argument("weights"), f" must be None or one of {known}, not {weights!r}")
    bound = [cpu for cpu in topology.usable if cpu.number in setting.cpus]
    cpus = bound or topology.usable
    sockets = {cpu.socket for cpu in cpus}
    if weights == "replicate" and len(sockets) > 1:
        raise TargetError(
            Argument("weights", value="replicate"),
            " needs threads that are bound to one socket, such as ",
            Argument("threads", value="socket:0"),
            ": make one session for each socket",
        )
    if weights is None:
        weights = "replicate" if bound and len(sockets) == 1 else "first-touch"
    nodes = tuple(sorted({cpu.node for cpu in cpus}.intersection(topology.memory_nodes)))
    if weights == "first-touch":
        return ()
    if len(topology.memory_nodes) == 1:
        logger.info("this machine has one memory node: weights stay where they are")
        return ()
    if not nodes:
        numbers = format_cpus(cpu.number for cpu in cpus)
        logger.warning("no memory is next to CPUs %s: weights stay where they are", numbers)
    return nodes


def place_weights(tensors: Iterable[Tensor], nodes: Nodes, calls: MemoryCalls | None = None) -> int:
    """Moves the whole pages of tensors to nodes, in turns, and keeps them there.

    Returns the number of bytes placed. If Linux refuses, it warns and stops.
    """
    calls, placed, listed = calls or LinuxCalls(), 0, ", ".join(map(str, nodes))
    ranges = {(tensor.data_ptr(), bytes_of(tensor)) for tensor in tensors}
    for start, size in sorted(ranges) if nodes else ():
        first, last = -(-start // PAGE) * PAGE, (start + size) // PAGE * PAGE
        if first >= last:
            continue
        try:
            placed += calls.place(first, last - first, nodes)
        except OSError as error:
            logger.warning(
                "Linux refuses to put weights on memory nodes %s (%s); they stay where they were "
                "first touched; a container may need the capability SYS_NICE",
                listed,
                error.strerror,
            )
            return placed
    if nodes:
        logger.info("%d bytes of weights are on memory nodes %s", placed, listed)
    return placed


def refusal(nodes: Nodes, calls: MemoryCalls | None = None) -> str:
    """Why Linux refuses to place memory for this process; empty if it does not."""
    page = mmap.mmap(-1, PAGE)
    try:
        (calls or LinuxCalls()).place(np.frombuffer(page, np.uint8).ctypes.data, PAGE, nodes)
    except OSError as error:
        return error.strerror or str(error)
    return ""


PAGE = mmap.PAGESIZE
# Nodes alternate after this many bytes, because a huge page moves as a whole.
TURN = 1 << 21

# System calls of x86-64; Linux, include/uapi/linux/mempolicy.h and arch/x86/entry/syscalls.
_MBIND, _MOVE_PAGES = 237, 279
_PREFERRED, _INTERLEAVE = 1, 3
_MOVE = 1 << 1  # also moves pages of this process that lie on other nodes already
_WORD = 8 * ctypes.sizeof(ctypes.c_ulong)


class MemoryCalls(Protocol):
    """Calls of the operating system, which tests replace."""

    def place(self, start: int, size: int, nodes: Sequence[int]) -> int:
        """Moves whole pages to nodes, in turns, and keeps them there.

        Returns
        -------
        int
            Bytes that are on their nodes; pages that were never touched, or are busy, do not count.

        Raises
        ------
        OSError
            If Linux refuses, as in many containers.
        """


class LinuxCalls:
    """The real system calls."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def place(self, start: int, size: int, nodes: Sequence[int]) -> int:
        """Implements `MemoryCalls.place` by `mbind` and `move_pages`.

        `mbind` alone would leave a page that already lies on any of the nodes.
        """
        # The nodes as bits, and one bit more, as Linux ignores the last bit.
        mask = (ctypes.c_ulong * (max(nodes) // _WORD + 1))()
        for node in nodes:
            mask[node // _WORD] |= 1 << node % _WORD
        # A single node is only preferred, so that a full one is no error; several alternate.
        policy = _PREFERRED if len(nodes) == 1 else _INTERLEAVE
        self._call(_MBIND, start, size, policy, mask, _WORD * len(mask) + 1, 0)
        pages = np.arange(start, start + size, PAGE, dtype=np.uint64)
        wanted = np.array(nodes, np.int32)[pages // TURN % len(nodes)]
        return PAGE * int(np.count_nonzero(self._move(pages, wanted) == wanted))

    def nodes_of(self, start: int, size: int) -> list[int]:
        """Returns the node of each page; negative values are an errno, as for untouched pages.

        Raises
        ------
        OSError
            If Linux refuses.
        """
        return self._move(np.arange(start, start + size, PAGE, dtype=np.uint64), None).tolist()

    def _move(
        self, pages: np.ndarray[Any, Any], nodes: np.ndarray[Any, Any] | None
    ) -> np.ndarray[Any, Any]:
        """Moves pages, if nodes are given, and returns the node of each page."""
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
