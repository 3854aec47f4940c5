"""Regions that scale and quantise become regions that requantise by factors, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import IRModule, relax

from relay_passes.ir.functions import PREFIX
from relay_passes.quantize.requantize import requantize
from tests.relay_passes.graphs import Body, module, partitioned, regions
from tests.relay_passes.quantized import constant, inputs, outputs, quantize
from tests.relay_passes.region_checks import assert_equal, kernel_outputs
from tir_schedules.core.region import EpilogueOp, Region, Tensor

op = relax.op
F, I32 = "float32", "int32"
X = ((5, 6), "uint8")
RNG = np.random.default_rng(0)
W = relax.const(RNG.integers(-128, 128, (6, 32)).astype(np.int8))
SCALES = RNG.uniform(0.01, 0.1, 32).astype(np.float32)
LARGE = relax.const(np.full(32, 2**31 - 1000, np.int32))
BIAS = relax.const(RNG.integers(-5000, 5000, 32).astype(np.int32))


def product(q: relax.Expr, zero: int = 3, w: relax.Expr = W) -> relax.Expr:
    centred = op.subtract(op.astype(q, I32), constant(zero, I32))
    return op.matmul(centred, op.astype(w, I32), out_dtype=I32)


def real(acc: relax.Expr, scales: np.ndarray | float = SCALES) -> relax.Expr:
    return op.multiply(op.astype(acc, F), constant(scales, F))


def one_region(body: Body, *shapes: tuple[tuple[int, ...], str]) -> tuple[IRModule, Region]:
    """The module with its only region requantised; its meaning and its kernel's bits stay."""
    mod = module(body, *(shapes or (X,)))
    result = requantize()(partitioned(mod)[0])
    relax.analysis.well_formed(result)
    arrays = inputs(mod)
    wanted = outputs(mod, arrays)
    assert all(len(np.unique(array)) > 8 for array in wanted)
    assert_equal(outputs(result, arrays), wanted)
    assert_equal(kernel_outputs(mod, arrays), wanted)
    (region,) = regions(result)
    return result, region


def test_scales_of_columns() -> None:
    mod, region = one_region(lambda q: quantize(real(product(q)), 1.3, 101))
    factors = len(region.operands)
    assert region.operands == (Tensor((32,), F),) * factors and factors in (1, 2)
    assert region.epilogue == (
        EpilogueOp("constant", value=101.0),
        EpilogueOp("requantize", (0, 1 + factors, *range(1, 1 + factors)), dtype="uint8"),
    )
    assert region.output == Tensor((5, 32), "uint8")
    (function,) = (f for g, f in mod.functions_items() if g.name_hint != "main")
    assert function.attrs["Composite"] == PREFIX + "matmul"
    assert len(function.params) == 2 + factors


def test_one_scale_has_factors_that_are_numbers() -> None:
    _, region = one_region(lambda q: quantize(real(product(q), 0.02), 1.3, -9, "int8"))
    assert region.operands == ()
    assert [step.op for step in region.epilogue][-1] == "requantize"
    assert region.epilogue[0] == EpilogueOp("constant", value=-9.0)
    assert region.output.dtype == "int8"


def test_a_bias_of_int32_is_added_before() -> None:
    _, region = one_region(lambda q: quantize(real(op.add(product(q), BIAS)), 1.3, 101))
    assert region.operands[0] == Tensor((32,), I32)
    assert region.epilogue[0] == EpilogueOp("add", (0, 1), dtype=I32)
    assert [step.op for step in region.epilogue] == ["add", "constant", "requantize"]


def test_a_relu_at_the_end_of_the_type_goes() -> None:
    _, region = one_region(lambda q: quantize(op.nn.relu(real(product(q))), 1.3, 0))
    assert [step.op for step in region.epilogue] == ["constant", "requantize"]


def test_a_convolution() -> None:
    w = relax.const(RNG.integers(-128, 128, (3, 3, 4, 16)).astype(np.int8))

    def body(q: relax.Expr) -> relax.Expr:
        centred = op.subtract(op.astype(q, I32), constant(7, I32))
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_layout": "NHWC"}
        acc = op.nn.conv2d(centred, op.astype(w, I32), padding=(1, 1), out_dtype=I32, **layouts)
        return quantize(real(acc, SCALES[:16] / 2), 1.3, 101)

    _, region = one_region(body, ((1, 6, 5, 4), "uint8"))
    assert region.op == "conv2d"
    assert region.epilogue[-1].op == "requantize"


def test_two_calls_with_different_weights_share_a_region() -> None:
    """Functions that differ only in the constants of their meaning have one region."""
    other = relax.const(RNG.integers(-128, 128, (6, 32)).astype(np.int8))

    def body(q: relax.Expr) -> list[relax.Expr]:
        return [
            quantize(real(product(q, 3, w), scales), 1.3, 101)
            for w, scales in ((W, SCALES), (other, SCALES[::-1].copy()))
        ]

    mod = module(body, X)
    result = requantize()(partitioned(mod)[0])
    first, second = regions(result)
    assert first.epilogue[-1].op == second.epilogue[-1].op == "requantize"
    arrays = inputs(mod)
    assert_equal(outputs(result, arrays), outputs(mod, arrays))


Case = tuple[Body, tuple[tuple[int, ...], str]]
LEFT: dict[str, Body] = {
    "a scale that is not positive": lambda q: quantize(real(product(q), -SCALES), 1.3, 101),
    "a relu within the type": lambda q: quantize(op.nn.relu(real(product(q))), 1.3, 101),
    "a bias of f32": lambda q: quantize(op.add(real(product(q)), constant(SCALES, F)), 1.3, 101),
    "a function that is no line": lambda q: quantize(op.tanh(real(product(q), 1e-3)), 0.01, 101),
    "an operand of all elements": lambda q: quantize(
        op.add(real(product(q)), constant(np.ones((5, 32)), F)), 1.3, 101
    ),
    "nothing quantised": lambda q: real(product(q)),
    "sums beyond int32": lambda q: quantize(real(op.add(product(q), LARGE), 5e-8), 1.3, 101),
    "results beyond 16 bits": lambda q: quantize(real(product(q), 10 * SCALES), 1e-3, 101),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_is_left(case: str) -> None:
    before, _ = partitioned(module(LEFT[case], X))
    assert requantize()(before).same_as(before)
