"""Distances between results, and their tolerance."""

import math

import ml_dtypes
import numpy as np
import pytest

from tvm_hybrid.bench.compare import Tolerance, describe, distance, tolerance_for

F32 = np.float32
F16 = np.float16
BF16 = ml_dtypes.bfloat16


def test_equal_arrays_have_no_distance() -> None:
    array = np.array([1.0, np.nan, np.inf, -np.inf], F32)
    found = distance(array, array.copy())
    assert found.exact and found.max_abs == found.max_rel == found.max_rel_element == 0.0
    assert found.cosine == 1.0 and found.within(Tolerance(0.0))


def test_distances_of_a_small_difference() -> None:
    found = distance(np.array([1.0, 3.0], F32), np.array([2.0, 4.0], F32))
    assert found.max_abs == 1.0
    assert found.max_rel == 0.25
    assert found.max_rel_element == 0.5
    assert found.cosine == pytest.approx(14 / math.sqrt(10 * 20))
    assert not found.exact and found.within(Tolerance(0.25)) and not found.within(Tolerance(0.24))


@pytest.mark.parametrize(
    ("result", "reference"),
    [
        (np.zeros(3, F32), np.zeros(4, F32)),
        (np.zeros(3, F32), np.zeros(3, np.float64)),
        (np.array([np.nan], F32), np.array([0.0], F32)),
        (np.array([0.0], F32), np.array([np.nan], F32)),
        (np.array([np.inf], F32), np.array([-np.inf], F32)),
        (np.array([1e-30], F32), np.array([0.0], F32)),
        (np.zeros(3, BF16), np.zeros(3, F32)),
        (np.zeros(3, BF16), np.zeros(3, np.uint16)),
        (np.array([np.nan], BF16), np.array([0.0], BF16)),
        (np.array([1], np.int64), np.array([2], np.int64)),
        (np.array([True]), np.array([False])),
    ],
)
def test_what_no_tolerance_forgives(result: np.ndarray, reference: np.ndarray) -> None:
    assert not distance(result, reference).within(Tolerance(1e6))


def test_empty_and_zero_arrays_agree() -> None:
    assert distance(np.zeros((0, 3), F32), np.zeros((0, 3), F32)).within(Tolerance(0.0))
    assert distance(np.zeros(3, F32), np.zeros(3, F32)).cosine == 1.0


def test_tolerance_grows_with_the_sums() -> None:
    assert tolerance_for([]) == Tolerance(1e-5, 0)
    assert tolerance_for([1024] * 10).relative == pytest.approx(8 * 2**-24 * 320)


def test_random_float32_sums_stay_within_the_tolerance() -> None:
    """Random float32 products stay well inside the derived bound, compared with float64."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((64, 4096)), rng.standard_normal((4096, 64))
    a, b = a.astype(F32), b.astype(F32)
    sequential = np.zeros((64, 64), F32)
    for k in range(4096):
        sequential += np.outer(a[:, k], b[k])
    exact = (a.astype(np.float64) @ b.astype(np.float64)).astype(F32)
    found = distance(sequential, exact)
    assert found.within(tolerance_for([4096]))
    assert not found.exact


def test_bfloat16_is_a_float() -> None:
    found = distance(np.array([1.0, 3.0, np.nan], BF16), np.array([2.0, 4.0, np.nan], BF16))
    assert found.max_rel == 0.25 and not found.exact
    assert distance(np.array([1.0, np.nan], BF16), np.array([1.0, np.nan], BF16)).exact


@pytest.mark.parametrize("layers", [1, 4, 16])
def test_products_of_rounded_operands_stay_within_the_tolerance(layers: int) -> None:
    """A chain of random layers with operands rounded to bfloat16, and the tolerance is no more
    than twenty times what is needed."""
    rng = np.random.default_rng(layers)
    exact = rounded = rng.standard_normal((32, 256))
    for _ in range(layers):
        weight = rng.standard_normal((256, 256)) / 16
        exact = np.maximum(exact @ weight, 0) * math.sqrt(2)
        narrow = [array.astype(BF16).astype(np.float64) for array in (rounded, weight)]
        rounded = np.maximum(narrow[0] @ narrow[1], 0) * math.sqrt(2)
    tolerance = tolerance_for([256] * layers, rounded=layers).relative
    found = distance(rounded, exact)
    assert tolerance / 20 < found.max_rel <= tolerance


@pytest.mark.parametrize("layers", [1, 4, 16])
def test_steps_of_quantised_values_stay_within_the_tolerance(layers: int) -> None:
    """A chain of random layers whose values are rounded to 255 steps; in one of the two every tenth
    is rounded the other way, far more than ties are."""
    rng = np.random.default_rng(layers)
    one = other = rng.standard_normal((64, 256))
    for _ in range(layers):
        weight = rng.standard_normal((256, 256)) / 16
        step = (one.max() - one.min()) / 255
        flips = rng.choice([-1, 0, 1], other.shape, p=[0.05, 0.9, 0.05])
        one = np.rint(one / step) * step
        other = (np.rint(other / step) + flips) * step
        one, other = (np.maximum(value @ weight, 0) * math.sqrt(2) for value in (one, other))
    tolerance = tolerance_for([256] * layers, quantized=layers).relative
    found = distance(other, one)
    assert tolerance / 20 < found.max_rel <= tolerance


def test_random_float16_sums_stay_within_the_tolerance() -> None:
    """Float16 sums of few and of many products also stay within the derived bound."""
    rng = np.random.default_rng(0)
    for length in (16, 256, 4096):
        a, b = (rng.standard_normal(shape).astype(F16) for shape in ((64, length), (length, 64)))
        sequential = np.zeros((64, 64), F16)
        for k in range(length):
            sequential += np.outer(a[:, k], b[k])
        exact = (a.astype(np.float64) @ b.astype(np.float64)).astype(F16)
        tolerance = tolerance_for([], half_lengths=[length], halves=1)
        assert tolerance.relative / 50 < distance(sequential, exact).max_rel <= tolerance.relative


def test_8_bit_integers_count_in_steps() -> None:
    for dtype in (np.uint8, np.int8):
        found = distance(np.array([1, 3, 5], dtype), np.array([1, 5, 5], dtype))
        assert (found.max_abs, found.max_rel, found.exact) == (2.0, 2 / 255, False)
        assert found.within(Tolerance(0.0, 2)) and not found.within(Tolerance(1.0, 1))
        assert found.allowed(Tolerance(1.0, 1)) == 1 / 255
    assert [tolerance_for([], quantized=n).steps for n in (0, 1, 4, 62)] == [0, 1, 8, 31]
    # Quantised outputs differ by steps, float outputs by the value of those steps.
    assert tolerance_for([], quantized=62).relative == pytest.approx(4 / 255 * math.sqrt(62))
    assert Tolerance.given(0.01) == Tolerance(0.01, 2)


@pytest.mark.parametrize(
    ("result", "reference", "text"),
    [
        (np.array([1, 3], np.uint8), np.array([2, 3], np.uint8), "by 1 of 255 steps"),
        (np.array([1.0, 3.0], F32), np.array([1.0, 4.0], F32), "by 2.5e-01 of the largest value"),
        (np.array([1, 7]), np.array([1, 4]), "by 3, of results that have to be equal"),
        (np.zeros(3, F32), np.zeros(4, F32), "in shape, type, or where it is finite"),
    ],
)
def test_differences_are_described(result: np.ndarray, reference: np.ndarray, text: str) -> None:
    found = distance(result, reference)
    assert describe(found) == text and describe(found, "a reason") == f"{text}: a reason"
