"""Register tiles and blocks that tuning tries all differ and are legal."""

from __future__ import annotations

import math

import pytest

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from microkernels.registry import microkernel_named
from tir_schedules.core.blocking import balanced
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import template_for
from tir_schedules.product.tile_config import cuts, plan_of, product_kernels, register_tiles

KERNELS = product_kernels(isa_named("avx512"), "float32", "float32")


def test_cuts_are_the_sizes_that_make_different_numbers_of_pieces() -> None:
    assert cuts(14, 14) == [1, 2, 3, 4, 5, 7, 14]
    assert cuts(3, 8) == [1, 2, 3]
    assert [math.ceil(100 / size) for size in cuts(100, 9)] == [100, 50, 34, 25, 20, 17, 15, 13, 12]


def test_each_tile_comes_once_with_the_smallest_kernel_that_holds_it() -> None:
    tiles = list(register_tiles(KERNELS, 50, 20))
    sizes = [(rows, vectors) for _, rows, vectors in tiles]
    assert len(sizes) == len(set(sizes))
    for kernel, rows, vectors in tiles:
        holding = [k for k in KERNELS if rows <= k.mr and vectors <= k.vectors]
        assert kernel.mr * kernel.vectors == min(k.mr * k.vectors for k in holding)
        assert balanced(50, rows)[0].size == rows


def matmul(dtype: str, m: int, k: int, n: int) -> Region:
    weight = Tensor((k, n), dtype, True)
    return Region(
        op="matmul", inputs=(Tensor((m, k), dtype), weight), output=Tensor((m, n), "float32")
    )


def conv(size: int, channels: int, filters: int, kernel: int) -> Region:
    return Region(
        op="conv2d",
        inputs=(
            Tensor((1, size, size, channels), "float32"),
            Tensor((kernel, kernel, channels, filters), "float32", True),
        ),
        output=Tensor((1, size, size, filters), "float32"),
        attrs={"strides": (1, 1), "padding": (kernel // 2,) * 4, "dilation": (1, 1), "groups": 1},
    )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "region",
    [matmul("float32", 100, 300, 200), matmul("bfloat16", 1, 64, 17), conv(28, 64, 128, 3)],
    ids=lambda region: region.op,
)
def test_spaces_hold_many_legal_configurations(region: Region, threads: int) -> None:
    """Every configuration passes the check, which comes before any build."""
    machine = Machine("here", isa_named("avx512_bf16"), threads=threads)
    template = template_for(region.op)
    space = list(template.space(region, machine))
    assert len(space) == len(set(space)) > (5 if region.output.size == 17 else 200)
    for config in space:
        template.check(region, config, machine.isa)
        kernel = microkernel_named(config.kernel)
        assert config.rows <= kernel.mr and config.vectors <= kernel.vectors


# Columns that form full panels of a tile, with the vectors of these panels.
EVEN = {
    "avx512": {128: 4, 144: 3, 240: 3, 256: 4, 288: 3},
    "avx2": {144: 3, 176: 2, 208: 2, 240: 3, 272: 2, 288: 3, 304: 2},
}


@pytest.mark.parametrize("rows", [120, 480])
@pytest.mark.parametrize(
    ("isa", "cpu"),
    [
        *(("avx512", cpu) for cpu in ("icelake-server", "sapphirerapids", "graniterapids")),
        *(("avx2", cpu) for cpu in ("znver2", "znver3", "znver5", "alderlake")),
    ],
)
def test_the_default_has_panels_of_one_width(isa: str, cpu: str, rows: int) -> None:
    """The rows are a multiple of the rows of all high tiles, so only columns decide."""
    machine = Machine(cpu, isa_named(isa))
    for n, vectors in EVEN[isa].items():
        region = matmul("float32", rows, 512, n)
        plan = plan_of(region, template_for("matmul").default_config(region, machine))
        assert {*plan.panels.widths} == {vectors}, n


def test_a_core_of_one_product_a_cycle_keeps_the_highest_tile() -> None:
    """Zen 4 hides the cost of narrow panels: all tiles are within 1% there."""
    machine = Machine("znver4", isa_named("avx512"))
    for n in range(128, 321, 16):
        region = matmul("float32", 128, 512, n)
        assert template_for("matmul").default_config(region, machine).rows == 8
