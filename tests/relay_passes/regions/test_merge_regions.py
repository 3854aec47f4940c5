"""Merging calls of region functions, the tool of the coarse passes, with a matcher for tests."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from microkernels.base.errors import CompileError
from relay_passes.ir.decisions import DecisionLog
from relay_passes.ir.functions import COMPOSITE, REASON, REGION
from relay_passes.ir.graph import op_name, static_tensor
from relay_passes.lower.lower_regions import lower_regions, select_configs
from relay_passes.regions.merge_regions import Findings, Merge, RegionGraph, merging_pass
from tests.relay_passes.graphs import MACHINE, constant, module, partitioned, regions, run
from tir_schedules.core.region import Region, Tensor

op = relax.op
F = "float32"
ROWS = ((6, 8), F)


def _two_matmuls(graph: RegionGraph) -> Findings:
    """Merges the first two matmuls, with any glue between them."""
    calls = graph.calls("matmul")
    if len(calls) < 2:
        return Findings()
    first, second = calls[:2]
    parts = graph.regions[first], graph.regions[second]
    members = tuple(range(first, second + 1))
    x, *weights = graph.value(first).args
    weights += graph.value(second).args[1:]
    inputs = (Tensor((48,), F), *parts[0].inputs[1:], *parts[0].operands)
    inputs += (*parts[1].inputs[1:], *parts[1].operands)
    region = Region(op="two_matmuls", inputs=inputs, output=parts[1].output, parts=parts)
    return Findings([Merge(members, region, (x, *weights), "two in one")])


def _merged(body, *inputs):
    before, _ = partitioned(module(body, *inputs))
    return before, merging_pass("test.merge", _two_matmuls)(before)


def _chain(x):
    y = op.nn.relu(op.matmul(x, constant(8, 4)))
    y = op.reshape(op.permute_dims(y), (6, 4))
    return op.matmul(y, constant(4, 8, seed=1))


def test_two_calls_and_the_glue_between_them_become_one_function() -> None:
    before, after = _merged(_chain, ROWS)
    (region,) = regions(after)
    assert [part.op for part in region.parts] == ["matmul", "matmul"]
    (name,) = [g.name_hint for g in after.get_global_vars() if g.name_hint != "main"]
    attrs = after[name].attrs
    assert attrs[COMPOSITE] == "tvm_hybrid.two_matmuls" and attrs[REASON] == "two in one"
    assert Region.from_json(str(attrs[REGION])) == region
    body = [op_name(binding.value) for binding in after[name].body.blocks[0].bindings]
    glue = ["relax.permute_dims", "relax.reshape"]
    assert body[1:6] == ["relax.matmul", "relax.nn.relu", *glue, "relax.matmul"]
    x = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
    # The same operators, numbers and TVM kernels give equal bits.
    np.testing.assert_array_equal(run(after, [x])[0], run(before, [x])[0])


def test_an_argument_of_another_shape_is_reshaped() -> None:
    _, after = _merged(_chain, ROWS)
    view, call, *_ = after["main"].body.blocks[0].bindings
    assert op_name(view.value) == "relax.reshape" and static_tensor(view.var) == Tensor((48,), F)
    assert call.value.args[0].same_as(view.var)


def test_glue_that_others_need_stays_besides() -> None:
    def body(x, z):
        glue = op.permute_dims(z)  # the merged calls count as one of its users
        y = op.matmul(op.matmul(x, constant(8, 8)), constant(8, 8, seed=1))
        return [op.add(y, op.tanh(glue)), op.nn.relu(glue)]

    before, _ = partitioned(module(body, ROWS, ((8, 6), F)))

    def match(graph: RegionGraph) -> Findings:
        (merge,) = _two_matmuls(graph).merges
        position = next(
            at
            for at in range(len(graph.bindings))
            if op_name(graph.value(at)) == "relax.permute_dims"
        )
        return Findings([Merge((position, *merge.members), merge.region, merge.arguments, "")])

    after = merging_pass("test.merge", match)(before)
    assert "permute_dims" in after["main"].script()


def test_a_part_that_is_needed_elsewhere_is_an_error_of_the_matcher() -> None:
    def body(x):
        y = op.matmul(x, constant(8, 8))
        return [op.matmul(y, constant(8, 8, seed=1)), op.reshape(y, (48,))]

    with pytest.raises(CompileError, match=r"two_matmuls.*needed elsewhere"):
        _merged(body, ROWS)


def test_glue_that_stays_needs_the_call_before_it() -> None:
    def body(x):
        y = op.permute_dims(op.nn.relu(op.matmul(x, constant(8, 6))))
        return [op.matmul(y, constant(6, 8, seed=1)), op.tanh(y)]

    before, _ = partitioned(module(body, ROWS))
    graph = RegionGraph(before["main"].body.blocks[0], before)
    first, glue, second = (
        at for at in range(len(graph.bindings)) if op_name(graph.value(at)) != "relax.tanh"
    )
    assert graph.still_needed([first, glue, second], second) == {first, glue}


def test_explain_says_why_a_call_is_not_merged() -> None:
    def refuse(graph: RegionGraph) -> Findings:
        return Findings(refusals={graph.calls()[0]: "no chain: test"})

    before, _ = partitioned(module(_chain, ROWS))
    decisions: DecisionLog = []
    mod = merging_pass("test.refuse", refuse)(before)
    mod = lower_regions(MACHINE, decisions)(select_configs(MACHINE, None)(mod))
    assert [d.reason for d in decisions] == ["template matmul; no chain: test", "template matmul"]
    assert all(decision.taken for decision in decisions)
