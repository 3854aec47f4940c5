"""The time of a kernel on so many threads: of the busiest one, in named parts.

TVM cuts a parallel loop into as many runs of rounds as there are threads, all but the last of the
same length. A thread computes while it fetches, so that the longest of computing, fetching from L2,
and fetching from beyond counts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from microkernels.machines.machine import Machine

from .cycles import Cycles
from .footprint import LINE, Pattern
from .index import Environment
from .nodes import Body, Branch, Loop, Memory, Program
from .traffic import Touched, Traffic, footprint, stored

NEAR, SHARED, FAR, FOREIGN = "L2", "L3", "memory", "another core"
COMPUTE, IMBALANCE = "compute", "imbalance"
LEAST_LOSS = 0.1  # of the time, to be called the limit
# What comes from L2 so many times as often as from beyond was fetched by the first pass of a loop.
READ_AGAIN = 2.0
ROWS, COLUMNS, ALL = "rows", "columns", "all"


@dataclass(frozen=True)
class Part:
    """What the busiest thread touches of a parameter.

    Attributes
    ----------
    form : str
        A run of rows, columns, or all of it.
    threads : int
        That share it.
    """

    form: str
    threads: int


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
    sharing : float
        Microseconds of waiting for lines that another thread writes too.
    first_pass : float
        Microseconds of `transfer` in which a loop fetches what it then reads again and again.
    overlap : float
        How much of the shorter of computing and moving hides behind the longer, 0 to 1.
    """

    threads: int
    parallel: bool
    compute: float
    mean: float
    bytes: Mapping[str, float]
    transfer: Mapping[str, float]
    fork: float
    sharing: float = 0.0
    first_pass: float = 0.0
    overlap: float = 1.0

    @property
    def named(self) -> dict[str, float]:
        """Microseconds by what takes them; together the time."""
        found = {COMPUTE: self.mean, IMBALANCE: self.compute - self.mean, "forks": self.fork}
        found["shared lines"] = self.sharing
        rest = self.time - sum(found.values())
        moving = sum(self.transfer.values())
        for level, time in self.transfer.items():
            found[level] = rest * time / moving if moving else 0.0
        return {name: time for name, time in found.items() if time > 0}

    @property
    def beyond(self) -> float:
        """Microseconds that fetching from beyond L2 takes."""
        return sum(time for level, time in self.transfer.items() if level in (SHARED, FAR))

    @property
    def time(self) -> float:
        """Microseconds."""
        moving = max(self.transfer[NEAR], self.beyond - self.first_pass)
        longer, shorter = max(self.compute, moving), min(self.compute, moving)
        waiting = self.transfer[FOREIGN] + self.sharing + self.first_pass
        return longer + (1 - self.overlap) * shorter + waiting + self.fork


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
    parts : mapping from int to Part
        What the busiest thread touches of each parameter, in the last phase that does.
    """

    phases: tuple[Phase, ...]
    call: float
    counts: Counter[str] = field(default_factory=Counter)
    parts: Mapping[int, Part] = field(default_factory=dict)

    @property
    def time(self) -> float:
        """Microseconds."""
        return self.call + sum(phase.time for phase in self.phases)

    @property
    def named(self) -> dict[str, float]:
        """Microseconds by what takes them; together the time."""
        found: dict[str, float] = defaultdict(float)
        found["call"] += self.call
        parallel = any(phase.parallel for phase in self.phases)
        for phase in self.phases:
            for name, time in phase.named.items():
                serial = parallel and not phase.parallel
                found["serial part" if serial else name] += time
        return dict(found)

    @property
    def limit(self) -> str:
        """What takes the most beyond an equal share of computing; that, if little does."""
        named = self.named
        losses = {name: time for name, time in named.items() if name != COMPUTE}
        worst = max(losses, key=lambda name: losses[name], default=COMPUTE)
        return worst if losses and sum(losses.values()) > LEAST_LOSS * self.time else COMPUTE

    @property
    def busy(self) -> int:
        """Threads that have something to do in the longest phase."""
        return max(self.phases, key=lambda phase: phase.time).threads if self.phases else 1


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
        parts = _parts(touched.patterns, threads)
        near, beyond = touched.fetched
        rates = {
            NEAR: machine.l2_rate,
            SHARED: machine.l3_rate(threads),
            FAR: machine.memory_rate(threads),
            FOREIGN: machine.foreign_rate,
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
                moved[FOREIGN] = _foreign(once, memory, parts.get(memory.parameter), had)
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
        split = _split_lines(touched.patterns, parts)
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


def _parts(patterns: Sequence[Pattern], threads: int) -> dict[int, Part]:
    """What form the parts of the parameters have that a thread touches."""
    sizes, found = footprint(patterns), {}
    for pattern in patterns:
        memory = pattern.memory
        if not memory.shared:
            continue
        share = memory.size / threads
        hull = max(p.hull for p in patterns if p.memory is memory)
        if hull <= 1.5 * share:
            form = ROWS
        else:
            form = ALL if sizes[memory] > 0.75 * memory.size else COLUMNS
        found[memory.parameter] = Part(form, threads)
    return found


def _foreign(touched: float, memory: Memory, part: Part | None, had: Part | None) -> float:
    """Bytes of what a thread touches that another core had."""
    if had is None or part is None:
        return 0.0
    if part == had and part.form != ALL:
        return max(0.0, touched - memory.size / part.threads)
    most = max(part.threads, had.threads)
    return touched * (most - 1) / most


def _split_lines(patterns: Sequence[Pattern], parts: Mapping[int, Part]) -> float:
    """Lines at the borders of a thread's columns that a neighbour writes too."""
    found: dict[Memory, int] = {}
    for pattern in patterns:
        part = parts.get(pattern.memory.parameter)
        if not pattern.store or part is None or part.form != COLUMNS:
            continue
        if pattern.width % LINE or any(step % LINE for step, _ in pattern.dimensions):
            rows = pattern.dimensions[-1][1] if pattern.dimensions else 1
            found[pattern.memory] = max(rows, found.get(pattern.memory, 0))
    return float(sum(found.values()))


def _forks(node: Loop | Branch) -> bool:
    """Whether a parallel loop is in it."""
    if isinstance(node, Loop):
        return node.parallel or any(_forks(child) for child in node.body.children)
    return any(_forks(child) for body in (node.then, node.otherwise) for child in body.children)
