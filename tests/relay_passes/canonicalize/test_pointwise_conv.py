"""Convolutions of one tap become products, others stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.ir import assert_structural_equal

from relay_passes.ir.rules import rules
from relay_passes.pipeline import PIXELS
from tests.relay_passes.graphs import constant, module

op = relax.op
F = "float32"
LAYOUTS = {1: ("NWC", "WIO"), 2: ("NHWC", "HWIO"), 3: ("NDHWC", "DHWIO")}


def conv(x: relax.Expr, weight: relax.Expr, **attrs: Any) -> relax.Expr:
    rank = int(x.ty.ndim) - 2
    data, kernel = LAYOUTS[rank]
    layouts = {"data_layout": data, "kernel_layout": kernel, "out_layout": data}
    return getattr(op.nn, f"conv{rank}d")(x, weight, **{**layouts, **attrs})


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_one_tap_is_a_product(rank: int) -> None:
    weight = constant(*(1,) * rank, 8, 4)
    matrix = relax.const(weight.value.numpy().reshape(8, 4))
    x = ((2, *(5, 6, 7)[:rank], 8), F)
    before = module(lambda x: conv(x, weight), x)
    assert_structural_equal(
        rules("pixels", PIXELS)(before), module(lambda x: op.matmul(x, matrix), x)
    )


def test_a_quantized_weight() -> None:
    rng = np.random.default_rng(0)
    integers = rng.integers(-99, 99, (1, 1, 8, 4), dtype=np.int8)
    scale, zero = relax.const(rng.random(4, np.float32)), relax.const(0, "int8")
    x = ((1, 6, 5, 8), F)
    before = module(lambda x: conv(x, op.dequantize(relax.const(integers), scale, zero, axis=3)), x)
    matrix = relax.const(integers.reshape(8, 4))
    after = module(lambda x: op.matmul(x, op.dequantize(matrix, scale, zero, axis=1)), x)
    assert_structural_equal(rules("pixels", PIXELS)(before), after)


def test_integers() -> None:
    weight = relax.const(np.arange(32, dtype=np.int8).reshape(1, 1, 8, 4))
    matrix = relax.const(np.arange(32, dtype=np.int8).reshape(8, 4))
    x = ((1, 6, 5, 8), "uint8")

    def wide(x: relax.Expr) -> relax.Expr:
        return relax.BlockBuilder.current().emit(op.astype(x, "int32"))

    before = module(lambda x: conv(wide(x), op.astype(weight, "int32"), out_dtype="int32"), x)
    after = module(lambda x: op.matmul(wide(x), op.astype(matrix, "int32"), "int32"), x)
    assert_structural_equal(rules("pixels", PIXELS)(before), after)


@pytest.mark.parametrize(
    "attrs, shape",
    [
        pytest.param({"strides": 2}, (1, 1, 8, 4), id="strided"),
        pytest.param({"padding": (0, 1, 0, 0)}, (1, 1, 8, 4), id="padded"),
        pytest.param({"groups": 2}, (1, 1, 4, 4), id="grouped"),
        pytest.param({}, (1, 3, 8, 4), id="three taps"),
        pytest.param({"kernel_layout": "HWOI"}, (1, 1, 4, 8), id="another layout"),
    ],
)
def test_others_stay(attrs: dict[str, Any], shape: tuple[int, ...]) -> None:
    mod = module(lambda x: conv(x, constant(*shape), **attrs), ((1, 6, 5, 8), F))
    assert_structural_equal(rules("pixels", PIXELS)(mod), mod)


def test_a_weight_that_is_no_constant_is_reshaped() -> None:
    inputs = (((1, 6, 5, 8), F), ((1, 1, 8, 4), F))
    expected = module(lambda x, w: op.matmul(x, op.reshape(w, (8, 4))), *inputs)
    assert_structural_equal(rules("pixels", PIXELS)(module(conv, *inputs)), expected)
