"""Merges depthwise convolutions with the pointwise ones that read them, where that pays.

Before

    lv = fused_depthwise_conv2d(x, w0, b0)     # [1, 56, 56, 144], relu6
    gv = fused_matmul(lv, w1, b1)              # [1, 56, 56, 24]

After

    gv = fused_depthwise_pointwise(x, w0, b0, w1, b1)
    # sources "i0,i1,i2;p0,i3,i4": what either part reads, inputs and results of parts

Only the matmul may read the convolution's result. `depthwise_pointwise_cost` decides; a matmul that
is not merged keeps the reason.
"""

from __future__ import annotations

from tvm import ir, relax

from microkernels.machines.machine import Machine
from tir_schedules.chains.depthwise_pointwise_cost import PairEstimate, estimate_pair
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for

from .merge_regions import Findings, Merge, RegionGraph, merging_pass
from .merged_inputs import MergedInputs

KIND = "depthwise_pointwise"


def merge_depthwise(machine: Machine) -> ir.transform.Pass:
    """The pass, for one machine: its threads and caches decide what pays."""
    return merging_pass("tvm_hybrid.merge_depthwise", _Matcher(machine))


class _Matcher:
    """Finds the pairs of a block."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.estimates: dict[str, PairEstimate] = {}

    def __call__(self, graph: RegionGraph) -> Findings:
        findings = Findings()
        for first in graph.calls("depthwise_conv2d"):
            second = graph.only_user(graph.bindings[first].var)
            if second is None or second not in graph.calls("matmul"):
                continue
            region, arguments = _pair(graph, first, second)
            reason = template_for(KIND).rejection(region, self.machine.isa)
            if reason is None:
                estimate = self.estimate(region)
                if estimate.pays:
                    why = f"template {KIND}: {estimate}"
                    findings.merges.append(Merge((first, second), region, arguments, why))
                    continue
                reason = f"does not pay: {estimate}"
            findings.refusals[second] = f"with the depthwise convolution before it: {reason}"
        return findings

    def estimate(self, region: Region) -> PairEstimate:
        """The estimate of a pair; equal ones are estimated once."""
        if region.key not in self.estimates:
            self.estimates[region.key] = estimate_pair(region, self.machine)
        return self.estimates[region.key]


def _pair(graph: RegionGraph, first: int, second: int) -> tuple[Region, tuple[relax.Expr, ...]]:
    """Both regions as one, and its arguments."""
    inputs = MergedInputs(made={graph.bindings[first].var: 0})
    parts = graph.regions[first], graph.regions[second]
    for position, part in zip((first, second), parts, strict=True):
        inputs.add(part, graph.value(position).args)
    return inputs.region(KIND, parts), tuple(inputs.arguments)
