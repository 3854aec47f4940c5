"""The time of a kernel on so many threads: of the busiest one, in named parts.

TVM cuts a parallel loop into as many runs of rounds as there are threads, all but the last of the
same length. A thread computes while it fetches, so that the longest of computing, fetching from L2,
and fetching from beyond counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil

from microkernels.machines.machine import Machine

from .cycles import Cycles
from .index import Environment
from .nodes import Body, Branch, Loop, Memory, Program
from .traffic import Touched, Traffic, footprint

NEAR, SHARED, FAR, FOREIGN = "L2", "L3", "memory", "another core"


@dataclass(frozen=True)
class Phase:
    """A parallel loop, or what one thread does before, between and after those.

    Attributes
    ----------
    threads : int
        Threads that have something to do; 1 if nothing is parallel.
    parallel : bool
        Whether it is forked.
    compute : float
        Microseconds in which the busiest thread computes from its first cache.
    mean : float
        The same, if work were divided equally among all threads.
    bytes : dict
        What the busiest thread fetches, by level.
    transfer : dict
        Microseconds that this takes, by level.
    fork : float
        Microseconds of forking and joining.
    """

    threads: int
    parallel: bool
    compute: float
    mean: float
    bytes: Mapping[str, float]
    transfer: Mapping[str, float]
    fork: float

    @property
    def beyond(self) -> float:
        """Microseconds that fetching from beyond L2 takes."""
        return sum(time for level, time in self.transfer.items() if level != NEAR)

    @property
    def time(self) -> float:
        """Microseconds."""
        return max(self.compute, self.transfer[NEAR], self.beyond) + self.fork


@dataclass(frozen=True)
class KernelTime:
    """One call of a kernel.

    Attributes
    ----------
    phases : tuple of Phase
        One after the other.
    call : float
        Microseconds of the call.
    counts : Counter of str
        Instructions of all threads, by kind.
    """

    phases: tuple[Phase, ...]
    call: float
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def time(self) -> float:
        """Microseconds."""
        return self.call + sum(phase.time for phase in self.phases)


def kernel_time(
    program: Program, machine: Machine, origins: Mapping[int, str] | None = None
) -> KernelTime:
    """How long a kernel takes on a machine with its number of threads.

    Parameters
    ----------
    program : Program
        The kernel.
    machine : Machine
        Where it runs.
    origins : mapping from int to str
        Parameter -> where its bytes are when the kernel begins; L2 for those that are not named.
    """
    return _Timer(program, machine, origins or {}).time()


class _Timer:
    def __init__(self, program: Program, machine: Machine, origins: Mapping[int, str]) -> None:
        self.program, self.machine, self.origins = program, machine, origins
        self.cycles = Cycles(machine)
        self.traffic = Traffic((machine.l1_bytes, machine.l2_bytes))
        self.counts: Counter[str] = Counter()

    def time(self) -> KernelTime:
        phases = tuple(self._body(self.program.body, {}))
        return KernelTime(phases, self.machine.call_us, self.counts)

    def _body(self, body: Body, environment: Environment) -> Iterator[Phase]:
        """The phases of what may have parallel loops in it; neighbours in series are one."""
        serial = Body(body.work)
        for child in body.children:
            if not _forks(child):
                serial.children.append(child)
                continue
            yield from self._series(serial, environment)
            serial = Body()
            if isinstance(child, Branch):
                taken = child.condition.known and child.condition.evaluate(environment)
                yield from self._body(child.then if taken else child.otherwise, environment)
            elif child.parallel:
                yield self._parallel(child, environment)
            else:
                for i in range(child.extent.evaluate(environment)):
                    yield from self._body(child.body, {**environment, child.number: i})
        yield from self._series(serial, environment)

    def _series(self, body: Body, environment: Environment) -> Iterator[Phase]:
        if not body.children and not body.work.counts:
            return
        cycles, counts = self.cycles.body(body, environment)
        self.counts += counts
        yield self._phase(1, False, cycles, cycles, self.traffic.body(body, environment))

    def _parallel(self, loop: Loop, environment: Environment) -> Phase:
        total = loop.extent.evaluate(environment)
        length = max(1, ceil(total / self.machine.threads))
        cycles, first, everything = 0.0, 0, 0.0
        starts = range(0, total, length)
        for start in starts:
            count = min(length, total - start)
            found, counts = self.cycles.loop(loop, count, environment, start)
            self.counts += counts
            everything += found
            if found > cycles:
                cycles, first = found, start
        touched = self.traffic.loop(loop, min(length, total - first), environment, first)
        mean = everything / self.machine.threads
        return self._phase(len(starts), True, cycles, mean, touched)

    def _phase(
        self, threads: int, parallel: bool, cycles: float, mean: float, touched: Touched
    ) -> Phase:
        machine, clock = self.machine, self.machine.cycles_per_us
        sizes: dict[str, float] = dict.fromkeys((NEAR, SHARED, FAR, FOREIGN), 0.0)
        first = footprint(touched.patterns)
        near, beyond = touched.fetched
        sizes[NEAR] = sum(near.values())
        for memory, size in beyond.items():
            once = min(size, first.get(memory, 0.0))
            origin = self._origin(memory)
            if origin == FOREIGN:  # but for what it has written itself
                sizes[FOREIGN] += max(0.0, once - memory.size / threads)
            elif origin != NEAR:
                sizes[origin] += once
            if size > once:
                sizes[SHARED] += size - once
        rates = {
            NEAR: machine.l2_rate,
            SHARED: machine.l3_rate(threads),
            FAR: machine.memory_rate(threads),
            FOREIGN: machine.foreign_rate,
        }
        return Phase(
            threads=threads,
            parallel=parallel,
            compute=cycles / clock,
            mean=mean / clock,
            bytes=sizes,
            transfer={level: size / rates[level] for level, size in sizes.items()},
            fork=machine.fork_us(threads) if parallel else 0.0,
        )

    def _origin(self, memory: Memory) -> str:
        if memory.parameter < 0:
            return NEAR
        return self.origins.get(memory.parameter, NEAR)


def _forks(node: Loop | Branch) -> bool:
    """Whether a parallel loop is in it."""
    if isinstance(node, Loop):
        return node.parallel or any(_forks(child) for child in node.body.children)
    return any(_forks(child) for body in (node.then, node.otherwise) for child in body.children)
