"""Merge chains: merges consecutive regions that work row by row into one region, if that pays.

Before

    lv = fused_matmul(x, w0, b0)          # x @ w0 + b0, relu
    lv1 = fused_matmul1(lv, w1)
    gv = fused_layer_norm(lv1, g, b, x)   # of lv1 + x

After

    gv = fused_mlp_chain(x, w0, b0, w1, g, b)
    # sources "i0,i1,i2;p0,i3;p1,i4,i5,i0": operands of each part: inputs (i), parts' results (p)

A chain begins at a matmul or a normalisation and grows along its users, in order. Whenever all
intermediate results are needed only inside the chain, `chains.cost` decides whether it continues.
If a step does not pay, the chain ends before it, and the refused region keeps the reason. A chain
of dynamic rows also ends if it would copy too much code (`lengths_worth`). Reshapes between the
parts may regroup rows, but must keep the last dimension.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tvm import ir, relax

from microkernels.machines.machine import Machine
from relay_passes.ir.graph import op_name, region_tensor, static_tensor
from relay_passes.ir.traits import RESHAPES
from tir_schedules.chains import cost
from tir_schedules.chains.depthwise_pointwise_cost import estimate_pair
from tir_schedules.core.kernel_numbers import FormMemo
from tir_schedules.core.region import Region, nameless_form
from tir_schedules.core.template import template_for
from tir_schedules.epilogue.epilogue import rows_and_columns

from .merge_regions import Findings, Merge, MergedInputs, RegionGraph, merging_pass

KIND = "mlp_chain"
ROW_LOCAL = ("matmul", "layer_norm", "rms_norm")
MOST_PARTS = 12
COPIES = "not merged with the regions before it: copies too much code for the calls that it saves"


def merge_chains(machine: Machine) -> ir.transform.Pass:
    """The pass for one machine: its threads and caches decide what pays."""
    return merging_pass("tvm_hybrid.merge_chains", _Matcher(machine))


@dataclass
class _Chain:
    """The parts of a chain, and the glue between them, in the order of the block.

    Attributes
    ----------
    calls, glue : list of int
        Positions of the parts' calls, and of reshapes between them.
    inputs : MergedInputs
        What the parts read; `made` maps each part's result, perhaps reshaped, to the part.
    """

    graph: RegionGraph
    calls: list[int] = field(default_factory=list)
    glue: list[int] = field(default_factory=list)
    inputs: MergedInputs = field(default_factory=MergedInputs)

    def add(self, position: int) -> bool:
        """Adds a binding if it is a part or glue; returns whether it was added."""
        var = self.graph.bindings[position].var
        if position not in self.graph.regions:
            source = _regrouped(self.graph.value(position), var)
            if source not in self.inputs.made:
                return False
            self.glue.append(position)
            self.inputs.made[var] = self.inputs.made[source]
            return True
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
                made = self.graph.regions[self.calls[self.inputs.made[argument]]].output
                if not rows or rows_and_columns(tensor) != rows_and_columns(made):
                    return False
        self.inputs.add(region, arguments)
        self.inputs.made[var] = len(self.calls)
        self.calls.append(position)
        return True

    @property
    def members(self) -> list[int]:
        """Positions of all parts and glue."""
        return sorted([*self.calls, *self.glue])

    @property
    def closed(self) -> bool:
        """Whether only the last part's result is needed outside the chain."""
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
        self.estimate = FormMemo(self.estimated)

    def __call__(self, graph: RegionGraph) -> Findings:
        findings = Findings()
        taken: set[int] = set()
        constants = sum(map(cost.constant_bytes, graph.regions.values()))
        self.least = cost.least_of(constants, self.machine)
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

    def estimated(self, region: Region) -> cost.ChainEstimate:
        """The estimate of a chain."""
        estimate = cost.estimate_dynamic_chain if region.is_dynamic else cost.estimate_chain
        return estimate(region, self.machine)

    def beginnings(
        self, graph: RegionGraph, start: int, taken: set[int], refusals: dict[int, str]
    ) -> list[Merge]:
        """The chain that begins at a position, cut after each step that pays; shortest first."""
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
                reason = f"does not pay: {estimate}; only a saving of {self.least.share:.2%} counts"
            refusals[position] = f"not merged with the regions before it: {reason}"
            break
        return ways


def is_row_local(region: Region) -> bool:
    """Whether each row of a region's result depends on one row of its input."""
    if region.op not in ROW_LOCAL or "window" in region.attrs:
        return False
    last = len(region.inputs[0].shape) - 1
    return region.op == "matmul" or region.attrs["axis"] == last


def _regrouped(value: relax.Expr, var: relax.Var) -> relax.Expr | None:
    """The argument of a reshape that keeps the last dimension; None for any other value."""
    if op_name(value) not in RESHAPES:
        return None
    before, after = static_tensor(value.args[0]), static_tensor(var)
    if before is None or after is None or not before.shape or not after.shape:
        return None
    return value.args[0] if before.shape[-1] == after.shape[-1] else None


# Limits the length of chains of dynamic rows, so that they copy little code.
#
# Equal layers share one kernel. A part of a chain is code of that chain: if the part is also a
# kernel elsewhere, or part of another chain, the program contains its code twice.
#
#     layers      A B C | A B C | A B D
#     kernels     A, B, C, D                  4 parts of code, 9 calls
#     chains      A+B+C, A+B+D                6 parts, 3 calls
#     shorter     A+B+C, A+B, D               6 parts, 4 calls
#     shorter     A+B, C, D                   4 parts, 6 calls
#
# Code for dynamic rows is long. At first all chains are as long as they pay. While they add too
# much code, the chains with the most code per saved call are shortened, if that is more than half a
# part per call. Parts are compared without the names of their symbols. Kernels of static rows are
# seldom equal, and shorter: their chains are not shortened.


MOST_GROWTH = 0.1125
"""How much the estimated code of all kernels may grow."""

# Lines of LLVM IR of kernels with dynamic rows or images on AVX-512, measured on MiniLM, MobileViT
# and text detection of the corpus of compile times.
PART_LINES = 1250  # a product or a normalisation: 850 to 2300
LINES = {"attention": 4500, "conv2d": 2000, "depthwise_conv2d": 1400, "depthwise_pointwise": 3500}
KERNEL_LINES = 110  # checks of arguments
OTHER_LINES = 200  # an operator in no region
MOST_LINES_A_CALL = PART_LINES // 2
"""A chain is not shortened if it copies at most half a part per saved call."""


@dataclass
class _Group:
    """Chains with equal regions.

    Attributes
    ----------
    chains : list of int
        Numbers of the chains.
    forms : list of str
        Nameless forms of the merged regions, the shortest first.
    saved : list of int
        Calls that all chains of the group save at length 0 (no merge), 1, 2, ...
    inside : list of set of int
        Positions of the calls inside the chains of the group, in the order of `saved`.
    """

    chains: list[int]
    forms: list[str]
    saved: list[int]
    inside: list[set[int]]


def lengths_worth(graph: RegionGraph, chains: Sequence[Sequence[Merge]]) -> list[int]:
    """The length of each chain, as an index into its beginnings plus 1; 0 if it must not be merged.

    Parameters
    ----------
    graph : RegionGraph
        The block.
    chains : sequence of sequence of Merge
        The merges of each chain that pay, the shortest first.
    """
    lengths = [len(ways) for ways in chains]
    dynamic = [number for number, ways in enumerate(chains) if ways[-1].region.is_dynamic]
    if not dynamic:
        return lengths
    kernels = _BlockKernels(graph, chains, dynamic)
    # Shortens the chains with the most code per saved call until they add little code.
    groups = kernels.groups
    chosen = [len(group.forms) for group in groups]
    most = kernels.code([0] * len(groups)) * (1 + MOST_GROWTH)
    while (now := kernels.code(chosen)) > most:  # ends at the latest without any chain
        costs = []
        for shorter in kernels.shorter(chosen):
            rows = zip(groups, chosen, shorter, strict=True)
            calls = sum(group.saved[before] - group.saved[after] for group, before, after in rows)
            costs.append(((now - kernels.code(shorter)) / calls, shorter))
        lines, shorter = max(costs, key=lambda each: each[0])
        if lines <= MOST_LINES_A_CALL:
            break
        chosen = shorter
    for group, length in zip(groups, chosen, strict=True):
        for number in group.chains:
            lengths[number] = length
    return lengths


class _BlockKernels:
    """The kernels of a block for chosen lengths of its chains."""

    def __init__(
        self, graph: RegionGraph, chains: Sequence[Sequence[Merge]], dynamic: Sequence[int]
    ) -> None:
        static = {
            at for ways in chains if not ways[-1].region.is_dynamic for at in ways[-1].members
        }
        self.forms = {
            at: nameless_form(region) for at, region in graph.regions.items() if at not in static
        }
        self.lines = {form: lines_of(graph.regions[at]) for at, form in self.forms.items()}
        self.other_lines = OTHER_LINES * len(
            {
                (op_name(graph.value(at)), region_tensor(binding.var))
                for at, binding in enumerate(graph.bindings)
                if at not in graph.regions and op_name(graph.value(at)) not in (None, *RESHAPES)
            }
        )
        groups: dict[tuple[str, ...], list[int]] = {}
        for number in dynamic:
            forms = tuple(nameless_form(merge.region) for merge in chains[number])
            self.lines |= zip(forms, [lines_of(m.region) for m in chains[number]], strict=True)
            groups.setdefault(forms, []).append(number)
        self.groups = [
            _Group(
                alike,
                list(forms),
                [0, *(len(alike) * (len(m.region.parts) - 1) for m in chains[alike[0]])],
                [
                    {at for number in alike for m in chains[number][:n][-1:] for at in m.members}
                    for n in range(1 + len(forms))
                ],
            )
            for forms, alike in groups.items()
        ]

    def code(self, lengths: Sequence[int]) -> int:
        """Lines of all kernels if the groups have these lengths; each form is built once."""
        chosen = list(zip(self.groups, lengths, strict=True))
        inside: set[int] = set().union(*(group.inside[length] for group, length in chosen))
        forms = {form for at, form in self.forms.items() if at not in inside}
        forms |= {group.forms[length - 1] for group, length in chosen if length}
        return self.other_lines + sum(map(self.lines.__getitem__, forms))

    def shorter(self, lengths: list[int]) -> Iterator[list[int]]:
        """Shorter lengths: of one group, or of all groups that contain one form of a part."""
        for at, most in enumerate(lengths):
            yield from ([*lengths[:at], length, *lengths[at + 1 :]] for length in range(most))
        # For each group, the forms of the parts inside it at length 0, 1, 2, ...
        parts = [
            [{self.forms[at] for at in inside if at in self.forms} for inside in group.inside]
            for group in self.groups
        ]
        chosen = list(zip(parts, lengths, strict=True))
        for form in sorted(set().union(*(own[length] for own, length in chosen))):
            if sum(form in own[length] for own, length in chosen) > 1:
                # The greatest length of each group without such a part.
                yield [
                    max(n for n in range(1 + length) if form not in own[n])
                    for own, length in chosen
                ]


def lines_of(region: Region) -> int:
    """Estimated lines of LLVM IR of a region's kernel."""
    body = LINES.get(region.op, PART_LINES * max(1, len(region.parts)))
    return body + KERNEL_LINES


DEPTHWISE_KIND = "depthwise_pointwise"


def merge_depthwise(machine: Machine) -> ir.transform.Pass:
    """Merges depthwise convolutions with the pointwise ones that read them, if that pays.

    Before

        lv = fused_depthwise_conv2d(x, w0, b0)     # [1, 56, 56, 144], relu6
        gv = fused_matmul(lv, w1, b1)              # [1, 56, 56, 24]

    After

        gv = fused_depthwise_pointwise(x, w0, b0, w1, b1)
        # sources "i0,i1,i2;p0,i3,i4": operands of each part, inputs (i) or parts' results (p)

    Only the matmul may read the convolution's result. `depthwise_pointwise_cost` decides; a matmul
    that is not merged keeps the reason.

    The pass is made for one machine: its threads and caches decide what pays.
    """
    estimated = FormMemo(lambda region: estimate_pair(region, machine))

    def match(graph: RegionGraph) -> Findings:
        findings = Findings()
        for first in graph.calls("depthwise_conv2d"):
            second = graph.only_user(graph.bindings[first].var)
            if second is None or second not in graph.calls("matmul"):
                continue
            inputs = MergedInputs(made={graph.bindings[first].var: 0})
            parts = graph.regions[first], graph.regions[second]
            for position, part in zip((first, second), parts, strict=True):
                inputs.add(part, graph.value(position).args)
            region = inputs.region(DEPTHWISE_KIND, parts)
            reason = template_for(DEPTHWISE_KIND).rejection(region, machine.isa)
            if reason is None:
                estimate = estimated(region)
                if estimate.pays:
                    why, arguments = f"template {DEPTHWISE_KIND}: {estimate}", inputs.arguments
                    findings.merges.append(Merge((first, second), region, tuple(arguments), why))
                    continue
                reason = f"does not pay: {estimate}"
            findings.refusals[second] = f"not merged with the depthwise_conv2d before it: {reason}"
        return findings

    return merging_pass("tvm_hybrid.merge_depthwise", match)
