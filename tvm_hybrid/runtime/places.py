"""Places: parts of the machine that threads of a run are bound to, by name or as a list of CPUs."""

from __future__ import annotations

import ctypes
import functools
import mmap
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from tvm.runtime import Tensor

from microkernels.base.errors import Argument, TargetError
from microkernels.base.logs import logger
from relay_passes.ir.constants import bytes_of

from .thread_pool.native import RUN, resolve_spin
from .topology import Cpu, Topology, cores_first, format_cpus, parse_cpus

PlaceLike = str | Sequence[int]
_FORMS = '"all", "socket:0", "node:0" or a list of CPUs such as "0-3,8"'
_GROUPS: dict[str, Callable[[Cpu], int]] = {
    "socket": lambda cpu: cpu.socket,
    "node": lambda cpu: cpu.node,
}


def cpus_of(place: PlaceLike, topology: Topology) -> tuple[Cpu, ...]:
    """The CPUs of a place that this process may use: one of each core, then the others.

    Parameters
    ----------
    place : str or sequence of int
        "all"; "socket:N" and "node:N", by the numbers of Linux; CPUs as a list "0-3,8" or as
        numbers, in the order in which threads get them.
    topology : Topology
        The machine.

    Raises
    ------
    TargetError
        Saying what there is instead.
    """
    if not isinstance(place, str):
        return _listed(_numbers(place), topology)
    name, colon, number = place.partition(":")
    if place == "all":
        return topology.usable
    if colon and name in _GROUPS:
        return _group(name, number, topology)
    try:
        return _listed(parse_cpus(place), topology)
    except ValueError as error:
        raise TargetError(
            Argument("threads"), f" must be a number, {_FORMS}, not {place!r}: {error}"
        ) from error


def _group(name: str, number: str, topology: Topology) -> tuple[Cpu, ...]:
    of = _GROUPS[name]
    known = topology.groups(of)
    if number.isascii() and number.isdigit():
        if found := tuple(cpu for cpu in topology.usable if of(cpu) == int(number)):
            return found
        if taken := [cpu.number for cpu in topology.cpus if of(cpu) == int(number)]:
            raise TargetError(
                f"this process may use none of the CPUs of {name}:{number} "
                f"({format_cpus(taken)}): its affinity or a cpuset leaves "
                f"{format_cpus(topology.allowed)}",
                argument="threads",
            )
    have = ", ".join(f"{name}:{n} (CPUs {format_cpus(cpus)})" for n, cpus in known.items())
    raise TargetError(
        f"there is no {name}:{number} with CPUs; this process may use {have}", argument="threads"
    )


def _numbers(place: Sequence[int]) -> tuple[int, ...]:
    try:
        numbers = tuple(place)
        if not any(isinstance(number, bool) for number in numbers):
            return tuple(map(operator.index, numbers))
    except TypeError:
        pass
    raise TargetError(Argument("threads"), f" must be a number, {_FORMS}, not {place!r}")


def _listed(numbers: tuple[int, ...], topology: Topology) -> tuple[Cpu, ...]:
    if not numbers:
        raise TargetError(Argument("threads"), f" names no CPU; give a number, {_FORMS}")
    if twice := {number for number in numbers if numbers.count(number) > 1}:
        raise TargetError(Argument("threads"), f" names CPU {format_cpus(twice)} twice")
    usable = {cpu.number for cpu in topology.usable}
    if wrong := [number for number in numbers if number not in usable]:
        online = {cpu.number for cpu in topology.cpus}
        why = "is not online" if wrong[0] not in online else "is not for this process"
        raise TargetError(
            f"CPU {wrong[0]} of ",
            Argument("threads"),
            f" {why}; this process may use {format_cpus(usable)}",
        )
    by_number = {cpu.number: cpu for cpu in topology.usable}
    return cores_first(by_number[number] for number in numbers)


@dataclass(frozen=True)
class PoolSetting:
    """What the pool of threads does for a calling thread.

    Attributes
    ----------
    count : int
        Threads of a run, the calling thread included.
    cpus : tuple of int
        A CPU for each, the first for the calling thread, which is not bound to it; empty if
        workers may run wherever the process may.
    spin : {"run", "always", "never"}
        For how long threads wait awake.
    """

    count: int
    cpus: tuple[int, ...] = ()
    spin: str = RUN

    @staticmethod
    def of(count: int, cpus: tuple[int, ...] = (), spin: str | None = None) -> PoolSetting:
        """The same object for the same setting: every run asks whether its own is in force.

        Raises
        ------
        TargetError
            If there is no such `spin`; None is the default of `resolve_spin`.
        """
        return _of(count, cpus, resolve_spin(spin))


@functools.cache
def _of(count: int, cpus: tuple[int, ...], spin: str) -> PoolSetting:
    return PoolSetting(count, cpus, spin)


@contextmanager
def on_cpus(cpus: Sequence[int]) -> Iterator[None]:
    """Inside, the calling thread and what it starts run on these CPUs alone; on any if there are
    none.
    """
    if not cpus:
        yield
        return
    former = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, former)


# On which memory nodes the weights of a program lie.
#
# Linux puts a page where the thread runs that writes to it first: for weights the one that compiles
# or loads. Threads next to other nodes read it more slowly. Every program has weights of its own,
# whether compiled or loaded, so programs that are bound to different sockets are replicas.


WEIGHTS = ("first-touch", "interleave", "replicate")

Nodes = tuple[int, ...]


def nodes_for(weights: str | None, setting: PoolSetting, topology: Topology) -> Nodes:
    """The nodes that weights are to be spread over; none where they stay as they are.

    Parameters
    ----------
    weights : {"first-touch", "interleave", "replicate"} or None
        "first-touch": they stay. "interleave": pages go in turns to the nodes of the CPUs that
        threads run on. "replicate": the same, within one socket; programs that are bound to other
        sockets have weights of their own there. None: "replicate" for threads that are bound to
        one socket, else "first-touch".
    setting : PoolSetting
        Where threads run.
    topology : Topology
        The machine.

    Raises
    ------
    TargetError
        If there is no such choice, or threads of several sockets are to have replicas.
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

    Returns
    -------
    int
        Bytes that lie there. A refusal of Linux is a warning, and no byte is placed after it.
    """
    calls, placed = calls or LinuxCalls(), 0
    ranges = {(tensor.data_ptr(), bytes_of(tensor)) for tensor in tensors}
    for start, size in sorted(ranges) if nodes else ():
        first, last = -(-start // PAGE) * PAGE, (start + size) // PAGE * PAGE
        if first >= last:
            continue
        try:
            placed += calls.place(first, last - first, nodes)
        except OSError as error:
            _warn(nodes, error)
            return placed
    if nodes:
        logger.info("%d bytes of weights are on memory nodes %s", placed, _listed_weights(nodes))
    return placed


def refusal(nodes: Nodes, calls: MemoryCalls | None = None) -> str:
    """Why Linux places no memory for this process; empty if it does."""
    page = mmap.mmap(-1, PAGE)
    try:
        (calls or LinuxCalls()).place(np.frombuffer(page, np.uint8).ctypes.data, PAGE, nodes)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _warn(nodes: Nodes, error: OSError) -> None:
    logger.warning(
        "Linux refuses to put weights on memory nodes %s (%s); they stay where they were first "
        "touched; a container may need the capability SYS_NICE",
        _listed_weights(nodes),
        error.strerror,
    )


def _listed_weights(nodes: Nodes) -> str:
    return ", ".join(map(str, nodes))


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
