"""The time of a kernel on so many threads: of the busiest one, in named parts.

TVM cuts a parallel loop into as many runs of rounds as there are threads, all but the last of the
same length. A thread computes while it fetches, so that the longest of computing, fetching from L2,
and fetching from beyond counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from microkernels.machines.machine import Machine

from .cycles import FAR, FOREIGN, NEAR, SHARED, Cycles, KernelTime, Phase
from .index import Environment
from .nodes import Body, Branch, Loop, Program
from .traffic import Part, Touched, Traffic, footprint, foreign_bytes, parts_of, split_lines, stored

# What comes from L2 so many times as often as from beyond was fetched by the first pass of a loop.
READ_AGAIN = 2.0


@dataclass(frozen=True)
class Origin:
    """Where a parameter's bytes are when a kernel begins.

    Attributes
    ----------
    level : str
        The nearest level that holds them.
    part : Part or None
        The part that each thread has in its own caches, if the level is L2; None: its own part.
    """

    level: str
    part: Part | None = None


def kernel_time(
    program: Program, machine: Machine, origins: Mapping[int, Origin] | None = None
) -> KernelTime:
    """How long a kernel takes on a machine with its number of threads.

    Parameters
    ----------
    program : Program
        The kernel.
    machine : Machine
        Where it runs.
    origins : mapping from int to Origin
        Parameter -> where its bytes are when the kernel begins; L2 for those that are not named.
    """
    return _Timer(program, machine, origins or {}).time()


class _Timer:
    def __init__(self, program: Program, machine: Machine, origins: Mapping[int, Origin]) -> None:
        self.program, self.machine, self.origins = program, machine, origins
        self.cycles = Cycles(machine)
        self.traffic = Traffic((machine.l1_bytes, machine.l2_bytes))
        self.counts: Counter[str] = Counter()
        self.parts: dict[int, Part] = {}

    def time(self) -> KernelTime:
        phases = tuple(self._body(self.program.body, {}))
        return KernelTime(phases, self.machine.call_us, self.counts, self.parts)

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
        touched = self.traffic.body(body, environment)
        prefetched = counts["prefetch"] > 0
        yield self._phase(1, False, cycles, cycles, touched, prefetched)

    def _parallel(self, loop: Loop, environment: Environment) -> Phase:
        total = loop.extent.evaluate(environment)
        length = max(1, ceil(total / self.machine.threads))
        cycles, first, everything, prefetched = 0.0, 0, 0.0, False
        starts = range(0, total, length)
        for start in starts:
            count = min(length, total - start)
            found, counts = self.cycles.loop(loop, count, environment, start)
            self.counts += counts
            prefetched |= counts["prefetch"] > 0
            everything += found
            if found > cycles:
                cycles, first = found, start
        touched = self.traffic.loop(loop, min(length, total - first), environment, first)
        mean = everything / self.machine.threads
        return self._phase(len(starts), True, cycles, mean, touched, prefetched)

    def _phase(
        self,
        threads: int,
        parallel: bool,
        cycles: float,
        mean: float,
        touched: Touched,
        prefetched: bool,
    ) -> Phase:
        machine, clock = self.machine, self.machine.cycles_per_us
        sizes: dict[str, float] = dict.fromkeys((NEAR, SHARED, FAR, FOREIGN), 0.0)
        first, written = footprint(touched.patterns), stored(touched.patterns)
        parts = parts_of(touched.patterns, threads)
        near, beyond = touched.fetched
        rates = {
            NEAR: machine.l2_rate,
            SHARED: machine.l3_rate(threads),
            FAR: machine.memory_rate(threads),
            FOREIGN: machine.other_core_rate,
        }
        alone = {SHARED: machine.l3_rate(), FAR: machine.memory_rate()}
        transfer = dict.fromkeys(sizes, 0.0)
        waiting = 0.0
        for memory, size in beyond.items():
            once = min(size, first.get(memory, 0.0))
            moved = {SHARED: size - once}
            origin = self.origins.get(memory.parameter, Origin(NEAR))
            had = origin.part if memory.parameter >= 0 else None
            had = self.parts.get(memory.parameter, had)  # an earlier phase's
            if had is not None or origin.level == NEAR:
                moved[FOREIGN] = foreign_bytes(once, memory, parts.get(memory.parameter), had)
            else:
                # What one thread has got from memory, others get from the shared cache.
                share = min(once, memory.size / threads) if origin.level == FAR else once
                moved[SHARED] += once - share
                moved[origin.level] = moved.get(origin.level, 0.0) + share
            again = near.get(memory, 0.0) >= READ_AGAIN * size
            for level, part in moved.items():
                sizes[level] += part
                rate = rates[level]
                if again and level != FOREIGN:
                    if not prefetched:
                        rate = min(rate, alone[level] * machine.first_pass)
                    waiting += part / rate
                transfer[level] += part / rate
        sizes[NEAR] = sum(near.values()) + sum(written.values())
        transfer[NEAR] = sizes[NEAR] / rates[NEAR]
        split = split_lines(touched.patterns, parts)
        self.parts.update(parts)
        return Phase(
            threads=threads,
            parallel=parallel,
            compute=cycles / clock / machine.reached,
            mean=mean / clock / machine.reached,
            bytes=sizes,
            transfer=transfer,
            first_pass=waiting,
            sharing=split * machine.shared_line_us if threads > 1 else 0.0,
            fork=machine.fork_us(threads) if parallel else 0.0,
            overlap=machine.overlap,
        )


def _forks(node: Loop | Branch) -> bool:
    """Whether a parallel loop is in it."""
    if isinstance(node, Loop):
        return node.parallel or any(_forks(child) for child in node.body.children)
    return any(_forks(child) for body in (node.then, node.otherwise) for child in body.children)
