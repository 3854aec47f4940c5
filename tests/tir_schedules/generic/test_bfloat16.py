"""bfloat16 in generic schedules: exact conversions beside functions that vectorise."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

from tests.tir_schedules.run_generic import lowered, run_module, scheduled

BF16 = np.dtype(ml_dtypes.bfloat16)


def run(build: Callable[..., relax.Expr], array: np.ndarray) -> np.ndarray:
    """The operators' result for one input, by generic schedules on this machine."""
    mod, names, _ = scheduled(lowered(build, [(array.shape, str(array.dtype))]))
    assert names and "generic_serial" not in names
    return run_module(mod, [array])[0]


def awkward() -> np.ndarray:
    """f32 [77, 13]: every kind of value, half of them halfway between two bfloat16 numbers."""
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 1 << 32, 1001, dtype=np.uint32)
    bits[::2] = (bits[::2] & 0xFFFF0000) | 0x8000
    special = np.array([0x7F800000, 0xFF800000, 0x7F800001, 0x7FFFFFFF, 0x80000000], np.uint32)
    bits[-5:] = special
    return bits.view(np.float32).reshape(77, 13)


def same_bits(result: np.ndarray, wanted: np.ndarray) -> None:
    """Equal to the bit, except that any NaN equals any other."""
    nan = np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(result.astype(np.float32)), nan)
    np.testing.assert_array_equal(result.view(np.uint16)[~nan], wanted.view(np.uint16)[~nan])


@pytest.mark.parametrize("columns", [13, 11])
def test_rounds_to_nearest_even_and_keeps_nan(columns: int) -> None:
    values = np.ascontiguousarray(awkward()[:, :columns])

    def body(x: relax.Expr) -> relax.Expr:
        return relax.op.astype(relax.op.permute_dims(x, [1, 0]), "bfloat16")

    with np.errstate(invalid="ignore"):
        same_bits(run(body, values), np.ascontiguousarray(values.T).astype(BF16))


def test_widens_exactly() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(BF16)
    result = run(lambda x: relax.op.negative(relax.op.astype(x, "float32")), every)
    np.testing.assert_array_equal(result, -every.astype(np.float32))


def test_computes_functions_in_f32_between_conversions() -> None:
    x = np.random.default_rng(0).standard_normal((5, 37)).astype(BF16)

    def body(x: relax.Expr) -> relax.Expr:
        wide = relax.op.astype(x, "float32")
        return relax.op.astype(relax.op.exp(relax.op.add(wide, wide)), "bfloat16")

    wanted = np.exp(2 * x.astype(np.float64))
    # One rounding to 8 bits; the error of exp in f32 moves it over a tie by less than 2**-20.
    error = np.abs(run(body, x).astype(np.float64) - wanted)
    assert (error <= (2.0**-8 + 2.0**-20) * wanted).all()


@pytest.mark.parametrize(
    ("build", "pick"),
    [
        (lambda x: relax.op.strided_slice(x, [1], [1], [74], [3]), lambda x: x[:, 1:74:3]),
        (lambda x: relax.op.flip(x, 1), lambda x: x[:, ::-1]),
        (lambda x: relax.op.permute_dims(relax.op.reshape(x, (3, 37, 2)), [0, 2, 1]),
         lambda x: x.reshape(3, 37, 2).transpose(0, 2, 1)),
        (lambda x: relax.op.max(relax.op.reshape(x, (3, 37, 2)), 2),
         lambda x: x.astype(np.float32).reshape(3, 37, 2).max(2).astype(BF16)),
    ],
    ids=["slice", "flip", "narrow transpose", "pairs"],
)  # fmt: skip
def test_reads_strided_elements(
    build: Callable[[relax.Expr], relax.Expr], pick: Callable[[np.ndarray], np.ndarray]
) -> None:
    x = np.random.default_rng(2).standard_normal((3, 74)).astype(BF16)
    same_bits(run(build, x), np.ascontiguousarray(pick(x)))


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (lambda x: relax.op.broadcast_to(x, (5, 77)), lambda x: np.tile(x, (1, 77))),
        (lambda x: relax.op.broadcast_to(relax.op.negative(x), (5, 77)),
         lambda x: np.tile(-x, (1, 77))),
        (lambda x: relax.op.astype(relax.op.greater(x, x), "bfloat16"), np.zeros_like),
    ],
    ids=["element", "result", "constant"],
)  # fmt: skip
def test_writes_one_value_to_all_lanes(
    build: Callable[[relax.Expr], relax.Expr], wanted: Callable[[np.ndarray], np.ndarray]
) -> None:
    x = np.random.default_rng(4).standard_normal((5, 1)).astype(BF16)
    x = x if wanted is not np.zeros_like else np.tile(x, (1, 77))
    same_bits(run(build, x), wanted(x))


def test_float16_is_rounded_on_its_way_to_float32() -> None:
    """float16 passes through bfloat16, whose bits the cast to float32 reads."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)

    def body(x: relax.Expr) -> relax.Expr:
        return relax.op.negative(relax.op.astype(relax.op.astype(x, "bfloat16"), "float32"))

    with np.errstate(invalid="ignore"):
        wanted = -halves.astype(BF16).astype(np.float32)
    np.testing.assert_array_equal(run(body, halves), wanted)


def test_what_is_computed_in_bfloat16_is_widened() -> None:
    """TVM computes it in f32, so there are no bfloat16 bits to read."""
    x = np.random.default_rng(1).standard_normal((5, 37)).astype(BF16)

    def body(x: relax.Expr) -> relax.Expr:
        largest = relax.op.maximum(x, relax.op.negative(x))
        chosen = relax.op.where(relax.op.greater(x, largest), x, relax.op.abs(largest))
        return relax.op.negative(relax.op.astype(chosen, "float32"))

    np.testing.assert_array_equal(run(body, x), -np.abs(x.astype(np.float32)))
