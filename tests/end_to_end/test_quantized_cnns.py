"""Small quantised CNNs in every form have the reference's bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from tests.onnx_builder import CONTRIB, OnnxBuilder
from tests.onnx_reference.evaluate import evaluate

from .integer_checks import TARGETS, Feeds, difference, session_for
from .integer_inputs import byte_arrays
from .integer_layers import Bytes

pytestmark = pytest.mark.turns

IMAGE = (2, 3, 11, 9)
Value = tuple[str, Bytes]


class Net:
    """Writes layers of a quantised CNN; a value is an 8-bit tensor's name and its quantisation.

    Parameters
    ----------
    dtype : str
        Element type of activations.
    operators : bool
        Whether to write QLinear operators; else float ones between conversions (QDQ).
    """

    def __init__(self, dtype: str, operators: bool) -> None:
        self.g = OnnxBuilder()
        self.rng = np.random.default_rng(5)
        self.dtype, self.operators = dtype, operators

    def format(self, scale: float) -> Bytes:
        """A result format of this scale with a random zero point."""
        low = int(np.iinfo(self.dtype).min)
        return Bytes(self.dtype, scale, low + int(self.rng.integers(0, 60)))

    def parameters(self, value: Value) -> list[str]:
        name, form = value
        return [name, *form.parameters(self.g)]

    def real(self, value: Value) -> str:
        return self.g.node("DequantizeLinear", *self.parameters(value))

    def quantized(self, x: str, form: Bytes) -> Value:
        return self.g.node("QuantizeLinear", x, *form.parameters(self.g)), form

    def conv(
        self,
        value: Value,
        kernel: Sequence[int],
        scale: float,
        *,
        weight: str = "int8",
        relu: bool = False,
        **attributes: Any,
    ) -> Value:
        """A convolution with a scale per channel, an int32 bias and optionally a Relu."""
        form, limits, count = self.format(scale), np.iinfo(weight), kernel[0]
        w = self.rng.integers(limits.min, limits.max, kernel, weight, endpoint=True)
        steps = self.rng.uniform(0.005, 0.02, count).astype(np.float32)
        zeros = np.zeros(count, weight)
        if weight == "uint8":  # some leave int8 without zero point
            zeros = self.rng.integers(100, 156, count, np.uint8)
        bias = self.rng.integers(-3000, 3000, count).astype(np.int32)
        names = [self.g.constant(each) for each in (w, steps, zeros)]
        if self.operators:
            result = self.g.node(
                "QLinearConv",
                *self.parameters(value),
                *names,
                *form.parameters(self.g),
                self.g.constant(bias),
                **attributes,
            )
            return result, form
        factor = self.g.constant(np.float32(value[1].scale) * steps)
        result = self.g.node(
            "Conv",
            self.real(value),
            self.g.node("DequantizeLinear", *names, axis=0),
            self.g.node("DequantizeLinear", self.g.constant(bias), factor, axis=0),
            **attributes,
        )
        return self.quantized(self.g.node("Relu", result) if relu else result, form)

    def pool(self, op: str, value: Value, scale: float, **attributes: Any) -> Value:
        """A mean pool whose result has another scale."""
        form = self.format(scale)
        if self.operators:
            arguments = [*self.parameters(value), *form.parameters(self.g)]
            result = self.g.node(f"QLinear{op}", *arguments, domain=CONTRIB, **attributes)
            return result, form
        return self.quantized(self.g.node(op, self.real(value), **attributes), form)

    def largest(self, value: Value, **attributes: Any) -> Value:
        if self.operators:
            return self.g.node("MaxPool", value[0], **attributes), value[1]
        return self.quantized(self.g.node("MaxPool", self.real(value), **attributes), value[1])

    def add(self, a: Value, b: Value, scale: float, relu: bool = False) -> Value:
        form = self.format(scale)
        if self.operators:
            arguments = [*self.parameters(a), *self.parameters(b), *form.parameters(self.g)]
            return self.g.node("QLinearAdd", *arguments, domain=CONTRIB), form
        total = self.g.node("Add", self.real(a), self.real(b))
        return self.quantized(self.g.node("Relu", total) if relu else total, form)

    def concat(self, parts: Sequence[Value], scale: float) -> Value:
        form = self.format(scale)
        if self.operators:
            arguments = [name for part in parts for name in self.parameters(part)]
            arguments = [*form.parameters(self.g), *arguments]
            return self.g.node("QLinearConcat", *arguments, domain=CONTRIB, axis=1), form
        joined = self.g.node("Concat", *(self.real(part) for part in parts), axis=1)
        return self.quantized(joined, form)

    def twice(self, value: Value) -> Value:
        """Repeats every pixel in a block of 2 x 2."""
        factors = self.g.constant([1, 1, 2, 2], np.float32)
        x = value[0] if self.operators else self.real(value)
        result = self.g.node(
            "Resize", x, "", factors, mode="nearest", nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        )  # fmt: skip
        return (result, value[1]) if self.operators else self.quantized(result, value[1])

    def model(self, weight: str) -> onnx.ModelProto:
        """A model with two branches that join, and two results."""
        x = self.g.input("x", IMAGE, self.dtype), self.format(0.02)
        stem = self.conv(x, (16, 3, 3, 3), 0.06, relu=True, strides=[2, 2], pads=[1, 1, 1, 1])
        pooled = self.largest(stem, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
        wide = self.conv(pooled, (24, 16, 1, 1), 0.2, weight=weight)
        deep = self.conv(
            wide, (24, 1, 3, 3), 0.15, weight=weight, relu=True, group=24, pads=[1, 1, 1, 1]
        )
        narrow = self.conv(deep, (16, 24, 1, 1), 0.5)
        total = self.add(pooled, narrow, 0.55, relu=True)
        groups = self.conv(total, (8, 4, 3, 3), 0.9, group=4, pads=[0, 1, 2, 1], dilations=[1, 1])
        means = self.pool(
            "AveragePool", total, 0.3, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1]
        )
        joined = self.concat([groups, means, total], 0.8)
        image = self.twice(joined)
        mean = self.pool("GlobalAveragePool", joined, 0.25)
        shape = (IMAGE[0], 40, 6, 6)
        self.g.output(image[0], shape, self.dtype)
        self.g.output(mean[0], (IMAGE[0], 40, 1, 1), self.dtype)
        return self.g.model()


FORMS = {
    "QDQ": ("uint8", "int8", False),
    "signed QDQ": ("int8", "int8", False),
    "QOperator": ("uint8", "uint8", True),
}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("form", "target"),
    [*(("QDQ", target) for target in TARGETS), ("signed QDQ", "host"), ("QOperator", "host")],
)
def test_a_cnn(form: str, target: str) -> None:
    dtype, weight, operators = FORMS[form]
    model = Net(dtype, operators).model(weight)
    session = session_for(model, target)
    left = [each.op for each in session.explain().left]
    assert not [op for op in left if "conv" in op or "matmul" in op], str(session.explain())
    rng = np.random.default_rng(9)
    for number, x in enumerate(byte_arrays(rng, dtype, IMAGE, 12)):
        feeds: Feeds = {"x": x}
        for got, wanted in zip(session.run(None, feeds), evaluate(model, feeds), strict=True):
            assert got.dtype == wanted.dtype and got.shape == wanted.shape
            assert np.array_equal(got, wanted), difference(f"case {number}", got, wanted)
