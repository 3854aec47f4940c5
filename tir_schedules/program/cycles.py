"""Cycles that a core takes for a kernel's instructions, if all they read is in its first cache.

Instructions keep their ports busy, or wait for each other. What waits in one round of a loop does
not keep the next round waiting if its sums begin anew there: as many rounds are under way as the
core's reorder buffer holds, if it foresees the branches between them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad

from microkernels.machines.machine import Machine

from .index import Environment
from .nodes import Body, Branch, Loop, Work, base_of, intrinsic, is_constant, key
from .traffic import Part


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
    """

    busy: float = 0.0
    waiting: float = 0.0
    entries: float = 0.0

    def plus(self, other: Pace, times: float = 1.0) -> Pace:
        """With so many times of something else behind it."""
        return Pace(
            self.busy + times * other.busy,
            self.waiting + times * other.waiting,
            self.entries + times * other.entries,
        )

    def side_by_side(self, entries: float) -> Pace:
        """Where what follows does not wait for it, with so many entries of the reorder buffer."""
        under_way = max(1.0, entries / self.entries) if self.entries else 1.0
        cycles = max(self.busy, self.waiting / under_way)
        return Pace(cycles, cycles, self.entries)


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
    waiting = [
        steps * machine.fma_latency + others * machine.vector_latency
        for steps, others in work.chains
    ]
    cycles = max(
        arithmetic + counts["divide"] * machine.divide_cycles,
        products / machine.fma_rate + halves,
        loads / machine.load_rate + counts["broadcast"] / machine.broadcast_rate,
        counts["store"] / machine.store_rate,
        entries / machine.issue_rate,
    )
    if any(kind.startswith("tile") for kind in counts):
        latency = tiles.tdp_latency if counts["tile_product"] else 0.0
        multiplying = max(
            counts["tile_product"] * tiles.tdp,
            counts["tile_load"] * tiles.load,
            counts["tile_store"] * tiles.store,
            latency if counts["tile_product"] else 0.0,
        )
        multiplying += counts["tile_configure"] * tiles.configure
        multiplying += counts["tile_release"] * tiles.release
        cycles = max(cycles, multiplying * clock / tiles.clock)
    called = counts["library"] * machine.library_cycles
    return Pace(cycles + called, max(cycles, *waiting, 0.0) + called, entries)


class Cycles:
    """Follows a kernel's loops on a machine; also sums up its instructions."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._known: dict[tuple[int, tuple[int, ...]], tuple[Pace, Counter[str]]] = {}
        self._kept: list[Body] = []

    def body(self, body: Body, environment: Environment) -> tuple[float, Counter[str]]:
        """Cycles and instructions, for some values of the loops around."""
        pace, counts = self._body(body, environment)
        return pace.waiting, counts

    def loop(
        self, loop: Loop, count: int, environment: Environment, first: int = 0
    ) -> tuple[float, Counter[str]]:
        """Of some rounds of a loop."""
        pace, counts = self._loop(loop, count, environment, first)
        return pace.waiting, counts

    def _body(self, body: Body, environment: Environment) -> tuple[Pace, Counter[str]]:
        key = (id(body), tuple(environment[loop] for loop in sorted(body.controls)))
        found = self._known.get(key)
        if found is None:
            self._kept.append(body)
            pace, counts = work_pace(body.work, self.machine), Counter(body.work.counts)
            if body.children:
                pace = Pace(pace.waiting, pace.waiting, pace.entries)
            for child in body.children:
                more, others = self._child(child, environment)
                pace = pace.plus(more)
                for kind, number in others.items():
                    counts[kind] += number
            found = self._known[key] = pace, counts
        return found

    def _child(self, child: Loop | Branch, environment: Environment) -> tuple[Pace, Counter[str]]:
        if isinstance(child, Branch):
            taken = child.condition.known and child.condition.evaluate(environment)
            return self._body(child.then if taken else child.otherwise, environment)
        return self._loop(child, child.extent.evaluate(environment), environment)

    def _loop(
        self, loop: Loop, count: int, environment: Environment, first: int = 0
    ) -> tuple[Pace, Counter[str]]:
        if count <= 0:
            return Pace(), Counter()
        varies = loop.number in loop.body.controls
        rounds = range(first, first + count) if varies else [first]
        share = 1 if varies else count
        pace, counts = Pace(), Counter[str]()
        for i in rounds:
            more, others = self._body(loop.body, {**environment, loop.number: i})
            pace = pace.plus(more, share)
            for kind, number in others.items():
                counts[kind] += share * number
        machine, foreseen = self.machine, count <= self.machine.foreseen_rounds
        if loop.anew:
            pace = pace.side_by_side(machine.reorder_entries if foreseen else 0.0)
        if not loop.body.children and count > 1:
            counts["loop ends"] += 1
            if not foreseen:
                pace = pace.plus(Pace(machine.branch_miss, machine.branch_miss))
        return pace, counts


_ADDRESSES = ("tirx.masked_load", "tirx.masked_store", "tirx.address_of", "tirx.buffer_data")


def registers_of(body: Any) -> set[Any]:
    """Arrays of its own that a kernel reads and writes at constant places only."""
    own: set[Any] = set()
    moving: set[Any] = set()

    def allocated(node: tirx.AllocBuffer) -> None:
        own.add(key(node.buffer))

    def stored(node: tirx.BufferStore) -> None:
        if not all(is_constant(i) for i in node.indices):
            moving.add(key(node.buffer))

    def loaded(node: Any) -> None:
        if not all(is_constant(i) for i in node.indices):
            moving.add(key(node.source))

    def called(node: Any) -> None:
        if getattr(node.op, "name", "") in _ADDRESSES:
            argument = node.args[0]
            moving.add(key(getattr(argument, "source", argument)))

    def declared(node: tirx.DeclBuffer) -> None:
        moving.add(key(base_of(node)))

    tvm_ffi.structural_walk(
        body,
        [
            (tirx.AllocBuffer, allocated),
            (tirx.BufferStore, stored),
            (TensorLoad, loaded),
            (Call, called),
            (tirx.DeclBuffer, declared),
        ],
    )
    return own - moving


def stored_in(body: Any, name: Callable[[Any], Any]) -> frozenset[Any]:
    """What the arrays are called that a statement writes."""
    found = set()

    def stored(node: tirx.BufferStore) -> None:
        found.add(name(node.buffer))

    def called(node: Any) -> None:
        function = getattr(node.op, "name", "")
        if function == "tirx.masked_store":
            found.add(name(node.args[0]))
        elif function == "tirx.call_llvm_intrin" and "store" in intrinsic(node):
            for argument in node.args:
                if getattr(getattr(argument, "op", None), "name", "") == "tirx.address_of":
                    found.add(name(argument.args[0].source))

    tvm_ffi.structural_walk(body, [(tirx.BufferStore, stored), (Call, called)])
    return frozenset(found)


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
