"""Means of dequantised tensors become exact integer sums with a scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax, tirx
from tvm.ir import assert_structural_equal

from relay_passes.ir.rules import rules
from relay_passes.quantize.integer_mean import integer_mean, integer_pool
from tests.relay_passes.graphs import module
from tests.relay_passes.quantized import (
    assert_becomes,
    assert_stays,
    constant,
    dequantize,
    inputs,
    operators,
    outputs,
)

op = relax.op
SHAPE = (2, 5, 6, 3)
STEP, ZERO = np.float32(0.3), 7


def real(total: relax.Expr, count: int) -> relax.Expr:
    return op.multiply(op.astype(total, "float32"), relax.const(STEP / np.float32(count)))


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("axes", "count"), [([1, 2], 30), ([-1], 3), (None, 180)], ids=str)
def test_a_mean(axes: list[int] | None, count: int, keepdims: bool) -> None:
    before = module(lambda q: op.mean(dequantize(q, STEP, ZERO), axes, keepdims), (SHAPE, "uint8"))
    reduced = [0, 1, 2, 3] if axes is None else [axis % 4 for axis in axes]

    def after(q: relax.Expr) -> relax.Expr:
        total = op.sum(op.astype(q, "int32"), reduced, keepdims)
        return real(op.subtract(total, constant(count * ZERO, "int32")), count)

    assert_becomes(before, integer_mean(), module(after, (SHAPE, "uint8")))


def test_a_mean_over_static_axes_of_a_dynamic_shape() -> None:
    x = ((tirx.Var("batch", "int64"), 5, 6, 3), "uint8")

    def after(q: relax.Expr) -> relax.Expr:
        total = op.sum(op.astype(q, "int32"), [1, 2], False)
        return real(op.subtract(total, constant(30 * ZERO, "int32")), 30)

    before = module(lambda q: op.mean(dequantize(q, STEP, ZERO), [1, 2]), x)
    assert_structural_equal(integer_mean()(before), module(after, x))
    over_all = module(lambda q: op.mean(dequantize(q, STEP, ZERO), [0, 1]), x)
    assert_structural_equal(integer_mean()(over_all), over_all)


def test_a_global_pool() -> None:
    before = module(
        lambda q: op.nn.adaptive_avg_pool2d(dequantize(q, STEP, 0, "int8"), (1, 1), layout="NHWC"),
        (SHAPE, "int8"),
    )
    after = module(lambda q: real(op.sum(op.astype(q, "int32"), [1, 2], True), 30), (SHAPE, "int8"))
    assert_becomes(before, integer_mean(), after)


POOLS: dict[str, dict[str, Any]] = {
    "plain": {"pool_size": (2, 3)},
    "strided": {"pool_size": (3, 2), "strides": (2, 3)},
    "padding counts": {"pool_size": (3, 3), "padding": (1, 0, 1, 2), "count_include_pad": True},
    "padding does not count": {"pool_size": (3, 3), "padding": (1, 1, 1, 1), "strides": (2, 1)},
    "dilated": {"pool_size": (2, 2), "dilation": (2, 3), "padding": (1, 1, 1, 1)},
}


@pytest.mark.sampled
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("name", POOLS)
def test_windows(name: str, layout: str) -> None:
    attrs = POOLS[name]
    shape = SHAPE if layout == "NHWC" else (2, 3, 5, 6)
    mod = integer_pool()(
        module(
            lambda q: op.nn.avg_pool2d(dequantize(q, STEP, ZERO), layout=layout, **attrs),
            (shape, "uint8"),
        )
    )
    assert operators(mod)["nn.conv2d"] == 1 and operators(mod)["nn.avg_pool2d"] == 0
    (q,) = inputs(mod)
    (got,) = outputs(mod, [q])
    pixels = q if layout == "NHWC" else q.transpose(0, 2, 3, 1)
    wanted = _mean_of_windows(pixels, **attrs)
    np.testing.assert_array_equal(got if layout == "NHWC" else got.transpose(0, 2, 3, 1), wanted)


def _mean_of_windows(
    q: np.ndarray,
    pool_size: tuple[int, int],
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, ...] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    count_include_pad: bool = False,
) -> np.ndarray:
    """Exact sums times STEP / count, both rounded to f32."""
    margins = ((0, 0), (padding[0], padding[2]), (padding[1], padding[3]), (0, 0))
    values = np.pad(q.astype(np.int64) - ZERO, margins)
    inside = np.pad(np.ones_like(q, np.int64), margins, constant_values=int(count_include_pad))
    spans = [(size - 1) * step + 1 for size, step in zip(pool_size, dilation, strict=True)]

    def sums(array: np.ndarray) -> np.ndarray:
        windows = np.lib.stride_tricks.sliding_window_view(array, spans, (1, 2))
        windows = windows[:, :: strides[0], :: strides[1], :, :: dilation[0], :: dilation[1]]
        return np.asarray(windows.sum((-1, -2)))

    return sums(values).astype(np.float32) * (STEP / sums(inside).astype(np.float32))


def test_what_stays() -> None:
    """Sizes rounded up, scales per axis, scales at run time, and windows of an adaptive pool."""
    q = (SHAPE, "uint8")
    several = module(lambda x: op.mean(dequantize(x, [0.1, 0.2, 0.3], [0] * 3), [1]), q)
    ceil = module(
        lambda x: op.nn.avg_pool2d(
            dequantize(x, STEP, ZERO), (2, 2), (2, 2), ceil_mode=True, layout="NHWC"
        ),
        q,
    )
    adaptive = module(
        lambda x: op.nn.adaptive_avg_pool2d(dequantize(x, STEP, ZERO), (2, 2), layout="NHWC"), q
    )
    later = module(
        lambda x, s, z: op.mean(op.dequantize(x, s, z), [1]), q, ((), "float32"), ((), "uint8")
    )
    for mod in (several, ceil, adaptive, later):
        assert_stays(mod, rules("means", [integer_mean, integer_pool]))


def test_a_sum_beyond_32_bits_stays() -> None:
    mod = module(lambda q: op.mean(dequantize(q, STEP, 0)), ((2**12, 2**12), "uint8"))
    assert_stays(mod, integer_mean())
