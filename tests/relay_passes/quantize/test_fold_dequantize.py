"""Biases are dequantised at compile time; weights stay quantised."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from relay_passes.quantize.move_quantization import fold_dequantize
from tests.onnx_reference.arithmetic import quantized
from tests.relay_passes.graphs import module
from tests.relay_passes.quantized import assert_becomes, assert_stays, constant, dequantize

op = relax.op
X = ((5, 4), "float32")


@pytest.mark.parametrize(
    ("values", "dtype", "scale", "zero"),
    [
        ([3, -70000, 2**24 + 1, -(2**31)], "int32", 0.0123, 0),
        ([3, -7, 5, 9], "int32", [0.1, 0.2, 0.3, 1e-20], [0, 0, 0, 0]),
        ([0, 255, 128, 3], "uint8", [0.1, 0.2, 0.3, 0.4], [1, 2, 255, 4]),
        (200, "uint8", 0.1, 255),
        (np.arange(20).reshape(5, 4), "int32", [0.1, 0.2, 0.3, 0.4], [0, 0, 0, 0]),
    ],
    ids=["bias", "bias of columns", "vector", "number", "int32 matrix"],
)
def test_small_constants(
    values: list[int], dtype: str, scale: list[float], zero: list[int]
) -> None:
    q = np.asarray(values, dtype)
    zeros = np.asarray(zero, dtype)
    wanted = quantized(q, np.asarray(scale, np.float32), zeros, -1).real()
    before = module(lambda x: op.add(x, dequantize(relax.const(q), scale, zeros, dtype)), X)
    after = module(lambda x: op.add(x, constant(wanted, "float32")), X)
    assert_becomes(before, fold_dequantize(), after)


def test_weights_and_activations_stay() -> None:
    weight = constant(np.ones((4, 3)), "int8")
    before = module(lambda x: op.matmul(x, dequantize(weight, 0.2, 0, "int8")), X)
    assert_stays(before, fold_dequantize())
    assert_stays(module(lambda q: dequantize(q, 0.2, 0), ((4,), "uint8")), fold_dequantize())
