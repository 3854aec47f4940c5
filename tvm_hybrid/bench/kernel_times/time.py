"""Time of a kernel on several threads: that of the busiest thread, in named parts.

TVM cuts a parallel loop into one run of iterations for each thread, all of equal length except the
last. A thread computes while it fetches, so the longest of computing, fetching from L2, and
fetching from beyond counts.

Instructions keep their ports busy, or wait for each other. Waiting in one iteration does not delay
the next one if its sums are initialised there: then as many iterations overlap as the core's
reorder buffer holds, if it predicts the branches between them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil

from microkernels.machines.machine import Machine

from .index import Environment
from .nodes import Body, Branch, KernelLoops, Loop, Walk, Work
from .traffic import Part, Touched, Traffic, footprint, foreign_bytes, parts_of, split_lines


@dataclass(frozen=True)
class Pace:
    """The limits of a sequence of instructions.

    Attributes
    ----------
    busy : float
        Cycles that the instructions keep ports busy.
    waiting : float
        Cycles if each instruction waits for the results that it needs; at least `busy`.
    entries : float
        Entries of the reorder buffer that they take.
    counts : Counter of str
        Number of instructions by kind.
    """

    busy: float = 0.0
    waiting: float = 0.0
    entries: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    def plus(self, other: Pace, times: int = 1) -> Pace:
        """The pace of this followed by `times` repetitions of another."""
        counts = self.counts.copy()
        for kind, number in other.counts.items():
            counts[kind] += times * number
        busy, waiting = self.busy + times * other.busy, self.waiting + times * other.waiting
        return Pace(busy, waiting, self.entries + times * other.entries, counts)

    def side_by_side(self, entries: float) -> Pace:
        """The pace if the next instructions overlap with it, in a reorder buffer of this size."""
        under_way = max(1.0, entries / self.entries) if self.entries else 1.0
        cycles = max(self.busy, self.waiting / under_way)
        return Pace(cycles, cycles, self.entries, self.counts)


def work_pace(work: Work, machine: Machine) -> Pace:
    """Computes the pace of instructions without loops."""
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
    """Computes the pace of a kernel's loops on a machine, and sums up its instructions."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine

    def inside(self, body: Body, environment: Environment) -> Pace:
        """Pace of a body, with all parts one after the other."""
        pace = work_pace(body.work, self.machine)
        if body.children:
            pace = replace(pace, busy=pace.waiting)
        for child in body.children:
            pace = pace.plus(self.child(child, environment))
        return pace

    def loop(self, loop: Loop, count: int, environment: Environment, first: int = 0) -> Pace:
        """Pace of some iterations of a loop."""
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
LEAST_LOSS = 0.1  # share of the time below which losses are not called the limit


@dataclass(frozen=True)
class Phase:
    """A parallel loop, or a serial part before, between or after parallel loops.

    Attributes
    ----------
    threads : int
        Threads with work to do; 1 if serial.
    parallel : bool
        Whether the phase is forked.
    compute : float
        Microseconds of computing of the busiest thread, with all data in its L1.
    mean : float
        Microseconds of computing if work were divided equally among all threads.
    bytes : dict
        Level -> bytes that the busiest thread fetches.
    transfer : dict
        Level -> microseconds of these transfers.
    fork : float
        Microseconds of forking and joining.
    sharing : float
        Microseconds of waiting for lines that another thread writes, too.
    first_pass : float
        Microseconds of `transfer` in which a loop fetches data that it then reads repeatedly.
    overlap : float
        Share of the shorter of computing and moving that overlaps with the longer, 0 to 1.
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
        """Microseconds by cause; they add up to the time."""
        found = {COMPUTE: self.mean, IMBALANCE: self.compute - self.mean, "forks": self.fork}
        found["shared lines"] = self.sharing
        rest = self.time - sum(found.values())
        moving = sum(self.transfer.values())
        for level, time in self.transfer.items():
            found[level] = rest * time / moving if moving else 0.0
        return {name: time for name, time in found.items() if time > 0}

    @property
    def beyond(self) -> float:
        """Microseconds of fetching from beyond L2."""
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
    """The time of one call of a kernel.

    Attributes
    ----------
    phases : tuple of Phase
        The phases in order.
    call : float
        Microseconds of the call.
    counts : Counter of str
        Instructions of all threads, by kind.
    parts : mapping from int to Part
        Parameter -> what the busiest thread touches of it, in the last phase that uses it.
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
        """Microseconds by cause; they add up to the time."""
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
        """The largest loss beyond evenly shared computing; COMPUTE if all losses are small."""
        named = self.named
        losses = {name: time for name, time in named.items() if name != COMPUTE}
        worst = max(losses, key=lambda name: losses[name], default=COMPUTE)
        return worst if losses and sum(losses.values()) > LEAST_LOSS * self.time else COMPUTE

    @property
    def busy(self) -> int:
        """Threads with work to do in the longest phase."""
        return max(self.phases, key=lambda phase: phase.time).threads if self.phases else 1


# Data that comes from L2 this much more often than from beyond was fetched by a loop's first pass.
READ_AGAIN = 2.0


@dataclass(frozen=True)
class Origin:
    """Where a parameter's bytes are when a kernel begins.

    Attributes
    ----------
    level : str
        The nearest level that holds them.
    part : Part or None
        The part that each thread has in its own caches, if the level is L2; None: exactly the part
        that it needs.
    """

    level: str
    part: Part | None = None


def kernel_time(
    program: KernelLoops, machine: Machine, origins: Mapping[int, Origin] | None = None
) -> KernelTime:
    """Predicts how long a kernel takes on a machine with its number of threads.

    Parameters
    ----------
    program : KernelLoops
        The kernel.
    machine : Machine
        The machine.
    origins : mapping from int to Origin
        Parameter -> location of its bytes when the kernel begins; L2 for missing parameters.
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
        """Splits a body into phases at its parallel loops; serial neighbours are one phase."""
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
            had = self.parts.get(memory.parameter, had)  # from an earlier phase
            if had is not None or origin.level == NEAR:
                moved[FOREIGN] = foreign_bytes(once, memory, parts.get(memory.parameter), had)
            else:
                # Data that one thread has fetched from memory, others get from the shared cache.
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
    """Whether a node contains a parallel loop."""
    if isinstance(node, Loop):
        return node.parallel or any(_forks(child) for child in node.body.children)
    return any(_forks(child) for body in (node.then, node.otherwise) for child in body.children)
