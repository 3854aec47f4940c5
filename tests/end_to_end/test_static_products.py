"""Products of statically quantised tensors have the reference's bits, on integer kernels.

Each test draws models; each model is compiled once and runs `CASES` sets of inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.onnx_builder import OnnxBuilder

from .integer_checks import TARGETS, Feeds, check, random_models
from .integer_inputs import byte_arrays, real_arrays
from .integer_layers import (
    Bytes,
    Weight,
    byte_formats,
    columns,
    depths,
    depths_and_columns,
    rows,
    seeds,
    weights,
)

CASES = 40


@dataclass(frozen=True)
class Layer:
    """Dequantise, multiply, bias, residual, activation, quantise.

    Attributes
    ----------
    m, k, n : int
        Sizes.
    lead : int
        Size of a dimension before the rows; 0 for none.
    op : str
        "MatMul" or "Gemm".
    x : Bytes
        The format of the input.
    real_input : bool
        Whether the model's input is float32 and quantised first.
    w : Weight
        The constant operand.
    bias : str
        "", "float" or "int32": a float32 vector or a dequantised one.
    residual : Bytes or None
        The format of a second input of the result's shape, which is added; None for no residual.
    activation : str
        "", "Relu", "Clip" or "LeakyRelu".
    y : Bytes or None
        Format of the quantised result; None if it stays float32.
    back : bool
        Whether the quantised result is dequantised again.
    seed : int
        Seed of weights and inputs.
    """

    m: int
    k: int
    n: int
    lead: int
    op: str
    x: Bytes
    real_input: bool
    w: Weight
    bias: str
    residual: Bytes | None
    activation: str
    y: Bytes | None
    back: bool
    seed: int

    def model_and_cases(self) -> tuple[onnx.ModelProto, list[Feeds]]:
        """The model and the feeds of each case."""
        rng = np.random.default_rng(self.seed)
        g = OnnxBuilder()
        lead = (self.lead,) if self.lead else ()
        x_shape, y_shape = (*lead, self.m, self.k), (*lead, self.m, self.n)
        inputs: dict[str, list[np.ndarray]] = {}
        if self.real_input:
            a = self.x.there_and_back(g, g.input("x", x_shape))
            inputs["x"] = list(real_arrays(rng, x_shape, CASES, self.x.scale))
        else:
            a = g.input("x", x_shape, self.x.dtype)
            a = g.node("DequantizeLinear", a, *self.x.parameters(g))
            inputs["x"] = byte_arrays(rng, self.x.dtype, x_shape, CASES)
        b = self.w.emit(g, rng, (self.k, self.n))
        value = self._product(g, rng, a, b)
        if self.residual is not None:
            r = g.input("r", y_shape, self.residual.dtype)
            r = g.node("DequantizeLinear", r, *self.residual.parameters(g))
            value = g.node("Add", value, r)
            inputs["r"] = byte_arrays(rng, self.residual.dtype, y_shape, CASES)
        value = self._activation(g, value)
        result: type | str = np.float32
        if self.y is not None:
            parameters = self._result_format(self.y).parameters(g)
            value, result = g.node("QuantizeLinear", value, *parameters), self.y.dtype
            if self.back:
                value, result = g.node("DequantizeLinear", value, *parameters), np.float32
        g.output(value, y_shape, result)
        cases: list[Feeds] = [
            dict(zip(inputs, arrays, strict=True)) for arrays in zip(*inputs.values(), strict=True)
        ]
        return g.model(), cases

    @property
    def _spread(self) -> float:
        """Approximate distance from zero of the products of full-range inputs."""
        return self.x.scale * self.w.format.scale * sqrt(self.k) * 75 * 75

    def _product(self, g: OnnxBuilder, rng: np.random.Generator, a: str, b: str) -> str:
        bias = ""
        if self.bias == "float":
            bias = g.constant(rng.standard_normal(self.n) * self._spread, np.float32)
        elif self.bias == "int32":
            values = g.constant(rng.integers(-20000, 20000, self.n), np.int32)
            scale = g.constant(self.x.scale * self.w.format.scale, np.float32)
            bias = g.node("DequantizeLinear", values, scale)
        if self.op == "Gemm":
            extra = [bias] if bias else []
            return g.node("Gemm", a, b, *extra, transB=int(self.w.transposed))
        if self.w.transposed:
            b = g.node("Transpose", b, perm=(1, 0))
        value = g.node("MatMul", a, b)
        return g.node("Add", value, bias) if bias else value

    def _activation(self, g: OnnxBuilder, value: str) -> str:
        if not self.activation:
            return value
        if self.activation == "Clip":
            limits = (g.constant(limit * self._spread, np.float32) for limit in (-0.5, 1.0))
            return g.node("Clip", value, *limits)
        return g.node(self.activation, value)

    def _result_format(self, y: Bytes) -> Bytes:
        """The result's scale times a power of two, so that about 1 in 20 results saturates."""
        wanted = self._spread / 60 / y.scale
        return Bytes(y.dtype, y.scale * 2.0 ** round(np.log2(wanted)), y.zero_point)


@st.composite
def layers(draw: st.DrawFn, op: str) -> Layer:
    optional_bytes = st.one_of(st.none(), byte_formats())
    k, n = draw(depths_and_columns)
    return Layer(
        m=draw(rows),
        k=k,
        n=n,
        lead=0 if op == "Gemm" else draw(st.sampled_from((0, 0, 1, 3))),
        op=op,
        x=draw(byte_formats()),
        real_input=draw(st.booleans()),
        w=draw(weights(transposed=draw(st.booleans()))),
        bias=draw(st.sampled_from(("", "float", "int32"))),
        residual=draw(optional_bytes),
        activation=draw(st.sampled_from(("", "", "Relu", "Clip", "LeakyRelu"))),
        y=draw(optional_bytes),
        back=draw(st.booleans()),
        seed=draw(seeds),
    )


@random_models(25)
@given(layers("MatMul"), st.sampled_from(list(TARGETS)))
def test_matmul(layer: Layer, target: str) -> None:
    check(*layer.model_and_cases(), products=1, target=target)


@random_models(20)
@given(layers("Gemm"), st.sampled_from(list(TARGETS)))
def test_gemm(layer: Layer, target: str) -> None:
    check(*layer.model_and_cases(), products=1, target=target)


@dataclass(frozen=True)
class Scores:
    """The product of two activations with separate heads, as queries and keys in attention.

    Attributes
    ----------
    batch, heads, queries, keys, width : int
        Sizes.
    a, b : Bytes
        Formats of the inputs.
    stored : bool
        Whether inputs come [batch, tokens, heads, width], and are transposed after they are
        dequantised.
    transposed : bool
        Whether the second operand comes [..., keys, width].
    y : Bytes or None
        What the result is quantised to.
    seed : int
        Seed of the inputs.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    width: int
    a: Bytes
    b: Bytes
    stored: bool
    transposed: bool
    y: Bytes | None
    seed: int

    def model_and_cases(self) -> tuple[onnx.ModelProto, list[Feeds]]:
        """The model and the feeds of each case."""
        rng = np.random.default_rng(self.seed)
        g = OnnxBuilder()
        a_shape = [self.batch, self.heads, self.queries, self.width]
        b_shape = [self.batch, self.heads, self.keys, self.width]
        order = [0, 1, 3, 2] if self.transposed else [0, 1, 2, 3]
        if self.stored:
            a_shape, b_shape = ([s[0], s[2], s[1], s[3]] for s in (a_shape, b_shape))
            order = [{1: 2, 2: 1}.get(axis, axis) for axis in order]
        if not self.transposed:
            b_shape[-1], b_shape[1 if self.stored else 2] = self.keys, self.width
        operands, inputs = [], {}
        for name, shape, kind in ("a", a_shape, self.a), ("b", b_shape, self.b):
            value = g.input(name, shape, kind.dtype)
            operands.append(g.node("DequantizeLinear", value, *kind.parameters(g)))
            inputs[name] = byte_arrays(rng, kind.dtype, shape, CASES)
        if self.stored:
            operands[0] = g.node("Transpose", operands[0], perm=(0, 2, 1, 3))
        if order != [0, 1, 2, 3]:
            operands[1] = g.node("Transpose", operands[1], perm=order)
        value, result = g.node("MatMul", *operands), "float32"
        if self.y is not None:
            spread = self.a.scale * self.b.scale * sqrt(self.width) * 75 * 75
            scale = self.y.scale * 2.0 ** round(np.log2(spread / 60 / self.y.scale))
            kind = Bytes(self.y.dtype, scale, self.y.zero_point)
            value, result = g.node("QuantizeLinear", value, *kind.parameters(g)), kind.dtype
        g.output(value, (self.batch, self.heads, self.queries, self.keys), result)
        return g.model(), [{"a": a, "b": b} for a, b in zip(*inputs.values(), strict=True)]


score_models = st.builds(
    Scores,
    batch=st.sampled_from((1, 2)),
    heads=st.sampled_from((1, 3)),
    queries=rows,
    keys=columns,
    width=depths,
    a=byte_formats(),
    b=byte_formats(),
    stored=st.booleans(),
    transposed=st.booleans(),
    y=st.one_of(st.none(), byte_formats()),
    seed=seeds,
)


@pytest.mark.slow
@random_models(25)
@given(score_models, st.sampled_from(list(TARGETS)))
def test_products_of_activations(scores: Scores, target: str) -> None:
    check(*scores.model_and_cases(), products=1, target=target)
