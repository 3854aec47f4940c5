"""Dynamic quantisation: ranges computed at run time; zeros, constants, one sign, ties, outliers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tests.onnx_reference.evaluate import evaluate

from .integer_checks import TARGETS, Feeds, check, random_models
from .integer_inputs import byte_arrays, range_arrays
from .integer_layers import byte_types, columns, depths, rows, seeds

CASES = 40


@dataclass(frozen=True)
class DynamicLayers:
    """Parallel linear layers on one input, as onnxruntime's quantize_dynamic writes them.

    Attributes
    ----------
    lead, m, k : int
        Sizes of the input; `lead` is the size of a dimension before the rows, 0 if there is none.
    widths : sequence of int
        Result columns of each layer.
    w_type : str
        Type of the weights.
    zero_points : bool
        Whether weights have zero points.
    per_column : bool
        Whether scales and zero points differ along the columns.
    bias : bool
        Whether a bias is added.
    activation : str
        "" or "Relu".
    seed : int
        Seed of weights and inputs.
    """

    lead: int
    m: int
    k: int
    widths: Sequence[int]
    w_type: str
    zero_points: bool
    per_column: bool
    bias: bool
    activation: str
    seed: int

    def model_and_cases(self) -> tuple[onnx.ModelProto, list[Feeds]]:
        """The model and the feeds of each case."""
        rng = np.random.default_rng(self.seed)
        g = OnnxBuilder()
        lead = (self.lead,) if self.lead else ()
        shape = (*lead, self.m, self.k)
        quantized = g.nodes("DynamicQuantizeLinear", 3, g.input("x", shape))
        for width in self.widths:
            g.output(self._layer(g, rng, quantized, width), (*lead, self.m, width))
        return g.model(), [{"x": x} for x in range_arrays(rng, shape, CASES)]

    def _layer(
        self, g: OnnxBuilder, rng: np.random.Generator, quantized: Sequence[str], width: int
    ) -> str:
        q, scale, zero = quantized
        count = (width,) if self.per_column else ()
        w = g.constant(byte_arrays(rng, self.w_type, (self.k, width), 7)[6])
        w_scale = g.constant(rng.uniform(0.001, 0.1, count), np.float32)
        w_zero = np.zeros(count, self.w_type)
        if self.zero_points:
            w_zero = byte_arrays(rng, self.w_type, count, 7)[6]
        total = g.node("MatMulInteger", q, w, zero, g.constant(w_zero))
        real = g.node("Cast", total, to=onnx.TensorProto.FLOAT)
        y = g.node("Mul", real, g.node("Mul", scale, w_scale))
        if self.bias:
            y = g.node("Add", y, g.constant(rng.standard_normal(width), np.float32))
        return g.node(self.activation, y) if self.activation else y


dynamic_layers = st.builds(
    DynamicLayers,
    lead=st.sampled_from((0, 0, 2)),
    m=rows,
    k=depths,
    widths=st.lists(columns, min_size=1, max_size=3).map(tuple),
    w_type=byte_types,
    zero_points=st.booleans(),
    per_column=st.booleans(),
    bias=st.booleans(),
    activation=st.sampled_from(("", "Relu")),
    seed=seeds,
)


@random_models(25)
@given(dynamic_layers, st.sampled_from(list(TARGETS)))
def test_dynamic_layers(layers: DynamicLayers, target: str) -> None:
    check(*layers.model_and_cases(), products=len(layers.widths), target=target)


@pytest.mark.sampled
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 16), (5, 33), (2, 3, 129), (64, 100)])
def test_the_three_results_alone(shape: tuple[int, ...]) -> None:
    """DynamicQuantizeLinear alone: values, scale and zero point."""
    rng = np.random.default_rng(prod(shape))
    g = OnnxBuilder()
    y, scale, zero = g.nodes("DynamicQuantizeLinear", 3, g.input("x", shape))
    g.output(y, shape, np.uint8)
    g.output(scale, ())
    g.output(zero, (), np.uint8)
    model = g.model()
    session = tvm_hybrid.InferenceSession(model.SerializeToString(), num_threads=1)
    for number, x in enumerate(range_arrays(rng, shape, 200)):
        for got, wanted in zip(session.run(None, {"x": x}), evaluate(model, {"x": x}), strict=True):
            np.testing.assert_array_equal(got, wanted, f"case {number}", strict=True)
