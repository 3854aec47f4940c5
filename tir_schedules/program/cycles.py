"""Cycles that a core takes for a kernel's instructions, if all they read is in its first cache.

Of the instructions without a loop around them, those count that keep their ports busy the longest,
or wait for each other the longest.
"""

from __future__ import annotations

from collections import Counter

from microkernels.machines.machine import Machine

from .index import Environment
from .nodes import Body, Branch, Loop, Work


def work_cycles(work: Work, machine: Machine) -> float:
    """Of instructions without a loop around them."""
    counts = work.counts
    products = counts["fma"] + counts["dot"]
    halves = counts["bf16"] / machine.bf16_rate if counts["bf16"] else 0.0
    arithmetic = (products + counts["vector"]) / machine.vector_rate + halves
    loads = counts["load"] + counts["gather"] + counts["prefetch"]
    tiles, clock = machine.tile_core, machine.cycles_per_us
    everything = products + counts["vector"] + counts["bf16"] + loads + counts["broadcast"]
    waiting = [
        steps * machine.fma_latency + others * machine.vector_latency
        for steps, others in work.chains
    ]
    cycles = max(
        arithmetic + counts["divide"] * machine.divide_cycles,
        products / machine.fma_rate + halves,
        loads / machine.load_rate + counts["broadcast"] / machine.broadcast_rate,
        counts["store"] / machine.store_rate,
        (everything + counts["store"]) / machine.issue_rate,
        *waiting,
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
    return cycles + counts["library"] * machine.library_cycles


class Cycles:
    """Follows a kernel's loops on a machine; also sums up its instructions."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._known: dict[tuple[int, tuple[int, ...]], tuple[float, Counter[str]]] = {}
        self._kept: list[Body] = []

    def body(self, body: Body, environment: Environment) -> tuple[float, Counter[str]]:
        """Cycles and instructions, for some values of the loops around."""
        key = (id(body), tuple(environment[loop] for loop in sorted(body.controls)))
        found = self._known.get(key)
        if found is None:
            self._kept.append(body)
            cycles, counts = work_cycles(body.work, self.machine), Counter(body.work.counts)
            for child in body.children:
                more, others = self.child(child, environment)
                cycles += more
                for kind, number in others.items():
                    counts[kind] += number
            found = self._known[key] = cycles, counts
        return found

    def child(self, child: Loop | Branch, environment: Environment) -> tuple[float, Counter[str]]:
        """Of a loop, or of a branch."""
        if isinstance(child, Branch):
            taken = child.condition.known and child.condition.evaluate(environment)
            return self.body(child.then if taken else child.otherwise, environment)
        return self.loop(child, child.extent.evaluate(environment), environment)

    def loop(
        self, loop: Loop, count: int, environment: Environment, first: int = 0
    ) -> tuple[float, Counter[str]]:
        """Of some rounds of a loop."""
        if count <= 0:
            return 0.0, Counter()
        varies = loop.number in loop.body.controls
        rounds = range(first, first + count) if varies else [first]
        share = 1 if varies else count
        cycles, counts = 0.0, Counter[str]()
        for i in rounds:
            more, others = self.body(loop.body, {**environment, loop.number: i})
            cycles += share * more
            for kind, number in others.items():
                counts[kind] += share * number
        innermost = not loop.body.children
        if innermost and count > 1:
            cycles += self.machine.branch_miss
            counts["loop ends"] += 1
        return cycles, counts
