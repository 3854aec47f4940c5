"""Models in QOperator form: QLinearMatMul, QGemm and the operators between them."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import onnx
from hypothesis import given
from hypothesis import strategies as st

from tests.onnx_builder import CONTRIB, OnnxBuilder

from .integer_checks import TARGETS, Feeds, check, random_models
from .integer_inputs import byte_arrays
from .integer_layers import Bytes, byte_types, columns, depths, rows, scales, seeds

CASES = 40


@dataclass(frozen=True)
class QLayer:
    """QLinearMatMul or QGemm, optionally followed by QLinearAdd, -Mul or -LeakyRelu.

    Attributes
    ----------
    op : str
        "QLinearMatMul" or "QGemm".
    m, k, n : int
        Sizes.
    x, w, y : Bytes
        Formats of operands and result.
    per_column : bool
        Whether the weight's scales and zero points differ along the columns.
    transposed : bool
        Whether the weight is stored [N, K]; for QGemm.
    bias : bool
        Whether a bias is added; for QGemm.
    after : str
        "", or the operator that follows.
    seed : int
        Seed of weights and inputs.
    """

    op: str
    m: int
    k: int
    n: int
    x: Bytes
    w: Bytes
    y: Bytes
    per_column: bool
    transposed: bool
    bias: bool
    after: str
    seed: int

    def model_and_cases(self) -> tuple[onnx.ModelProto, list[Feeds]]:
        """The model and the feeds of each case."""
        rng = np.random.default_rng(self.seed)
        g = OnnxBuilder()
        x_shape, y_shape = (self.m, self.k), (self.m, self.n)
        inputs = {"x": byte_arrays(rng, self.x.dtype, x_shape, CASES)}
        a = [g.input("x", x_shape, self.x.dtype), *_parameters(g, self.x)]
        y = _parameters(g, self._result())
        if self.op == "QGemm":
            extra = g.constant(rng.integers(-20000, 20000, self.n), np.int32) if self.bias else ""
            operands = [*a, *self._weight(g, rng), extra, *y]
            transposed = int(self.transposed)
            value = g.node("QGemm", *operands, domain=CONTRIB, transB=transposed)
        else:
            value = g.node("QLinearMatMul", *a, *self._weight(g, rng), *y)
        if self.after == "QLinearLeakyRelu":
            value = g.node(self.after, value, *y, *y, domain=CONTRIB, alpha=0.25)
        elif self.after:
            inputs["r"] = byte_arrays(rng, self.y.dtype, y_shape, CASES)
            r = g.input("r", y_shape, self.y.dtype)
            value = g.node(self.after, value, *y, r, *y, *y, domain=CONTRIB)
        g.output(value, y_shape, self.y.dtype)
        cases: list[Feeds] = [
            dict(zip(inputs, arrays, strict=True)) for arrays in zip(*inputs.values(), strict=True)
        ]
        return g.model(), cases

    def _weight(self, g: OnnxBuilder, rng: np.random.Generator) -> list[str]:
        """Values, scale and zero point of the weight."""
        transposed = self.transposed and self.op == "QGemm"
        shape = (self.n, self.k) if transposed else (self.k, self.n)
        values = byte_arrays(rng, self.w.dtype, shape, 7)[6]
        if not self.per_column:
            return [g.constant(values), *_parameters(g, self.w)]
        scale = rng.uniform(0.5, 2, self.n) * self.w.scale
        zero = np.zeros(self.n, self.w.dtype)
        if self.w.zero_point:
            zero = byte_arrays(rng, self.w.dtype, (self.n,), 7)[6]
        return [g.constant(values), g.constant(scale, np.float32), g.constant(zero)]

    def _result(self) -> Bytes:
        spread = self.x.scale * self.w.scale * sqrt(self.k) * 75 * 75
        scale = self.y.scale * 2.0 ** round(np.log2(spread / 60 / self.y.scale))
        return Bytes(self.y.dtype, scale, self.y.zero_point)


def _parameters(g: OnnxBuilder, kind: Bytes) -> list[str]:
    """Scale and zero point; these operators require both."""
    return [g.constant(kind.scale, np.float32), g.constant(kind.zero)]


@st.composite
def formats(draw: st.DrawFn, dtype: str) -> Bytes:
    limits = np.iinfo(dtype)
    return Bytes(dtype, draw(scales()), draw(st.integers(int(limits.min), int(limits.max))))


@st.composite
def qlayers(draw: st.DrawFn) -> QLayer:
    x_type = draw(byte_types)
    return QLayer(
        op=draw(st.sampled_from(("QLinearMatMul", "QGemm"))),
        m=draw(rows),
        k=draw(depths),
        n=draw(columns),
        x=draw(formats(x_type)),
        w=draw(formats(draw(byte_types))),
        y=draw(formats(x_type)),
        per_column=draw(st.booleans()),
        transposed=draw(st.booleans()),
        bias=draw(st.booleans()),
        after=draw(st.sampled_from(("", "QLinearAdd", "QLinearMul", "QLinearLeakyRelu"))),
        seed=draw(seeds),
    )


@random_models(25)
@given(qlayers(), st.sampled_from(list(TARGETS)))
def test_qoperators(layer: QLayer, target: str) -> None:
    check(*layer.model_and_cases(), products=1, target=target)
