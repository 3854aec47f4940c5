"""Factors for requantisation give the integers of the operators for every sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relay_passes.quantize.requantize import find_factors, is_met, staircase
from tests.onnx_reference.arithmetic import quantize
from tir_schedules.epilogue.quantize_steps import requantize_reference

F32 = np.float32
LIMIT = 10_000_000
formats = st.sampled_from([("uint8", 0), ("uint8", 131), ("int8", 0), ("int8", -77)])
slopes = st.floats(-10, 0)  # logarithms to base 2


class Operators:
    """f32(a) * scale, then quantised, with one column for each scale."""

    def __init__(self, scales: np.ndarray, out_scale: float, dtype: str, zero: int) -> None:
        self.scales, self.out_scale = scales.astype(F32), F32(out_scale)
        self.zero = np.array(zero, dtype)

    def __call__(self, sums: np.ndarray) -> np.ndarray:
        return quantize(sums.astype(F32) * self.scales, self.out_scale, self.zero)

    @property
    def slope(self) -> np.ndarray:
        return self.scales.astype(np.float64) / np.float64(self.out_scale)

    def factors(self, low: int, high: int) -> tuple[np.ndarray, ...] | None:
        ends = (np.full(len(self.scales), low), np.full(len(self.scales), high))
        dtype, zero = str(self.zero.dtype), int(self.zero)
        stairs = staircase(self, self.slope, *ends, dtype, zero)
        assert stairs is not None
        return find_factors(stairs, *ends, zero)

    def same(self, factors: tuple[np.ndarray, ...], sums: np.ndarray) -> bool:
        found = requantize_reference(str(self.zero.dtype), sums, self.zero, *factors)
        return np.array_equal(found, self(sums))


def around_the_steps(operators: Operators, low: int, high: int) -> np.ndarray:
    """Sums next to every place where the integer changes, both ends, and random sums between."""
    steps = (np.arange(-260, 260) + 0.5)[:, None] / operators.slope
    near = np.floor(steps)[None] + np.arange(-12, 13)[:, None, None]
    rng = np.random.default_rng(0)
    some = rng.integers(low, high + 1, (500, len(operators.scales)))
    sums = np.concatenate([near.reshape(-1, len(operators.scales)), some])
    return np.clip(sums, low, high).astype(np.int64)


@given(st.lists(slopes, min_size=1, max_size=4), st.floats(-8, 2), formats)
@settings(max_examples=150)
def test_found_factors_give_the_same_integers(
    logarithms: list[float], out: float, kind: tuple[str, int]
) -> None:
    scales = 2.0 ** (np.array(logarithms) + out)
    operators = Operators(scales, 2.0**out, *kind)
    high = int(min(LIMIT, 2**14 / operators.slope.max()))
    factors = operators.factors(-high, high)
    if factors is not None:
        assert operators.same(factors, around_the_steps(operators, -high, high))


def test_every_sum() -> None:
    """All 2^17 sums of eight columns."""
    rng = np.random.default_rng(1)
    found = 0
    for _ in range(6):
        operators = Operators(rng.uniform(0.5, 2, 8) * 2**-9, 0.37, "uint8", 121)
        factors = operators.factors(-(2**16), 2**16)
        if factors is not None:
            sums = np.arange(-(2**16), 2**16 + 1)[:, None]
            assert operators.same(factors, sums)
            found += 1
    assert found >= 3


@given(st.floats(-5, 0), st.floats(-8, 2), formats)
@example(-1.0, 0.5, ("uint8", 0))
@settings(max_examples=60)
def test_steps_of_few_sums_always_have_factors(
    slope: float, out: float, kind: tuple[str, int]
) -> None:
    """With up to 32 sums a step, the operators' roundings show only at ties: exact ties that
    an odd zero point turns the other way, and ties that three roundings make or break."""
    operators = Operators(np.array([2.0 ** (slope + out)]), 2.0**out, *kind)
    factors = operators.factors(-1000, 1000)
    sums = np.arange(-1000, 1001)
    scaled = sums * operators.slope[0]
    distances = np.abs(scaled % 1 - 0.5)
    near = distances <= 3 * 2.0**-24 * np.abs(scaled)
    scale = operators.scales[0]
    exact = (distances == 0) & ((sums.astype(F32) * scale) == sums * np.float64(scale))
    assert factors is not None or (near & ~exact).any() or (kind[1] % 2 and exact.any())


def test_one_factor_mostly_and_two_where_roundings_show() -> None:
    rng = np.random.default_rng(0)
    counts = {1: 0, 2: 0, None: 0}
    for _ in range(60):
        operators = Operators(rng.uniform(1, 2, 1) * 2**-9, rng.uniform(1, 2), "uint8", 128)
        factors = operators.factors(-(2**18), 2**18)
        counts[len(factors) if factors is not None else None] += 1
    assert counts[1] > 20 and counts[2] > 5 and counts[None] < 10


def test_sums_that_reach_few_steps_or_none() -> None:
    operators = Operators(np.array([2.0**-12, 2.0**-30]), 1.0, "uint8", 3)
    for low, high in [(-5, 5), (0, 3000), (-3000, -2999), (7, 7)]:
        factors = operators.factors(low, high)
        assert factors is not None
        assert operators.same(factors, np.arange(low, high + 1)[:, None])


def test_results_beyond_16_bits_are_left() -> None:
    operators = Operators(np.array([0.25]), 1.0, "int8", 0)
    assert operators.factors(-100_000, 100_000) is not None
    assert operators.factors(-200_000, 100_000) is None
    assert operators.factors(-100_000, 200_000) is None


@pytest.mark.parametrize("change", [-1, 1])
def test_a_step_that_is_off_by_one_sum_is_noticed(change: int) -> None:
    operators = Operators(np.array([0.01039173]), 1.0, "uint8", 0)
    ends = (np.array([-(10**5)]), np.array([10**5]))
    stairs = staircase(operators, operators.slope, *ends, "uint8", 0)
    factors = operators.factors(-(10**5), 10**5)
    assert stairs is not None and factors is not None and len(factors) == 1
    assert is_met(stairs, 0, *(float(factor[0]) for factor in factors))
    stairs.above[0, 100] += change
    assert not is_met(stairs, 0, *(float(factor[0]) for factor in factors))


def test_other_staircases_are_left() -> None:
    """A clip within the range of the type, and a function that is not linear, have no factors."""
    ends = (np.array([-1000]), np.array([1000]))

    def clipped(sums: np.ndarray) -> np.ndarray:
        return np.clip(quantize(sums * 0.1, F32(1), np.uint8(50)), 50, 200)

    def curved(sums: np.ndarray) -> np.ndarray:
        return quantize(np.sqrt(np.maximum(sums, 0)), F32(1), np.uint8(0))

    for chain, slope, zero in [(clipped, 0.1, 50), (curved, 0.03, 0)]:
        stairs = staircase(chain, np.array([slope]), *ends, "uint8", zero)
        assert stairs is None or find_factors(stairs, *ends, zero) is None
