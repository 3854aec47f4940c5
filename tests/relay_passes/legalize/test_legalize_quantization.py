"""Generic code quantises as ONNX says: ties to even, saturating, for any input."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import ir, relax

from relay_passes.legalize.schedule_generic import schedule_leftovers
from tests.onnx_reference.arithmetic import quantize as reference
from tests.onnx_reference.arithmetic import quantized
from tests.relay_passes.graphs import MACHINE, TARGET, module
from tests.relay_passes.quantized import dequantize, legalize_quantization, outputs, quantize

op = relax.op
LIMITS = {"uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767)}


def quantizer(dtype: str) -> tvm.runtime.Module:
    """main(x [1024], scale [], zero point []), built once for each type."""
    if dtype not in _BUILT:
        mod = module(
            lambda x, s, z: op.quantize(x, s, z, axis=-1, out_dtype=dtype),
            ((1024,), "float32"),
            ((), "float32"),
            ((), dtype),
        )
        _BUILT[dtype] = relax.VirtualMachine(
            tvm.compile(legalize_quantization()(mod), target="llvm"), tvm.cpu()
        )["main"]
    return _BUILT[dtype]


_BUILT: dict[str, tvm.runtime.Module] = {}


@pytest.mark.parametrize("dtype", LIMITS)
def test_ties_and_saturation(dtype: str) -> None:
    """Every multiple of one half around the range and far beyond it."""
    low, high = LIMITS[dtype]
    zero = (low + high) // 3
    span = np.arange(2 * low - 4, 2 * high + 5) / 2 - zero
    if span.size > 2000:
        span = np.concatenate([span[:600], span[-600:], np.arange(-300, 300) / 2])
    extremes = [1e30, -1e30, np.inf, -np.inf, 2.0**31, -(2.0**31) - 512, 0.0, -0.0]
    x = np.concatenate([span, extremes]).astype(np.float32) * np.float32(0.25)
    mod = module(lambda x: quantize(x, 0.25, zero, dtype), (x.shape, "float32"))
    (result,) = outputs(mod, [x])
    np.testing.assert_array_equal(result, reference(x, 0.25, np.asarray(zero, dtype)))


def test_what_is_no_number_becomes_the_least_integer() -> None:
    x = np.asarray([np.nan, -np.nan, 1.0], np.float32)
    for dtype, zero in (("uint8", 3), ("int8", -3)):
        mod = module(lambda x, d=dtype, z=zero: quantize(x, 0.5, z, d), ((3,), "float32"))
        assert outputs(mod, [x])[0].tolist() == [LIMITS[dtype][0]] * 2 + [2 + zero]


@given(
    seed=st.integers(0, 2**32 - 1),
    exponent=st.integers(-30, 20),
    share=st.floats(0, 1),
    dtype=st.sampled_from(["uint8", "int8"]),
    ties=st.booleans(),
)
def test_random_scales_and_zero_points_bit_by_bit(
    seed: int, exponent: int, share: float, dtype: str, ties: bool
) -> None:
    """1024 values a case; half of them lie next to a tie."""
    rng = np.random.default_rng(seed)
    low, high = LIMITS[dtype]
    scale = np.float32(rng.uniform(1, 2) * 2.0**exponent)
    zero = np.asarray(low + round(share * (high - low)), dtype)
    steps = rng.uniform(low - high - 9, high - low + 9, 1024)
    if ties:
        steps = np.floor(steps) + 0.5
    x = (steps * float(scale)).astype(np.float32)
    x = np.nextafter(x, rng.choice([-np.inf, 0, np.inf], x.shape).astype(np.float32)) if ties else x
    arguments = (tvm.runtime.tensor(np.asarray(each)) for each in (x, scale, zero))
    np.testing.assert_array_equal(quantizer(dtype)(*arguments).numpy(), reference(x, scale, zero))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_scales_of_an_axis(axis: int, dtype: str) -> None:
    rng = np.random.default_rng(0)
    low, high = LIMITS[dtype]
    size = (6, 5, 7)[axis]
    scale = rng.uniform(0.01, 1, size).astype(np.float32)
    zero = rng.integers(low, high, size, np.dtype(dtype), endpoint=True)

    def body(x: relax.Expr) -> list[relax.Expr]:
        q = quantize(x, scale, zero, dtype, axis)
        return [q, dequantize(q, scale, zero, dtype, axis)]

    x = (rng.standard_normal((6, 5, 7)) * 50).astype(np.float32)
    q, real = outputs(module(body, (x.shape, "float32")), [x])
    np.testing.assert_array_equal(q, reference(x, scale, zero, axis))
    np.testing.assert_array_equal(real, quantized(q, scale, zero, axis).real())


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32"])
def test_dequantize(dtype: str) -> None:
    limits = np.iinfo(dtype)
    q = np.linspace(limits.min, limits.max, 999).astype(dtype)
    zero = 0 if dtype == "int32" else limits.max // 3
    mod = module(lambda q: dequantize(q, 0.0123, zero, dtype), (q.shape, dtype))
    wanted = quantized(q, 0.0123, np.asarray(zero, dtype)).real()
    np.testing.assert_array_equal(outputs(mod, [q])[0], wanted)


def test_float16() -> None:
    """float16 is widened and divided in f32; dequantising rounds once."""
    x = np.linspace(-40, 40, 400).astype(np.float16)
    scale, zero = relax.const(np.float32(0.25)), relax.const(np.uint8(3))

    def body(x: relax.Expr) -> list[relax.Expr]:
        q = op.quantize(x, scale, zero, out_dtype="uint8")
        return [q, op.dequantize(q, scale, zero, out_dtype="float16")]

    q, real = outputs(module(body, (x.shape, "float16")), [x])
    np.testing.assert_array_equal(q, reference(x.astype(np.float32), 0.25, np.uint8(3)))
    np.testing.assert_array_equal(real, quantized(q, 0.25, np.uint8(3)).real().astype(np.float16))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_round(dtype: str) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x = np.concatenate([np.arange(-9, 10) / 2, [2.0**14, 2.0**23 + 1, -(2.0**30), np.inf, 0.499]])
    with np.errstate(over="ignore"):
        x = x.astype(kind)
    (result,) = outputs(module(lambda x: op.round(x), (x.shape, dtype)), [x])
    np.testing.assert_array_equal(result, np.rint(x))
    assert np.signbit(result[np.flatnonzero(x == -0.5)]).all()


def test_rounding_an_integer_changes_nothing() -> None:
    x = np.arange(-3, 4, dtype=np.int32)
    (result,) = outputs(module(lambda x: op.negative(op.round(x)), (x.shape, "int32")), [x])
    np.testing.assert_array_equal(result, -x)


@pytest.mark.parametrize(
    ("instructions", "dtype"),
    [(("vdivps", "vrndscaleps"), "float32"), (("vcvtdq2ps", "vmulps"), "uint8")],
    ids=["quantize", "dequantize"],
)
def test_generic_schedules_vectorise_it(instructions: tuple[str, ...], dtype: str) -> None:
    move = quantize if dtype == "float32" else dequantize
    mod = legalize_quantization()(module(lambda x: move(x, 0.3, 7), ((64, 256), dtype)))
    with TARGET:
        mod = schedule_leftovers(MACHINE, [])(mod)
    functions = {g: f for g, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc)}
    (function,) = functions.values()
    kernel = function.with_attr("global_symbol", "kernel")
    text = tvm.compile(ir.IRModule({"kernel": kernel}), target=TARGET).mod.inspect_source("asm")
    for instruction in instructions:
        assert any(instruction in line and "zmm" in line for line in text.splitlines())
    assert "vgather" not in text
    assert "nearbyint" not in text
