"""Few rows of activations as integers of three bytes: values, rounding, what is not."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tests.stand_ins import running
from tests.tir_schedules.dynamic_regions import LENGTH, DynamicKernel
from tests.tir_schedules.product.test_weight_only_matmul import (
    arrays_of,
    check,
    check_dynamic,
    check_result,
    config_for,
    region_of,
)
from tests.tir_schedules.run_region import MCPU, machine_for, run
from tir_schedules.core.region import Region
from tir_schedules.product.narrow_weight import MOST_DIGIT_ROWS, MOST_ROWS_BY_VNNI
from tir_schedules.product.weight_only_config import by_digits
from tir_schedules.product.weight_only_matmul import WEIGHT_ONLY_MATMUL, dequantised

pytestmark = pytest.mark.turns

ROWS = range(1, MOST_DIGIT_ROWS + 1)
FORMATS = [
    (4, "uint8", 8.0, 32),
    (4, "int8", 0.0, 32),
    (4, "uint8", "blocks", 16),
    (4, "uint8", 7.5, 128),
    (2, "uint8", 1.0, 16),
    (2, "int8", 0.0, 64),
    (2, "int8", "blocks", 32),
]


MOST = {"avx2": MOST_DIGIT_ROWS, "avx512_vnni": MOST_ROWS_BY_VNNI}
every_isa = pytest.mark.parametrize(
    "isa", [pytest.param(isa, marks=pytest.mark.isa(isa)) for isa in MOST]
)
every_height = pytest.mark.parametrize(
    ("isa", "m"),
    [
        pytest.param(isa, m, marks=pytest.mark.isa(isa))
        for isa, most in MOST.items()
        for m in range(1, most + 1)
    ],
)


def name_of(region: Region, isa: str, **fields: int) -> str:
    config = config_for(region, isa, False, **fields)
    return WEIGHT_ONLY_MATMUL.kernel_name(region, config, machine_for(isa).isa)


@every_height
@pytest.mark.parametrize(("bits", "dtype", "zero", "block"), FORMATS, ids=str)
def test_formats(isa: str, m: int, bits: int, dtype: str, zero: float | str, block: int) -> None:
    for n in (1, 70):
        region = region_of((m,), 256, n, bits, block, dtype, zero)
        default = WEIGHT_ONLY_MATMUL.default_config(region, machine_for(isa))
        assert not default.staged
        assert name_of(region, isa, rows=m).endswith("+digits")
        check(region, isa)
        check(region, isa, config=config_for(region, isa, False, rows=m), at_end=False)


@every_isa
def test_scales_of_16_bits(isa: str) -> None:
    region = region_of((1,), 96, 70, zero=8.0, scales="float16")
    assert name_of(region, isa, rows=1).endswith("+digits")
    check(region, isa, config=config_for(region, isa, False, rows=1))


@every_isa
@pytest.mark.parametrize("share", ["threads_k", "threads_n"])
def test_threads_have_digits_of_their_own(isa: str, share: str) -> None:
    region = region_of((MOST[isa],), 256, 100, zero=8.0)
    config = config_for(region, isa, False, rows=MOST[isa], k_block=96, **{share: 2})
    check(region, isa, config=config, threads=2)


@every_isa
def test_sums_of_the_largest_products_fit(isa: str) -> None:
    """Every digit is -128 or 127, every element of the weight 15, all of one sign."""
    region = region_of((1,), 64, 9, zero=0.0)
    arrays = arrays_of(region)
    arrays[1] = np.full_like(arrays[1], 15)
    arrays[2] = np.ones_like(arrays[2])
    for digits in ((127, 127, 127), (-127, -128, -128), (127, -128, 127), (-64, 127, -128)):
        high, middle, low = digits
        arrays[0] = np.full((1, 64), (high * 256 + middle) * 256 + low, np.float32)
        arrays[0][0, 0] = 2.0**22  # the unit of both spans is 1, or 2 where others are above
        result = run(region, arrays, isa, config_for(region, isa, False, rows=1))
        exact = arrays[0].astype(np.float64) @ dequantised(region, arrays)
        np.testing.assert_allclose(result, exact, rtol=2**-21)


@every_height
@pytest.mark.parametrize(
    "value",
    [0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-40, 2.0**-104, 2.0**-105, -(2.0**23 - 1)],
)
def test_special_numbers(isa: str, value: float, m: int) -> None:
    """In one element, in a span, everywhere. What is not finite is so by the rules of f32."""
    region = region_of((m,), 96, 17, zero=8.0)
    arrays = arrays_of(region)
    arrays[1] |= 1  # no weight is 0, which infinity times is not a number
    config = config_for(region, isa, False, rows=m)
    assert name_of(region, isa, rows=m).endswith("+digits")
    for where in (np.s_[0, 40], np.s_[-1, 32:64], np.s_[:, :]):
        changed = [arrays[0].copy(), *arrays[1:]]
        changed[0][where] = value
        with np.errstate(over="ignore", invalid="ignore"):
            result = run(region, changed, isa, config)
            exact = changed[0].astype(np.float64) @ dequantised(region, changed)
        if np.isfinite(value) and np.abs(exact).max() < 3e38:
            check_result(region, changed, result)
        else:
            sure = ~np.isfinite(exact) | (
                np.abs(exact) < 3e38
            )  # others may be infinite by rounding
            for kind in (np.isnan, np.isposinf, np.isneginf):
                np.testing.assert_array_equal(kind(result)[sure], kind(exact)[sure])


@every_isa
def test_an_element_is_rounded_by_the_largest_of_its_span(isa: str) -> None:
    """|error| <= 2^-23 * the largest of the span * the sum of the span's weights, and what a sum
    of this many products may have besides."""
    region = region_of((1,), 64, 40, zero=8.0)
    arrays = arrays_of(region)
    arrays[0][0, 5] = 3e4
    result = run(region, arrays, isa, config_for(region, isa, False, rows=1))
    weight = dequantised(region, arrays)
    exact = arrays[0].astype(np.float64) @ weight
    eps, spans = 2.0**-23, np.abs(weight).reshape(2, 32, -1).sum(1)
    largest = np.abs(arrays[0].reshape(2, 32)).max(1)
    magnitudes = np.abs(arrays[0]).astype(np.float64) @ np.abs(weight)
    assert (np.abs(result - exact) <= eps * (largest @ spans + 4 * magnitudes)).all()
    small = np.abs(result - exact)[0] / np.abs(arrays[0][0, 32:]).max()
    assert small.max() > 0  # the bound is about something


@every_isa
@pytest.mark.parametrize("k", [33, 40, 100])
def test_spans_that_are_not_whole_are_decoded(isa: str, k: int) -> None:
    region = region_of((1,), k, 20)
    assert not name_of(region, isa, rows=1).endswith("+digits")
    check(region, isa, config=config_for(region, isa, False, rows=1))


@every_isa
def test_rows_are_counted_when_it_runs(isa: str) -> None:
    region = region_of((LENGTH,), 128, 100, zero=8.0)
    kernel = DynamicKernel(region, isa)
    said = WEIGHT_ONLY_MATMUL.at_run_time(region, kernel.config)
    rows = "1 to 2 rows" if isa == "avx2" else "1 row"
    assert said.startswith(f"{rows} of usual numbers: as integers of three")
    for length in (0, 1, 2, 3, 5):
        check_dynamic(kernel, {"length": length})
    known = region_of((2,), 128, 100, zero=8.0)
    arrays = arrays_of(known)
    arrays[0][1, 7] = np.inf
    arrays[1] |= 1
    with np.errstate(invalid="ignore"):
        result = kernel.run({"length": 2}, arrays)
    assert np.isinf(result[1]).all()
    check_result(region_of((1,), 128, 100, zero=8.0), [arrays[0][:1], *arrays[1:]], result[:1])


@pytest.mark.isa("avx2")
@pytest.mark.parametrize("m", ROWS)
def test_products_are_two_instructions_for_32_of_them(m: int) -> None:
    region = region_of((m,), 256, 768, zero=8.0)
    machine = machine_for("avx2")
    config = WEIGHT_ONLY_MATMUL.default_config(region, machine)
    assert WEIGHT_ONLY_MATMUL.kernel_name(region, config, machine.isa).endswith("+digits")
    function = WEIGHT_ONLY_MATMUL.build(region, config, machine.isa)
    module = running.compiled(function.with_attr("global_symbol", "kernel"), "avx2")
    assembly = module.mod.inspect_source("asm")
    span = 3 * 8 * config.rows  # digits of 32 steps of K, in fours, one vector of columns
    assert assembly.count("vpmaddubsw") == span
    assert assembly.count("vpaddw") == span - 3 * config.rows


@every_isa
def test_what_else_has_digits(isa: str) -> None:
    """A table of floats is not worth its look-ups where VNNI multiplies."""
    machine = machine_for(isa)
    for region, some in (
        (region_of((1,), 1024, 512, zero=8.0), True),
        (region_of((MOST[isa],), 1024, 512, zero=8.0), True),
        (region_of((MOST[isa] + 1,), 1024, 512, zero=8.0), False),
        (region_of((1,), 1024, 512, bits=8), False),
        (region_of((1,), 1000, 512), False),
        (region_of((LENGTH,), 1024, 512), True),
    ):
        config = WEIGHT_ONLY_MATMUL.default_config(region, machine)
        assert by_digits(region, config) == some
        assert config.digits == (some and isa != "avx2")


@pytest.mark.isa("avx512_vnni")
def test_vnni_multiplies_64_in_one_instruction() -> None:
    region = region_of((1,), 256, 768, zero=8.0)
    machine = machine_for("avx512_vnni")
    config = WEIGHT_ONLY_MATMUL.default_config(region, machine)
    name = WEIGHT_ONLY_MATMUL.kernel_name(region, config, machine.isa)
    assert name.startswith("avx512_f32") and name.endswith("+digits")
    function = WEIGHT_ONLY_MATMUL.build(region, config, machine.isa)
    target = tvm.target.Target({"kind": "llvm", "mcpu": MCPU["avx512_vnni"]})
    module = tvm.compile(function.with_attr("global_symbol", "kernel"), target=target)
    assembly = module.mod.inspect_source("asm")
    assert assembly.count("vpdpbusd") % (3 * 8) == 0 < assembly.count("vpdpbusd")
