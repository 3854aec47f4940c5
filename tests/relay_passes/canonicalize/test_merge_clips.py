"""Consecutive clips become one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tvm import relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.activations import merge_clips
from tests.relay_passes.graphs import module, run

SHAPE = (2, 9)


def clip(x: relax.Expr, low: float, high: float) -> relax.Expr:
    return relax.op.clip(x, relax.prim_value(float(low)), relax.prim_value(float(high)))


@pytest.mark.parametrize(
    ("first", "second", "limits"),
    [
        ((0, math.inf), (-math.inf, 6), (0, 6)),
        ((-1, 2), (0, 1), (0, 1)),
        ((-1, 2), (5, 7), (5, 5)),
        ((3, 9), (-2, 1), (1, 1)),
    ],
)
def test_two_limits_meet(
    first: tuple[float, float], second: tuple[float, float], limits: tuple[float, float]
) -> None:
    before = module(lambda x: clip(clip(x, *first), *second), (SHAPE, "float32"))
    merged = merge_clips()(before)
    assert_structural_equal(merged, module(lambda x: clip(x, *limits), (SHAPE, "float32")))
    x = np.linspace(-12, 12, 18, dtype=np.float32).reshape(SHAPE)
    np.testing.assert_array_equal(run(merged, [x])[0], run(before, [x])[0])


def test_no_limits() -> None:
    before = module(lambda x: relax.op.exp(clip(x, -math.inf, math.inf)), (SHAPE, "float32"))
    assert_structural_equal(merge_clips()(before), module(relax.op.exp, (SHAPE, "float32")))


def test_integers_stay() -> None:
    mod = module(lambda x: clip(clip(x, 0, 5), 1, 3), (SHAPE, "int32"))
    assert_structural_equal(merge_clips()(mod), mod)
