"""Long chains of elementwise operators compile in a time linear in their length.

Twenty operators took hours while TVM's simplifier could expand the named values.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder

LENGTH, ROWS, WIDTH = 20, 4, 20
RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (ROWS, WIDTH)).astype(np.float32)
ROW = np.linspace(-1, 1, WIDTH, dtype=np.float32)


def softplus(model: OnnxBuilder, x: str, step: int) -> str:
    return model.node("Softplus", x)


def mixed(model: OnnxBuilder, x: str, step: int) -> str:
    """A mixed chain: no operator has a slope above 2 / sqrt(pi) or a result above 4."""
    kinds = ("Softplus", "Max", "Log", "Sigmoid", "Tanh", "Where", "Erf", "Min", "Mish", "Square")
    kind = kinds[step % len(kinds)]
    if kind in ("Max", "Min"):
        return model.node(kind, x, model.constant(ROW))
    if kind == "Log":
        return model.node(kind, model.node("Add", model.node("Abs", x), model.constant(ROW + 2)))
    if kind == "Where":
        return model.node(kind, model.node("Greater", x, model.constant(ROW)), x, x)
    if kind == "Square":
        return model.node("Sigmoid", model.node("Mul", x, x))
    return model.node(kind, x)


def quantised(model: OnnxBuilder, x: str, step: int) -> str:
    parameters = (model.constant(np.float32(0.01 + 0.001 * step)), model.constant(np.uint8(100)))
    q = model.node("QuantizeLinear", x, *parameters)
    return model.node("LeakyRelu", model.node("DequantizeLinear", q, *parameters), alpha=0.75)


def chain(link: Callable[[OnnxBuilder, str, int], str], product: bool) -> onnx.ModelProto:
    model = OnnxBuilder(opset=19)
    x = model.input("x", X.shape)
    if product:
        x = model.node("MatMul", x, model.constant(np.eye(WIDTH, dtype=np.float32)))
    for step in range(LENGTH):
        x = link(model, x, step)
    model.output(x, X.shape)
    return model.model()


CASES = [
    *((link, True, "coarse") for link in (softplus, mixed, quantised)),
    *((link, False, "coarse") for link in (softplus, mixed, quantised)),
    *((mixed, True, fusion) for fusion in ("fine", "none")),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("link", "product", "fusion"), CASES)
def test_a_chain_of_twenty(
    link: Callable[[OnnxBuilder, str, int], str], product: bool, fusion: str
) -> None:
    model = chain(link, product)
    expected = ReferenceEvaluator(model).run(None, {"x": X})[0]
    executable = tvm_hybrid.compile(
        model.SerializeToString(), fusion=fusion, num_threads=1, records=[]
    )
    # Products by one are exact. Every operator adds at most 16 ulp of a value of at most 4; later
    # operators multiply that by at most (2 / sqrt(pi))^2 = 1.3 (two are erf). Quantisations are
    # exact, and so are the operators between them, up to their rounding.
    bound = 1.3 * LENGTH * 16 * 4 * np.finfo(np.float32).eps
    np.testing.assert_allclose(executable.run(X)[0].numpy(), expected, rtol=0, atol=bound)
