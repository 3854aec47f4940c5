"""The time of a kernel on so many threads: of the busiest one, in named parts.

TVM cuts a parallel loop into as many runs of rounds as there are threads, all but the last of the
same length. A thread computes while it fetches, so that the longest of computing, fetching from L2,
and fetching from beyond counts.

Instructions keep their ports busy, or wait for each other. What waits in one round of a loop does
not keep the next round waiting if its sums begin anew there: as many rounds are under way as the
core's reorder buffer holds, if it foresees the branches between them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil

from microkernels.machines.machine import Machine

from .index import Environment
from .nodes import Body, Branch, Loop, Program, Walk, Work
from .traffic import Part, Touched, Traffic, footprint, foreign_bytes, parts_of, split_lines


@dataclass(frozen=True)
class Pace:
    """What limits some instructions.

    Attributes
    ----------
    busy : float
        Cycles in which they keep ports busy.
    waiting : float
        Cycles if each one that needs another's result waits for it; no less than `busy`.
    entries : float
        Of the reorder buffer that they take.
    counts : Counter of str
        The instructions by kind.
    """

    busy: float = 0.0
    waiting: float = 0.0
    entries: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    def plus(self, other: Pace, times: int = 1) -> Pace:
        """With so many times of something else behind it."""
        counts = self.counts.copy()
        for kind, number in other.counts.items():
            counts[kind] += times * number
        busy, waiting = self.busy + times * other.busy, self.waiting + times * other.waiting
        return Pace(busy, waiting, self.entries + times * other.entries, counts)

    def side_by_side(self, entries: float) -> Pace:
        """Where what follows does not wait for it, with so many entries of the reorder buffer."""
        under_way = max(1.0, entries / self.entries) if self.entries else 1.0
        cycles = max(self.busy, self.waiting / under_way)
        return Pace(cycles, cycles, self.entries, self.counts)


def work_pace(work: Work, machine: Machine) -> Pace:
    """Of instructions without a loop around them."""
    counts = work.counts
    products = counts["fma"] + counts["dot"]
    halves = counts["bf16"] / machine.bf16_rate if counts["bf16"] else 0.0
    arithmetic = (products + counts["vector"]) / machine.vector_rate + halves
    loads = counts["load"] + counts["gather"] + counts["prefetch"]
    tiles, clock = machine.tile_core, machine.cycles_per_us
    entries = products + counts["vector"] + counts["bf16"] + loads + counts["broadcast"]
    entries += counts["store"]
    latencies = machine.fma_latency, machine.vector_latency
    waiting = [steps * latencies[0] + others * latencies[1] for steps, others in work.chains]
    cycles = max(
        arithmetic + counts["divide"] * machine.divide_cycles,
        products / machine.fma_rate + halves,
        loads / machine.load_rate + counts["broadcast"] / machine.broadcast_rate,
        counts["store"] / machine.store_rate,
        entries / machine.issue_rate,
    )
    if any(kind.startswith("tile") for kind in counts):
        latency = tiles.tdp_latency if counts["tile_product"] else 0.0
        loading, storing = counts["tile_load"] * tiles.load, counts["tile_store"] * tiles.store
        multiplying = max(counts["tile_product"] * tiles.tdp, loading, storing, latency)
        multiplying += counts["tile_configure"] * tiles.configure
        multiplying += counts["tile_release"] * tiles.release
        cycles = max(cycles, multiplying * clock / tiles.clock)
    called = counts["library"] * machine.library_cycles
    slowest = max(cycles, *waiting, 0.0)
    return Pace(cycles + called, slowest + called, entries, Counter(counts))


class Cycles(Walk[Pace]):
    """Follows a kernel's loops on a machine; also sums up its instructions."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine

    def inside(self, body: Body, environment: Environment) -> Pace:
        """Everything in a body, one after the other."""
        pace = work_pace(body.work, self.machine)
        if body.children:
            pace = replace(pace, busy=pace.waiting)
        for child in body.children:
            pace = pace.plus(self.child(child, environment))
        return pace

    def loop(self, loop: Loop, count: int, environment: Environment, first: int = 0) -> Pace:
        """Of some rounds of a loop."""
        if count <= 0:
            return Pace()
        varies = loop.number in loop.body.controls
        pace = Pace()
        for i in range(first, first + count) if varies else [first]:
            inside = self.body(loop.body, {**environment, loop.number: i})
            pace = pace.plus(inside, 1 if varies else count)
        machine, foreseen = self.machine, count <= self.machine.foreseen_rounds
        if loop.anew:
            pace = pace.side_by_side(machine.reorder_entries if foreseen else 0.0)
        if not loop.body.children and count > 1:
            missed = 0.0 if foreseen else machine.branch_miss
            pace = pace.plus(Pace(missed, missed, counts=Counter({"loop ends": 1})))
        return pace


NEAR, SHARED, FAR, FOREIGN = "L2", "L3", "memory", "another core"
COMPUTE, IMBALANCE = "compute", "imbalance"
LEAST_LOSS = 0.1  # of the time, to be called the limit


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
    timer = _Timer(machine, origins or {})
    phases = tuple(timer.phases(program.body, {}))
    return KernelTime(phases, machine.call_us, timer.counts, timer.parts)


class _Timer:
    def __init__(self, machine: Machine, origins: Mapping[int, Origin]) -> None:
        self.machine, self.origins = machine, origins
        self.cycles = Cycles(machine)
        self.traffic = Traffic((machine.l1_bytes, machine.l2_bytes))
        self.counts: Counter[str] = Counter()
        self.parts: dict[int, Part] = {}

    def phases(self, body: Body, environment: Environment) -> Iterator[Phase]:
        """The phases of what may have parallel loops in it; neighbours in series are one."""
        serial = Body(body.work)
        for child in body.children:
            if not _forks(child):
                serial.children.append(child)
                continue
            yield from self._series(serial, environment)
            serial = Body()
            if isinstance(child, Branch):
                yield from self.phases(child.taken(environment), environment)
            elif child.parallel:
                yield self._parallel(child, environment)
            else:
                for i in range(child.extent.evaluate(environment)):
                    yield from self.phases(child.body, {**environment, child.number: i})
        yield from self._series(serial, environment)

    def _series(self, body: Body, environment: Environment) -> Iterator[Phase]:
        if not body.children and not body.work.counts:
            return
        pace = self.cycles.body(body, environment)
        self.counts += pace.counts
        touched = self.traffic.body(body, environment)
        prefetched = pace.counts["prefetch"] > 0
        yield self._phase(1, False, pace.waiting, pace.waiting, touched, prefetched)

    def _parallel(self, loop: Loop, environment: Environment) -> Phase:
        total = loop.extent.evaluate(environment)
        length = max(1, ceil(total / self.machine.threads))
        cycles, first, everything, prefetched = 0.0, 0, 0.0, False
        starts = range(0, total, length)
        for start in starts:
            count = min(length, total - start)
            pace = self.cycles.loop(loop, count, environment, start)
            self.counts += pace.counts
            prefetched |= pace.counts["prefetch"] > 0
            everything += pace.waiting
            if pace.waiting > cycles:
                cycles, first = pace.waiting, start
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
        first = footprint(touched.patterns)
        written = footprint([pattern for pattern in touched.patterns if pattern.store])
        parts = parts_of(touched.patterns, threads)
        near, beyond = touched.fetched
        rates = {SHARED: machine.l3_rate(threads), FAR: machine.memory_rate(threads)}
        rates |= {NEAR: machine.l2_rate, FOREIGN: machine.other_core_rate}
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
