"""Cycles that a core takes for a kernel's instructions, if all they read is in its first cache.

Instructions keep their ports busy, or wait for each other. What waits in one round of a loop does
not keep the next round waiting if its sums begin anew there: as many rounds are under way as the
core's reorder buffer holds, if it foresees the branches between them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from microkernels.machines.machine import Machine

from .index import Environment
from .nodes import Body, Branch, Loop, Work


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
