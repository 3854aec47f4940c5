"""Quantised weights of f32 tensors are written as one block for each column."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import ArrayLike
from tvm import relax

from relay_passes.quantize.row_scales import weight_only_matmul
from tests.relay_passes.graphs import module
from tests.relay_passes.quantized import (
    assert_becomes,
    assert_same_bits,
    assert_stays,
    constant,
    dequantize,
)

op = relax.op
X = ((5, 6), "float32")
SCALES = np.asarray([0.1, 0.2, 0.7, 0.3], np.float32)


def weight(dtype: str) -> relax.Expr:
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    return relax.const(rng.integers(limits.min, limits.max, (6, 4), np.dtype(dtype), endpoint=True))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("scale", [0.2, SCALES], ids=["one scale", "scales of columns"])
@pytest.mark.parametrize("zero", [0, 7, [0, 1, 2, 3]], ids=str)
def test_blocks_of_a_whole_column(dtype: str, scale: ArrayLike, zero: ArrayLike) -> None:
    if np.ndim(scale) != np.ndim(zero):  # ONNX gives both the same shape
        scale, zero = np.broadcast_to(scale, 4), np.broadcast_to(zero, 4)
    q = weight(dtype)
    row = np.broadcast_to(np.asarray(scale, np.float32), (1, 1, 4))
    zeros = np.broadcast_to(np.asarray(zero, np.float32), (1, 1, 4))

    def after(x: relax.Expr) -> relax.Expr:
        value = op.astype(op.reshape(q, (1, 6, 4)), "float32")
        if zeros.any():
            value = op.subtract(value, constant(zeros, "float32"))
        return op.matmul(x, op.reshape(op.multiply(value, constant(row, "float32")), (6, 4)))

    # Constants are not folded, so that the operators of the weight stay visible.
    before = module(lambda x: op.matmul(x, dequantize(q, scale, zero, dtype, 1)), X)
    mod = weight_only_matmul()(before)
    names = [str(binding.value.op.name) for binding in mod["main"].body.blocks[0].bindings]
    middle = ["relax.subtract"] if zeros.any() else []
    assert names == [
        "relax.reshape",
        "relax.astype",
        *middle,
        "relax.multiply",
        "relax.reshape",
        "relax.matmul",
    ]
    assert mod["main"].body.blocks[0].bindings[0].value.args[0].same_as(q)
    assert_becomes(before, weight_only_matmul(), module(after, X))
    assert_same_bits(before, mod)


def test_what_stays() -> None:
    rows = np.arange(1, 7) / 7
    q = weight("int8")
    per_row = module(lambda x: op.matmul(x, dequantize(q, rows, 0, "int8", 0)), X)
    activation = module(
        lambda x, w: op.matmul(x, dequantize(w, 0.2, 0, "int8")), X, ((6, 4), "int8")
    )
    left = module(lambda x: op.matmul(dequantize(q, 0.2, 0, "int8"), x), ((4, 6), "float32"))
    batch = module(
        lambda x: op.matmul(x, dequantize(constant(np.ones((2, 6, 4)), "int8"), 0.2, 0, "int8")), X
    )
    for mod in (per_row, activation, left, batch):
        assert_stays(mod, weight_only_matmul())
