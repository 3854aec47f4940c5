"""Quantising in registers: the reciprocal that replaces a division, and the code for both."""

from __future__ import annotations

import numpy as np
import pytest
import tvm.tirx.script.builder.ir as I
import tvm_ffi
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tvm import tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.base.arrays import RANGES
from microkernels.base.tvm_compat.tir import NO_ALIAS
from microkernels.vector.expressions import bind, parameter, ramp, splat
from tests.examples import examples
from tests.guard import guarded
from tests.onnx_reference.arithmetic import quantize, quantized
from tests.tir_schedules.run_region import ISAS, compiled, machine_for
from tir_schedules.epilogue.quantize_steps import (
    _reciprocal,
    dequantize_reference,
    emit_dequantize,
    emit_quantize,
    quantize_reference,
)

F32 = np.float32
ZERO_POINTS = {"uint8": (0, 1, 128, 255), "int8": (-128, -1, 0, 127)}
formats = st.sampled_from([(dtype, zero) for dtype in RANGES for zero in ZERO_POINTS[dtype]])
# Every f32 that may be a scale: subnormal, ordinary, huge.
scales = st.floats(0, 2.0**127, width=32, exclude_min=True).map(F32)
AWKWARD = [1e-45, 1e-38, 2.0**-126, 2.0**-66, 2.0**-60, 3e-20, 1 / 3, 0.1, 1.0, 255.0, 1e30, 1e38]


def neighbourhoods(scale: np.float32, steps: int = 8) -> np.ndarray:
    """f32 numbers around every threshold (n + 1/2) * scale, `steps` on each side, and far away."""
    with np.errstate(over="ignore"):
        thresholds = ((np.arange(-258, 258) + 0.5).astype(np.longdouble) * scale).astype(F32)
        found = [thresholds]
        up = down = thresholds
        for _ in range(steps):
            up, down = np.nextafter(up, F32(np.inf)), np.nextafter(down, F32(-np.inf))
            found += [up, down]
    far = [0, -0.0, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, -1e-45, 2.0**-126]
    return np.concatenate([*found, np.array(far, F32)])


def scattered(scale: np.float32, rng: np.random.Generator) -> np.ndarray:
    """Random f32 numbers, most of them within the range."""
    with np.errstate(over="ignore"):
        near = (rng.uniform(-270, 270, 4000) * np.float64(scale)).astype(F32)
    return np.concatenate([near, rng.integers(0, 2**32, 1000, np.uint32).view(F32)])


def by_reciprocal(x: np.ndarray, scale: np.float32, zero: int, dtype: str) -> np.ndarray | None:
    """The emitted code's result by the reciprocal, in numpy; None if the code divides."""
    parts = _reciprocal(float(scale), zero, dtype)
    if parts is None:
        return None
    low, high, reciprocal, rest = (F32(part) for part in parts)
    x = np.minimum(np.maximum(x, low), high)
    # A product of two f32 and its sum with a f32 fit a long double: one rounding, as with FMA.
    product = x.astype(np.longdouble) * np.longdouble(reciprocal)
    quotient = (product + (x * rest).astype(np.longdouble)).astype(F32)
    return (np.rint(quotient).astype(np.int64) + zero).astype(dtype)


@given(scales, formats, st.integers(0, 2**32 - 1))
@examples(300)
def test_the_reciprocal_gives_the_integers_of_the_division(
    scale: np.float32, kind: tuple[str, int], seed: int
) -> None:
    dtype, zero = kind
    x = np.concatenate([neighbourhoods(scale), scattered(scale, np.random.default_rng(seed))])
    x = x[~np.isnan(x)]
    result = by_reciprocal(x, scale, zero, dtype)
    assume(result is not None)
    np.testing.assert_array_equal(result, quantize(x, scale, np.array(zero, dtype)))


@pytest.mark.parametrize("dtype", RANGES)
@pytest.mark.parametrize("scale", AWKWARD)
def test_extreme_scales_divide_or_are_exact(scale: float, dtype: str) -> None:
    for zero in ZERO_POINTS[dtype]:
        x = neighbourhoods(F32(scale))
        result = by_reciprocal(x, F32(scale), zero, dtype)
        if result is not None:
            np.testing.assert_array_equal(result, quantize(x, scale, np.array(zero, dtype)))
        else:  # only scales too small or too large for the proof
            assert not 2.0**-60 < scale < 2.0**90


@given(st.floats(2.0**-60, 2.0**90, width=32), formats)
def test_ordinary_scales_need_no_division(scale: float, kind: tuple[str, int]) -> None:
    assert _reciprocal(scale, kind[1], kind[0]) is not None


@pytest.mark.parametrize("exponent", [-60, -7, 0, 5, 60])
def test_powers_of_two_need_one_product(exponent: int) -> None:
    parts = _reciprocal(2.0**exponent, 3, "uint8")
    assert parts is not None and parts[2:] == (2.0**-exponent, 0.0)


@given(scales, formats)
@example(F32(1e-45), ("uint8", 0))
def test_the_reference_is_quantize_linear(scale: np.float32, kind: tuple[str, int]) -> None:
    dtype, zero = kind
    x, zero_point = neighbourhoods(scale), np.array(zero, dtype)
    with np.errstate(over="ignore"):
        result = quantize_reference(dtype, x, np.asarray(scale), zero_point)
    np.testing.assert_array_equal(result, quantize(x, scale, zero_point))
    q = np.arange(*RANGES[dtype]).astype(dtype)
    with np.errstate(over="ignore"):
        real = quantized(q, scale, zero_point).real()
        np.testing.assert_array_equal(dequantize_reference(q, np.asarray(scale), zero_point), real)


def kernel_of(
    isa: str, size: int, dtype: str, scale: float | None, zero: int | None
) -> tvm_ffi.Function:
    """x -> q by `emit_quantize`, in vectors; numbers that are None come from a parameter f32[2]."""
    lanes = machine_for(isa).isa.f32_lanes
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("quantize")
        I.func_attr(NO_ALIAS)
        x = parameter("X", (size,), "float32")
        numbers = parameter("numbers", (2,), "float32")
        q, back = parameter("Q", (size,), dtype), parameter("back", (size,), "float32")
        with I.serial(size // lanes) as vector, I.sblock("vector"):
            I.reads()
            I.writes()
            index = [ramp(vector * lanes, lanes)]
            s = scale if scale is not None else splat(numbers[tirx.const(0, "int32")], lanes)
            z = zero if zero is not None else splat(numbers[tirx.const(1, "int32")], lanes)
            wide = bind(emit_quantize(bind(x[tuple(index)]), s, z, dtype))
            I.buffer_store(q, wide.astype(f"{dtype}x{lanes}" if lanes > 1 else dtype), index)
            I.buffer_store(back, emit_dequantize(wide, s, z), index)
    return compiled(builder.get(), isa)


def check_kernel(
    kernel: tvm_ffi.Function, x: np.ndarray, scale: float, zero: int, dtype: str
) -> None:
    """Quantising and dequantising agree with the operators."""
    q, back = guarded(np.zeros(x.shape, dtype)), guarded(np.zeros(x.shape, F32))
    kernel(guarded(x), guarded(np.array([scale, zero], F32)), q, back)
    wanted = quantize(x, scale, np.array(zero, dtype))
    np.testing.assert_array_equal(q, wanted)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(back, quantized(wanted, scale, np.array(zero, dtype)).real())


def whole_vectors(x: np.ndarray) -> np.ndarray:
    return np.resize(x, -(-x.size // 16) * 16)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", RANGES)
def test_code_for_known_numbers(isa: str, dtype: str) -> None:
    for scale, zero in zip(AWKWARD, 3 * ZERO_POINTS[dtype], strict=True):
        scale = float(F32(scale))
        x = whole_vectors(neighbourhoods(F32(scale), steps=2))
        check_kernel(kernel_of(isa, x.size, dtype, scale, zero), x, scale, zero, dtype)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", RANGES)
def test_code_for_numbers_at_run_time(isa: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    some = [float(F32(2.0**exponent)) for exponent in rng.uniform(-120, 120, 60)]
    x = whole_vectors(neighbourhoods(F32(1), steps=2))
    both = kernel_of(isa, x.size, dtype, None, None)
    one = kernel_of(isa, x.size, dtype, None, 7)
    for number, scale in enumerate([*AWKWARD, *some]):
        x = whole_vectors(neighbourhoods(F32(scale), steps=2))
        check_kernel(both, x, scale, ZERO_POINTS[dtype][number % 4], dtype)
        check_kernel(one, x, scale, 7, dtype)


@pytest.mark.parametrize("isa", ISAS)
def test_nan_becomes_a_number_of_the_type(isa: str) -> None:
    """ONNX does not define it; a value within the range is stored."""
    x = np.full(16, np.nan, F32)
    for scale in (0.1, None):
        q, back = guarded(np.full(16, 99, np.uint8)), guarded(np.zeros(16, F32))
        kernel_of(isa, 16, "uint8", scale, 3)(x, np.array([0.1, 3], F32), q, back)
        np.testing.assert_array_equal(back, quantized(q, 0.1, np.uint8(3)).real())
