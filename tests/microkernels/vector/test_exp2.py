"""The exponentials of softmax: errors over their whole range, and special values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm.tirx.script.builder.ir as I
from tvm.script.ir_builder import IRBuilder

from microkernels.isa import isa_named
from microkernels.vector.expressions import Expr, parameter, ramp
from microkernels.vector.vector_math import exp2, exp_of_difference
from tests.tir_schedules.run_region import ISAS, compiled

EPS = np.finfo(np.float32).eps
UNIT = EPS / 2
TINY = float(np.finfo(np.float32).tiny)
SPECIAL = np.array([0, -np.inf, -3e38, np.nan, -1e-30, -200, -0.0, -127.5], np.float32)
WANTED = np.array([1, 0, 0, np.nan, 1, 0, 1, 0], np.float32)


def results(emit: Callable[[Expr], Expr], isa: str, x: np.ndarray) -> np.ndarray:
    """The results of a function of many numbers, in vectors of an instruction set."""
    lanes = isa_named(isa).f32_lanes
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        source, result = parameter("X", x.shape, "float32"), parameter("Y", x.shape, "float32")
        with I.serial(x.size // lanes) as i, I.sblock("exp"):
            I.reads()
            I.writes()
            place = [ramp(i * lanes, lanes)]
            I.buffer_store(result, emit(source[tuple(place)]), place)
    y = np.empty_like(x)
    compiled(builder.get(), isa)(x, y)
    return y


@pytest.mark.parametrize("isa", ISAS)
def test_error_of_powers_of_two(isa: str) -> None:
    x = np.concatenate([np.linspace(-126, 0, (1 << 17) - 16, dtype=np.float32), SPECIAL, SPECIAL])
    found = results(lambda value: exp2(value, isa_named(isa)), isa, x)
    exact = np.exp2(x.astype(np.float64))
    # Three roundings, and the largest error of the polynomial.
    error = np.abs(found - exact)[: -2 * SPECIAL.size]
    assert (error <= (3 * UNIT + 9.6e-8) * exact[: error.size]).all()
    # Results below the smallest normal number may be zero.
    assert np.allclose(found[-SPECIAL.size :], WANTED, rtol=0, atol=TINY, equal_nan=True)


def test_short_polynomial_of_avx512() -> None:
    x = np.linspace(-126, 0, 1 << 12, dtype=np.float32)
    found = results(lambda value: exp2(value, isa_named("avx512"), 3), "avx512", x)
    error = np.abs(found / np.exp2(x.astype(np.float64)) - 1)
    assert 7e-5 < error.max() <= 7.5e-5 + 3 * UNIT


@pytest.mark.parametrize("isa", ISAS)
def test_error_of_the_exponential(isa: str) -> None:
    x = np.concatenate([np.linspace(-87.3, 0, (1 << 17) - 16, dtype=np.float32), SPECIAL, SPECIAL])
    found = results(exp_of_difference, isa, x)
    exact = np.exp(x.astype(np.float64))
    error, size = np.abs(found - exact)[: -2 * SPECIAL.size], x.size - 2 * SPECIAL.size
    assert (error <= (0.62 * np.abs(x[:size]) + 2) * EPS * exact[:size]).all()
    assert error.max() <= 2 * EPS
    assert np.allclose(found[-SPECIAL.size :], WANTED, rtol=0, atol=TINY, equal_nan=True)
