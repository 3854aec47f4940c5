"""Merge chains: consecutive regions that work row by row become one region, where that pays.

Before

    lv = fused_matmul(x, w0, b0)          # x @ w0 + b0, relu
    lv1 = fused_matmul1(lv, w1)
    gv = fused_layer_norm(lv1, g, b, x)   # of lv1 + x

After

    gv = fused_mlp_chain(x, w0, b0, w1, g, b)
    # sources "i0,i1,i2;p0,i3;p1,i4,i5,i0": what every part reads, inputs and results of parts

A chain begins at a matmul or a normalisation and grows along its users, in order. Whenever all
results between its parts are needed only inside, `chains.cost` decides whether it continues. A step
that does not pay ends the chain before it; the refused region keeps the reason. Chains of dynamic
rows also end where they would copy too much code (`chain_code`). Reshapes between the parts may
regroup rows, but must keep the last dimension.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from tvm import ir, relax

from microkernels.machines.machine import Machine
from relay_passes.ir.graph import op_name, static_tensor
from relay_passes.ir.traits import RESHAPES
from tir_schedules.chains.cost import ChainEstimate, constant_bytes, estimate_chain, least_of
from tir_schedules.chains.open_cost import estimate_open_chain
from tir_schedules.core.form_memo import FormMemo
from tir_schedules.core.region import Region
from tir_schedules.core.template import has_template, template_for
from tir_schedules.epilogue.epilogue import rows_and_columns

from .chain_code import lengths_worth
from .merge_regions import Findings, Merge, RegionGraph, merging_pass
from .merged_inputs import MergedInputs

KIND = "mlp_chain"
ROW_LOCAL = ("matmul", "layer_norm", "rms_norm")
MOST_PARTS = 12
COPIES = "a chain with the regions before it: copies too much code for the calls that it saves"


def merge_chains(machine: Machine) -> ir.transform.Pass:
    """The pass, for one machine: its threads and caches decide what pays."""
    return merging_pass("tvm_hybrid.merge_chains", _Matcher(machine))


@dataclass
class _Chain:
    """Parts, and the glue between them, in the order of the block.

    Attributes
    ----------
    calls, glue : list of int
        Positions of the parts' calls, and of reshapes.
    inputs : MergedInputs
        What the parts read; also knows which part's result a variable is, maybe reshaped.
    """

    graph: RegionGraph
    calls: list[int] = field(default_factory=list)
    glue: list[int] = field(default_factory=list)
    inputs: MergedInputs = field(default_factory=MergedInputs)

    def add(self, position: int) -> bool:
        """Takes a binding if it is a part or glue; whether it did."""
        var = self.graph.bindings[position].var
        if position in self.graph.regions:
            if not self._add_part(position):
                return False
            self.inputs.made[var] = len(self.calls) - 1
            return True
        source = _regrouped(self.graph.value(position), var)
        if source not in self.inputs.made:
            return False
        self.glue.append(position)
        self.inputs.made[var] = self.inputs.made[source]
        return True

    def _add_part(self, position: int) -> bool:
        region = self.graph.regions[position]
        if not is_row_local(region) or len(self.calls) == MOST_PARTS:
            return False
        arguments = self.graph.value(position).args
        tensors = (*region.inputs, *region.operands)
        if self.calls and arguments[0] not in self.inputs.made:
            return False
        for index, (argument, tensor) in enumerate(zip(arguments, tensors, strict=True)):
            if argument in self.inputs.made:
                rows = index == 0 or index >= len(region.inputs)
                made = self.part(self.inputs.made[argument]).output
                if not rows or rows_and_columns(tensor) != rows_and_columns(made):
                    return False
        self.inputs.add(region, arguments)
        self.calls.append(position)
        return True

    def part(self, number: int) -> Region:
        """One of the regions."""
        return self.graph.regions[self.calls[number]]

    @property
    def members(self) -> list[int]:
        """Positions of everything inside."""
        return sorted([*self.calls, *self.glue])

    @property
    def closed(self) -> bool:
        """Whether nothing but the last part's result is needed outside."""
        if len(self.calls) < 2:
            return False
        members = [position for position in self.members if position <= self.calls[-1]]
        return not self.graph.still_needed(members, self.calls[-1]) & {*self.calls}

    def region(self) -> Region:
        """The chain as one region."""
        parts = [self.graph.regions[position] for position in self.calls]
        return self.inputs.region(KIND, parts)


class _Matcher:
    """Finds the chains of a block."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        # Equal chains are estimated once.
        self.estimate = FormMemo(lambda region: _estimate(region, machine))

    def __call__(self, graph: RegionGraph) -> Findings:
        findings = Findings()
        if not has_template(KIND):
            return findings
        taken: set[int] = set()
        self.least = least_of(sum(map(constant_bytes, graph.regions.values())), self.machine)
        chains: list[list[Merge]] = []
        for position in graph.calls(*ROW_LOCAL):
            if position not in taken:
                ways = self.beginnings(graph, position, taken, findings.refusals)
                if ways:
                    taken.update(ways[-1].members)
                    chains.append(ways)
        for ways, length in zip(chains, lengths_worth(graph, chains), strict=True):
            if length:
                findings.merges.append(ways[length - 1])
            if length < len(ways):
                findings.refusals[ways[length].members[-1]] = COPIES
        return findings

    def beginnings(
        self, graph: RegionGraph, start: int, taken: set[int], refusals: dict[int, str]
    ) -> list[Merge]:
        """The chain that begins at a position, after each step that pays."""
        chain = _Chain(graph)
        if not chain.add(start):
            return []
        ways: list[Merge] = []
        saved = before = 0.0
        queue = list(graph.users.get(graph.bindings[start].var, ()))
        heapq.heapify(queue)
        seen: set[int] = set()
        while queue:
            position = heapq.heappop(queue)
            if position in seen or position in taken or not chain.add(position):
                continue
            seen.add(position)
            for user in graph.users.get(graph.bindings[position].var, ()):
                heapq.heappush(queue, user)
            if position not in graph.regions or not chain.closed:
                continue
            region = chain.region()
            reason = template_for(KIND).rejection(region, self.machine.isa)
            if reason is None:
                estimate = self.estimate(region)
                time = estimate.separate.total
                if self.least.reached(estimate.saved - saved, time - before):
                    saved, before = estimate.saved, time
                    members = tuple(at for at in chain.members if at <= position)
                    reason = f"template {KIND}: {estimate}"
                    ways.append(Merge(members, region, tuple(chain.inputs.arguments), reason))
                    continue
                reason = f"does not pay: {estimate}; {self.least.share:.2%} counts"
            refusals[position] = f"a chain with the regions before it: {reason}"
            break
        return ways


def _estimate(region: Region, machine: Machine) -> ChainEstimate:
    """The estimate of a chain."""
    estimate = estimate_open_chain if region.is_open else estimate_chain
    return estimate(region, machine)


def is_row_local(region: Region) -> bool:
    """Whether a region's rows are computed each from one row."""
    if region.op not in ROW_LOCAL or "window" in region.attrs:
        return False
    last = len(region.inputs[0].shape) - 1
    return region.op == "matmul" or region.attrs["axis"] == last


def _regrouped(value: relax.Expr, var: relax.Var) -> relax.Expr | None:
    """What a reshape that keeps the last dimension is applied to; None for anything else."""
    if op_name(value) not in RESHAPES:
        return None
    before, after = static_tensor(value.args[0]), static_tensor(var)
    if before is None or after is None or not before.shape or not after.shape:
        return None
    return value.args[0] if before.shape[-1] == after.shape[-1] else None
