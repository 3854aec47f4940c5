"""Places: sets of CPUs that the threads of a run are bound to, given by name or as a list."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from microkernels.base.errors import Argument, TargetError

from .thread_pool.native import RUN, resolve_spin
from .topology import Cpu, Topology, cores_first, format_cpus, parse_cpus

PlaceLike = str | Sequence[int]
_FORMS = '"all", "socket:0", "node:0" or a list of CPUs such as "0-3,8"'
_GROUPS: dict[str, Callable[[Cpu], int]] = {
    "socket": lambda cpu: cpu.socket,
    "node": lambda cpu: cpu.node,
}


def cpus_of(place: PlaceLike, topology: Topology) -> tuple[Cpu, ...]:
    """Returns the CPUs of a place that this process may use: one of each core first.

    Parameters
    ----------
    place : str or sequence of int
        "all"; "socket:N" and "node:N", numbered as in Linux; CPUs as a list "0-3,8" or as numbers,
        in the order in which threads get them.
    topology : Topology
        The machine.

    Raises
    ------
    TargetError
        If there is no such place; names the existing ones.
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
    """How the thread pool serves a calling thread.

    Attributes
    ----------
    count : int
        Threads of a run, the calling thread included.
    cpus : tuple of int
        A CPU for each thread, the first for the calling thread, which is not bound to it; empty if
        workers may run wherever the process may.
    spin : {"run", "always", "never"}
        How long threads wait awake.
    """

    count: int
    cpus: tuple[int, ...] = ()
    spin: str = RUN

    @staticmethod
    def of(count: int, cpus: tuple[int, ...] = (), spin: str | None = None) -> PoolSetting:
        """Returns one shared object per setting, so that a run can compare settings by identity.

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
    """Inside, the calling thread and threads that it starts run only on these CPUs; an empty
    sequence changes nothing.
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
