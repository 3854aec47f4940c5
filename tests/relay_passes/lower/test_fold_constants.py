"""Operators on constants give equal results at compile time and at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from tvm import relax

import tvm_hybrid
from relay_passes.ir.graph import op_name
from relay_passes.legalize.schedule_generic import legalize_operators
from relay_passes.lower.weights import fold_constants
from tests.onnx_builder import OnnxBuilder
from tests.relay_passes.graphs import module

VALUES = np.array([[np.nan, np.inf, -np.inf, 0, -30, 1.5, -0.5, 3]], np.float32)
UNARY = (
    *("Softplus", "Erf", "Tanh", "Sigmoid", "Relu", "Abs", "Sign", "HardSigmoid", "LeakyRelu"),
    *("Exp", "Gelu", "Mish", "Elu", "Selu", "Round", "Floor", "Sqrt", "Log", "Reciprocal", "Neg"),
    *("Softsign", "HardSwish", "ThresholdedRelu"),
)
HALF = np.float32(0.5)


def joined() -> onnx.ModelProto:
    """Operators after a concatenation of x and constants; they move before it."""
    g = OnnxBuilder(20)
    value = g.node("Concat", g.input("x", VALUES.shape), g.constant(VALUES), axis=0)
    nodes = [g.node(op, value) for op in UNARY]
    nodes += [g.node(op, value, g.constant(HALF)) for op in ("Min", "Max", "PRelu")]
    nodes.append(g.node("Mul", value, g.constant(np.float32(0))))
    nodes.append(g.node("Clip", value, g.constant(-HALF), g.constant(HALF)))
    for node in nodes:
        g.output(node, (2, VALUES.shape[1]))
    return g.model()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_constants_and_inputs_mean_the_same() -> None:
    session = tvm_hybrid.InferenceSession(joined(), num_threads=1, records=[])
    for output, result in zip(session.get_outputs(), session.run(None, {"x": VALUES}), strict=True):
        # Both run the same formulas; LLVM may fuse products and sums in one of them.
        np.testing.assert_allclose(result[0], result[1], rtol=1e-6, err_msg=output.name)


@pytest.mark.parametrize("operator", [relax.op.negative, relax.op.exp, relax.op.nn.softplus])
def test_kernels_of_constants_run_at_compile_time(operator: Callable[[Any], Any]) -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return relax.op.add(x, operator(relax.const(VALUES)))

    mod = fold_constants()(legalize_operators()(module(body, (VALUES.shape, "float32"))))
    bindings = mod["main"].body.blocks[0].bindings
    calls = [each for each in bindings if op_name(each.value) == "relax.call_tir"]
    assert len(calls) == 1
