"""Every remaining reorder has a decision that says what it moves."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from relay_passes.ir.decisions import DecisionLog
from relay_passes.layout.compose_reorders import note_reorders
from relay_passes.lower_module import compile_module
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import TARGET, constant, module

op = relax.op
F = "float32"


def noted(axes: list[int], shape: tuple[int, ...], dtype: str = F) -> list[str]:
    decisions: DecisionLog = []
    note_reorders(decisions)(module(lambda x: op.permute_dims(x, axes), (shape, dtype)))
    assert all((d.node, d.op, d.taken) == ("gv", "reorder", False) for d in decisions)
    return [decision.reason for decision in decisions]


def test_what_is_said() -> None:
    assert noted([0, 2, 3, 1], (1, 8, 6, 5)) == ["reorder NCHW -> NHWC of x0: 960 bytes"]
    assert noted([0, 3, 1, 2], (1, 6, 5, 8), "uint8") == ["reorder NHWC -> NCHW of x0: 240 bytes"]
    assert noted([0, 2, 1], (2, 3, 5)) == ["reorder NCW -> NWC of x0: 120 bytes"]
    assert noted([0, 2, 3, 4, 1], (1, 2, 2, 2, 2)) == ["reorder NCDHW -> NDHWC of x0: 64 bytes"]
    assert noted([1, 0], (2, 3)) == ["reorder by axes 1, 0 of x0: 24 bytes"]


def test_what_moves_nothing_is_not_told() -> None:
    assert noted([0, 2, 3, 1], (1, 8, 1, 1)) == []


def test_one_line_with_the_kernel_in_an_explanation() -> None:
    """The convolution of 8 channels reorders its input; its output has no reorder to report."""
    weight = constant(4, 8, 3, 3)
    mod = module(lambda x: op.mean(op.nn.conv2d(x, weight), [2, 3]), ((1, 8, 6, 5), F))
    decisions = compile_module(mod, PipelineOptions(TARGET)).decisions
    (reorder,) = [d for d in decisions if "reorder" in d.reason]
    assert reorder.reason == "reorder NCHW -> NHWC of x0: 960 bytes"
    assert reorder.kernel.startswith("generic_")
    assert [d.function for d in decisions].count(reorder.function) == 1


def test_a_reorder_is_known_by_its_mark() -> None:
    """Reorders carry a mark: kernels of dynamic permutations are named "transpose", too."""

    def body(x: relax.Expr, y: relax.Expr) -> list[relax.Expr]:
        return [op.cumsum(op.permute_dims(each, [1, 0]), 0) for each in (x, y)]

    extents: list[Any] = [(tirx.Var("n", "int64"), 3), (4, 3)]
    mod = module(body, *((shape, F) for shape in extents))
    decisions = compile_module(mod, PipelineOptions(TARGET)).decisions
    (reorder,) = [decision for decision in decisions if decision.op == "reorder"]
    assert reorder.reason == "reorder by axes 1, 0 of x1: 48 bytes"
    assert reorder.kernel.startswith("generic_")
    (other,) = [decision for decision in decisions if decision.op.startswith("transpose")]
    assert other.function != reorder.function
