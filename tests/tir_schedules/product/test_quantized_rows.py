"""Rows quantised to int8 by blocks, times weights of few bits: the integers exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from microkernels.base.errors import ConfigError
from microkernels.isa import isa_named
from microkernels.microkernel import Microkernel
from microkernels.registry import microkernel_named
from tests.tir_schedules.dynamic_regions import LENGTH, DynamicKernel, at_sizes
from tests.tir_schedules.run_region import bias_relu, expected, machine_for, run
from tir_schedules.core.region import Region, Tensor
from tir_schedules.product.quantized_rows import kernels
from tir_schedules.product.weight_only_config import WeightOnlyConfig
from tir_schedules.product.weight_only_matmul import WEIGHT_ONLY_MATMUL, dequantised

from .test_weight_only_matmul import arrays_of, region_of

ISAS = ["avx2_vnni", "avx512_vnni"]
FORMATS = [
    (4, "uint8", 8.0),
    (4, "int8", 0.0),
    (4, "uint8", "blocks"),
    (4, "int8", "blocks"),
    (4, "uint8", 8.25),
    (2, "int8", 0.0),
    (2, "uint8", 1.0),
]


def quantized(*args: Any, **fields: Any) -> Region:
    """A region of `region_of` whose activations may be quantised."""
    region = region_of(*args, **fields)
    return region.replace(attrs={**region.attrs, "quantized": "int8"})


def on_bytes(
    region: Region, isa: str, kernel: Microkernel | None = None, **fields: int
) -> WeightOnlyConfig:
    """A configuration of a kernel of bytes; of the first one if None."""
    machine = machine_for(isa)
    kernel = kernel or kernels(machine.isa)[0]
    default = WEIGHT_ONLY_MATMUL.default_config(region, machine).to_dict()
    chosen = {"kernel": kernel.name, "rows": 3, "vectors": 2, "threads_k": 1, "staged": True}
    return WeightOnlyConfig(**{**default, **chosen, **fields})


def quantised_rows(a: np.ndarray, block: int) -> np.ndarray:
    """What A is multiplied as, in float64: integers times the f32 unit of their block."""
    blocks = a.astype(np.float32).reshape(*a.shape[:-1], -1, block)
    largest = np.abs(blocks).max(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(largest >= 2.0**-100, np.float32(127) / largest, np.float32(0))
    integers = np.rint(blocks * inverse)
    assert (np.abs(integers) <= 127).all()
    unit = largest * np.float32(1 / 127)
    return (integers * unit.astype(np.float64)).reshape(a.shape)


def check(region: Region, arrays: list[np.ndarray], result: np.ndarray) -> None:
    """Compares with the same quantised arithmetic in float64.

    A block's sum is an exact integer, which is rounded when it becomes f32 and when it is scaled
    twice; then as many sums as there are blocks. The zero points' terms are rounded likewise.
    """
    block, k = region.integer("block"), region.inputs[0].shape[-1]
    rounded = [quantised_rows(arrays[0], block), *arrays[1:]]
    wanted = expected(region, rounded)
    a, w = np.abs(rounded[0]), np.abs(dequantised(region, arrays[: len(region.inputs)]))
    zero = 2.0 ** region.integer("bits") * np.abs(arrays[2]).max()
    magnitudes = a @ w + a.sum(-1, keepdims=True) * zero
    eps = np.finfo(np.float32).eps
    bound = (2 * k / block + 6) * eps * magnitudes + 4 * eps * np.abs(wanted)
    assert (np.abs(result - wanted) <= bound).all()
    # Coarser numbers than those of the block would be off by far more than the tolerance.
    assert np.median(bound) < 1e-4 * np.abs(magnitudes).max()


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("bits", "dtype", "zero"), FORMATS, ids=str)
def test_formats_and_tails(isa: str, bits: int, dtype: str, zero: float | str) -> None:
    for m, k, n, block in [(5, 96, 35, 32), (7, 128, 48, 64), (6, 48, 17, 16)]:
        region = quantized((m,), k, n, bits, block, dtype, zero)
        arrays = arrays_of(region)
        for k_block in (8, k):
            config = on_bytes(region, isa, k_block=k_block, m_block=4)
            check(region, arrays, run(region, arrays, isa, config, at_end=k_block == k))


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("bits", "dtype", "zero"), FORMATS, ids=str)
def test_few_rows_read_the_packed_weight(
    isa: str, bits: int, dtype: str, zero: float | str
) -> None:
    for m, k, n, block in [(1, 96, 35, 32), (2, 128, 48, 64), (3, 48, 17, 16), (4, 480, 65, 240)]:
        region = quantized((m,), k, n, bits, block, dtype, zero)
        arrays = arrays_of(region)
        for rows, k_block in ((m, k), (1, 8)):
            config = on_bytes(region, isa, rows=rows, k_block=k_block, staged=False)
            check(region, arrays, run(region, arrays, isa, config, at_end=k_block == k))


@pytest.mark.parametrize("isa", ISAS)
def test_scales_of_16_bits(isa: str) -> None:
    for m, staged in ((2, False), (5, True)):
        region = quantized((m,), 96, 35, zero="blocks", scales="float16")
        arrays = arrays_of(region)
        check(region, arrays, run(region, arrays, isa, on_bytes(region, isa, staged=staged)))


@pytest.mark.parametrize("isa", ISAS)
def test_every_integer_is_exact(isa: str) -> None:
    """With units and scales of 1, sums below 2^24 are the integers themselves."""
    region = quantized((15,), 256, 100, zero=8.0)
    arrays = arrays_of(region)
    integers = np.random.default_rng(3).integers(-127, 128, arrays[0].shape)
    integers[:, ::32] = 127
    arrays[0], arrays[2] = integers.astype(np.float32), np.ones_like(arrays[2])
    wanted = integers @ ((arrays[1] & 15).astype(np.int64) - 8)
    for kernel in kernels(isa_named(isa)):
        config = on_bytes(region, isa, kernel, rows=kernel.mr, vectors=kernel.vectors)
        np.testing.assert_array_equal(run(region, arrays, isa, config), wanted)
    few = quantized((4,), 256, 100, zero=8.0)
    result = run(few, [arrays[0][:4], *arrays[1:]], isa, on_bytes(few, isa, staged=False))
    np.testing.assert_array_equal(result, wanted[:4])


@pytest.mark.parametrize("isa", ISAS)
def test_rows_of_zeros_tiny_numbers_and_numbers_that_are_not_finite(isa: str) -> None:
    region = quantized((6,), 64, 20, zero=8.0)
    arrays = arrays_of(region)
    a = arrays[0]
    a[0] = 0
    a[1] = 2.0**-140
    a[2, 40], a[3, 3], a[4, 7] = np.nan, np.inf, -np.inf
    known = quantized((1,), 64, 20, zero=8.0)
    with np.errstate(invalid="ignore"):
        result = run(region, arrays, isa, on_bytes(region, isa))
    assert (result[:2] == 0).all()
    assert not np.isfinite(result[2:5]).any() and np.isnan(result[2]).all()
    kept = [a[5:], *arrays[1:]]
    check(known, kept, result[5:])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("height", [4, 6])
def test_dynamic_rows(isa: str, threads: int, height: int) -> None:
    """Few rows of a thread, less than a tile has, read the packed weight, more staged panels."""
    bias: dict[str, Any] = {"operands": (Tensor((70,), "float32"),), "epilogue": bias_relu()}
    region = quantized((LENGTH,), 96, 70, zero="blocks", **bias)
    tallest = max(kernels(isa_named(isa)), key=lambda kernel: kernel.mr)
    config = on_bytes(region, isa, tallest, rows=height, m_block=8, k_block=16, threads_m=threads)
    kernel = DynamicKernel(region, isa, threads, config)
    for length in (1, 2, 3, 4, 5, 11, 23):
        known = at_sizes(region, {"length": length})
        arrays = arrays_of(known)
        result = kernel.run({"length": length}, arrays)
        check(known, arrays, result)


def test_few_dynamic_rows_beside_low_tiles() -> None:
    """Of tiles of four rows, three are few; what is staged is quantised for any number of rows."""
    region, isa = quantized((LENGTH,), 96, 70, zero=8.0), "avx512_vnni"
    config = on_bytes(region, isa, rows=4, m_block=16)
    kernel = DynamicKernel(region, isa, 1, config)
    for length in (1, 3, 4, 9):
        known = at_sizes(region, {"length": length})
        arrays = arrays_of(known)
        check(known, arrays, kernel.run({"length": length}, arrays))


def test_threads_and_leading_dimensions() -> None:
    region = quantized((2, 25), 128, 100, zero=8.0)
    arrays = arrays_of(region)
    for grid in ((2, 1), (1, 3)):
        config = on_bytes(region, ISAS[1], threads_m=grid[0], threads_n=grid[1])
        check(region, arrays, run(region, arrays, ISAS[1], config, threads=3))


def test_rows_are_quantised_where_a_region_allows_it() -> None:
    for isa, named in (("avx512_vnni", True), ("avx2_vnni", True), ("avx512", False)):
        machine = machine_for(isa)
        for region, allowed in (
            (quantized((128,), 1024, 1024), named),
            (quantized((LENGTH,), 1024, 1024), named),
            (quantized((4,), 1024, 1024), named),
            (quantized((1,), 1024, 1024), named),
            (region_of((1,), 1024, 1024), False),
            (region_of((128,), 1024, 1024), False),
            (quantized((128,), 1024, 1024, bits=8), False),
            (quantized((128,), 1024, 1024, block=512), False),
            (quantized((128,), 1000, 1024), False),
        ):
            config = WEIGHT_ONLY_MATMUL.default_config(region, machine)
            found = microkernel_named(config.kernel).a_dtype == "int8"
            assert found == allowed, (isa, region.key)
            name = WEIGHT_ONLY_MATMUL.kernel_name(region, config, machine.isa)
            assert ("s8u8s32" in name) == allowed
            if found and not region.is_dynamic:
                assert config.staged == (region.inputs[0].shape[0] > 4)


def test_configurations_that_are_refused() -> None:
    region, isa = quantized((50,), 64, 100), isa_named("avx512_vnni")
    config = on_bytes(region, "avx512_vnni")
    assert WEIGHT_ONLY_MATMUL.check(region, config, isa).name == config.kernel
    with pytest.raises(ConfigError, match="cannot be quantised"):
        WEIGHT_ONLY_MATMUL.check(region_of((50,), 64, 100), config, isa)
    for field, value in (("staged", False), ("threads_k", 2)):
        changed = WeightOnlyConfig(**{**config.to_dict(), field: value})
        with pytest.raises(ConfigError, match="staged=True and threads_k=1"):
            WEIGHT_ONLY_MATMUL.check(region, changed, isa)
