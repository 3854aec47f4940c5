"""Integer products that quantise their inputs and results, to the bit, on every ISA."""

from __future__ import annotations

import re

import numpy as np
import pytest

from microkernels.isa import isa_named
from tests.onnx_reference.arithmetic import dynamic_quantize, quantize, quantized
from tests.tir_schedules.dynamic_regions import LENGTH
from tests.tir_schedules.integer_regions import (
    DTYPES,
    TYPES,
    config_for,
    every_isa,
    matmul_region,
    product,
    values,
)
from tests.tir_schedules.run_region import machine_for, run
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.product.matmul import MATMUL

pytestmark = pytest.mark.turns

F = "float32"


def awkward(scale: float, shape: tuple[int, ...]) -> np.ndarray:
    """Ties and their neighbours, saturating numbers, infinities."""
    rng = np.random.default_rng(5)
    ties = ((rng.integers(-300, 300, shape) + 0.5) * np.float32(scale)).astype(np.float32)
    ties[rng.random(shape) < 0.25] *= np.float32(1 + 2.0**-23)
    ties.flat[:4] = [np.inf, -np.inf, 3e38, -0.0]
    return ties


@pytest.mark.sampled
@every_isa
@pytest.mark.parametrize("a", DTYPES)
def test_the_kernel_quantises_a(isa: str, a: str) -> None:
    cases: list[tuple[float, int, int, int | str]] = [
        (0.0375, 3, 13, 0),
        (0.25, 0, 64, "input"),
        (3e-5, 101, 67, 2),
        (2.0**-90, 1, 5, 0),  # the code divides by this scale
    ]
    for scale, a_zero, k, w_zero in cases:
        for at_end in (False, True):
            region = matmul_region((5,), k, 19, a, "uint8", a_zero, w_zero, quantized=scale)
            arrays = [awkward(scale, (5, k)), *values(region)[1:]]
            result = run(region, arrays, isa, at_end=at_end)
            np.testing.assert_array_equal(result, product(region, arrays))


def test_tiles_of_dynamic_rows_read_staged_rows_by_their_place_alone() -> None:
    """A difference of row and block in an access would be computed in the innermost loop."""
    machine = machine_for("avx512_vnni")
    region = matmul_region((LENGTH,), 384, 96, "uint8", "int8", 128, quantized=0.05)
    kernel = MATMUL.build(region, MATMUL.default_config(region, machine), machine.isa)
    rows = re.findall(r'"int32", buffer\w*\[([^,]*),', kernel.script())
    assert any("+ 7" in row for row in rows) and not any("-" in row for row in rows)


@pytest.mark.sampled
@every_isa
def test_the_kernel_quantises_a_by_a_range(isa: str) -> None:
    region = matmul_region((3,), 37, 19, "uint8", "int8", "range", "input", quantized="range")
    config = config_for(region, isa, k_block=5)
    for scale, zero in [(0.0375, 0), (0.1, 255), (1e-38, 17), (1e30, 128)]:
        arrays = values(region)
        arrays[0] = awkward(scale, (3, 37))
        arrays[2] = np.array([scale, zero], F)
        for each in (None, config):
            result = run(region, arrays, isa, config=each)
            np.testing.assert_array_equal(result, product(region, arrays))


@pytest.mark.sampled
@every_isa
@pytest.mark.parametrize("least", [None, 0.25])
def test_the_kernel_finds_the_range_of_a(isa: str, least: float | None) -> None:
    """DynamicQuantizeLinear, the product, and the scales, on several threads too."""
    steps = (
        EpilogueOp("cast", (0,)),
        EpilogueOp("range", (), value=0),
        EpilogueOp("multiply", (3, 1)),
        EpilogueOp("multiply", (2, 4)),
    )
    for m, k, n, threads in [(3, 37, 19, 1), (2, 64, 33, 2)]:
        region = matmul_region(
            (m,),
            k,
            n,
            "uint8",
            "int8",
            "dynamic",
            "input",
            quantized="dynamic",
            operands=(Tensor((n,), F),),
            epilogue=steps,
            output=Tensor((m, n), F),
        )
        if least is not None:
            region = region.replace(attrs={**region.attrs, "least_scale": least})
        arrays = values(region)
        config = config_for(region, isa, threads_n=threads, m_block=2)
        x, rest = arrays[0], arrays[1:]
        for a, at_end in [(x, True), (np.abs(x), False), (-np.abs(x), True), (0 * x, False)]:
            _, scale, _ = dynamic_quantize(a, least)
            assert least is None or scale == least
            total = product(region, [a, *rest]).astype(np.float32)
            result = run(region, [a, *rest], isa, config=config, at_end=at_end)
            np.testing.assert_array_equal(result, total * (scale * rest[-1]))


def test_int8_values_are_not_quantised_by_a_range() -> None:
    for a_zero in ("range", "dynamic"):
        region = matmul_region((3,), 8, 19, "int8", "int8", a_zero, 0, quantized=a_zero)
        assert "a range of int8 values" in str(MATMUL.reject(region, isa_named("avx512")))


def requantizing(dtype: str) -> tuple[EpilogueOp, ...]:
    """acc -> quantize(acc * scales + dequantize(residual)); operands: f32 scales, the residual."""
    return (
        EpilogueOp("cast", (0,)),
        EpilogueOp("multiply", (3, 1)),
        EpilogueOp("constant", value=0.37),
        EpilogueOp("constant", value=12.0),
        EpilogueOp("dequantize", (2, 5, 6)),
        EpilogueOp("add", (4, 7)),
        EpilogueOp("constant", value=1.75),
        EpilogueOp("constant", value=-5.0 if dtype == "int8" else 101.0),
        EpilogueOp("quantize", (8, 9, 10), dtype=dtype),
    )


@pytest.mark.sampled
@every_isa
@pytest.mark.parametrize(("dtype", "residual"), TYPES)
def test_requantising_with_a_quantised_residual(isa: str, dtype: str, residual: str) -> None:
    """Every product is rounded: no FMA may join the scale with the residual's sum."""
    for m, k, n in [(7, 21, 47), (1, 4, 16)]:
        region = matmul_region(
            (m,),
            k,
            n,
            "int8",
            "int8",
            3,
            "input",
            operands=(Tensor((n,), F), Tensor((m, n), residual)),
            epilogue=requantizing(dtype),
            output=Tensor((m, n), dtype),
        )
        arrays = values(region)
        scales = np.abs(arrays[-2]) / np.float32(200)
        arrays[-2] = scales
        real = product(region, arrays).astype(np.float32) * scales
        real = real + quantized(arrays[-1], 0.37, np.array(12, residual)).real()
        wanted = quantize(real, 1.75, np.array(-5 if dtype == "int8" else 101, dtype))
        assert len(np.unique(wanted)) > 3  # not all results saturate
        np.testing.assert_array_equal(run(region, arrays, isa), wanted)


@every_isa
def test_an_int32_bias_and_scales_at_run_time(isa: str) -> None:
    """(acc + bias) * (scale of A's range * scales of columns) + f32 bias."""
    steps = (
        EpilogueOp("add", (0, 1), dtype="int32"),
        EpilogueOp("cast", (5,)),
        EpilogueOp("item", (2,), value=0),
        EpilogueOp("multiply", (7, 3)),
        EpilogueOp("multiply", (6, 8)),
        EpilogueOp("add", (9, 4)),
    )
    n = 37
    operands = (Tensor((n,), "int32"), Tensor((2,), F), Tensor((n,), F), Tensor((4, n), F))
    region = matmul_region(
        (4,), 31, n, "uint8", "int8", "range", 0, "range",
        operands=operands, epilogue=steps, output=Tensor((4, n), F),
    )  # fmt: skip
    arrays = values(region)
    bias, _, scales, residual = arrays[-4:]
    arrays[-3] = numbers = arrays[2]
    total = (product(region, arrays) + bias).astype(np.float32)
    wanted = total * (numbers[0] * scales) + residual
    np.testing.assert_array_equal(run(region, arrays, isa), wanted)


@pytest.mark.sampled
@every_isa
def test_a_long_epilogue_starts_from_the_same_integers(isa: str) -> None:
    """Epilogues that pass the tile through memory give the results that they give on integers."""
    steps = (
        EpilogueOp("cast", (0,)),
        EpilogueOp("constant", value=2.0**-12),
        EpilogueOp("multiply", (1, 2)),
        EpilogueOp("gelu", (3,)),
        EpilogueOp("constant", value=0.05),
        EpilogueOp("constant", value=128.0),
        EpilogueOp("quantize", (4, 5, 6), dtype="uint8"),
    )
    region = matmul_region(
        (7,), 40, 35, "uint8", "uint8", 120, 128, epilogue=steps, output=Tensor((7, 35), "uint8")
    )
    arrays = values(region)
    total = product(region, arrays).astype(np.int32)
    alone = Region(
        op="elementwise", inputs=(Tensor((7, 35), "int32"),), output=region.output, epilogue=steps
    )
    np.testing.assert_array_equal(run(region, arrays, isa), run(alone, [total], isa))
