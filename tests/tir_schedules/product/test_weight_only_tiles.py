"""Weights of few bits on AMX tiles, if operands may be rounded to bfloat16."""

from __future__ import annotations

import numpy as np
import pytest

from microkernels.base.errors import ConfigError
from microkernels.isa import isa_named
from microkernels.registry import microkernel_named
from tests.amx_emulator import emulator
from tests.tir_schedules.run_region import bias_relu, machine_for, run
from tir_schedules.core.region import Region, Tensor
from tir_schedules.cost.amx_cost import why_vectors
from tir_schedules.product.weight_only_config import WeightOnlyConfig, weight_format
from tir_schedules.product.weight_only_matmul import WEIGHT_ONLY_MATMUL
from tvm_hybrid.runtime.feeds import BFLOAT16

from .test_weight_only_matmul import arrays_of, region_of

ROUNDED = {"rounded": "bfloat16"}


def rounded_region(*arguments: object, **fields: object) -> Region:
    region = region_of(*arguments, **fields)  # type: ignore[arg-type]
    return region.replace(attrs={**region.attrs, **ROUNDED})


def on_tiles(region: Region, block: str = "32x32", **fields: int) -> WeightOnlyConfig:
    kernel = microkernel_named(f"amx_bf16_{block}")
    m, n, k = int(np.prod(region.inputs[0].shape[:-1])), *region.inputs[1].shape[::-1]
    numbers = {
        "kernel": kernel.name,
        "rows": min(kernel.mr, m),
        "vectors": min(kernel.vectors, -(-n // 16)),
        "m_block": m,
        "k_block": kernel.steps(k),
        "staged": True,
    }
    return WeightOnlyConfig(**{**numbers, **fields})


def rounded_operands(region: Region, arrays: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """A and the weight as bfloat16, the weight decoded in f32 as in the kernel; float64."""
    weight = weight_format(region, 16)
    values = weight.values(arrays[1]).astype(np.float32)
    scale, *zeros = (
        np.repeat(weight.per_block(array), weight.block, 0)[: weight.rows]
        for array in arrays[2 : len(region.inputs)]
    )
    values = (values - zeros[0] if zeros else values) * scale
    k = region.inputs[0].shape[-1]
    return (
        arrays[0].astype(BFLOAT16).astype(np.float64),
        values[:k].astype(BFLOAT16).astype(np.float64),
    )


def check(region: Region, config: WeightOnlyConfig, threads: int = 1, at_end: bool = True) -> None:
    """Products of bfloat16 are exact in f32; K sums round by 2**-24 of at most |A| |W| each,
    in order and between the two chains of a tile product."""
    arrays = arrays_of(region)
    emulator.reset()
    result = run(region, arrays, "amx", config, threads=threads, at_end=at_end)
    executed = emulator.counts()
    assert executed is None or executed["tdpbf16ps"] > 0
    a, w = rounded_operands(region, arrays)
    wanted = a @ w
    bound = (region.inputs[0].shape[-1] + 2) * 2.0**-23 * (np.abs(a) @ np.abs(w))
    if region.epilogue:
        wanted = np.maximum(wanted + arrays[-1], 0)
        bound = bound + 2.0**-22 * np.abs(wanted)
    assert (np.abs(result - wanted) <= bound).all()


FORMATS = [
    (2, "uint8", 2.0),
    (4, "uint8", "blocks"),
    (4, "int8", 0.0),
    (8, "uint8", 128.0),
    (8, "uint8", "blocks"),
    (8, "int8", 0.0),
]


@pytest.mark.isa("amx")
@pytest.mark.parametrize(("bits", "dtype", "zero"), FORMATS, ids=str)
def test_formats(bits: int, dtype: str, zero: float | str) -> None:
    for m, k, n, block in [(33, 96, 35, 32), (17, 50, 48, 50)]:
        region = rounded_region((m,), k, n, bits, block, dtype, zero)
        check(region, on_tiles(region, "32x32" if m == 33 else "16x64"), at_end=m == 33)


@pytest.mark.isa("amx")
def test_pieces_of_k_padding_and_threads() -> None:
    """Quantisation blocks of 64, blocks of 32 steps of K; a short last block; padded rows of A."""
    region = rounded_region(
        (2, 25), 200, 70, 4, 64, "uint8", 8.0, rows=256,
        operands=(Tensor((70,), "float32"),), epilogue=bias_relu(),
    )  # fmt: skip
    check(region, on_tiles(region, k_block=32, m_block=32))
    check(region, on_tiles(region, threads_m=2, threads_n=2), threads=4)


@pytest.mark.isa("amx")
def test_a_tile_product_takes_the_place_of_512_multiply_adds() -> None:
    """f32 vectors need an instruction of 16 lanes per row, step of K and vector of columns."""
    region = rounded_region((128,), 256, 64, 4, 32, "uint8", 8.0)
    check(region, on_tiles(region))
    executed = emulator.counts()
    if executed is not None:
        products, vectors = executed["tdpbf16ps"], 128 * 256 * 64 // 16
        assert products == (128 // 16) * (64 // 16) * (256 // 32) == vectors // 512


def test_many_rows_choose_tiles_and_few_do_not() -> None:
    machine = machine_for("amx")
    for m, tiles in ((128, True), (1, False)):
        region = rounded_region((m,), 1024, 1024, 4, 32, "uint8", 8.0)
        config = WEIGHT_ONLY_MATMUL.default_config(region, machine)
        assert microkernel_named(config.kernel).by_tiles == tiles
        reason = why_vectors(region, config, machine)
        assert reason == "" if tiles else "of AMX tiles" in reason


def test_nothing_is_rounded_unasked() -> None:
    region, isa = region_of((128,), 256, 64), isa_named("amx")
    assert not microkernel_named(
        WEIGHT_ONLY_MATMUL.default_config(region, machine_for("amx")).kernel
    ).by_tiles
    with pytest.raises(ConfigError, match="is not rounded"):
        WEIGHT_ONLY_MATMUL.check(region, on_tiles(region), isa)
    rounded = rounded_region((128,), 256, 64)
    with pytest.raises(ConfigError, match="staged=True"):
        WEIGHT_ONLY_MATMUL.check(rounded, on_tiles(rounded, staged=False), isa)
