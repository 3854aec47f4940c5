"""Products of one or two rows read several panels of a weight at once."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import pytest

from microkernels.isa import isa_named
from microkernels.registry import microkernel_named
from tests.tir_schedules.assembly_loops import assembly_of, innermost_loops
from tests.tir_schedules.dynamic_regions import LENGTH
from tests.tir_schedules.product.test_matmul import check, matmul_region
from tests.tir_schedules.run_region import bias_relu, expected, machine_for, random_inputs, run
from tir_schedules.core.blocking import Group
from tir_schedules.core.region import Tensor
from tir_schedules.product.few_rows import SIDE_BY_SIDE, streams
from tir_schedules.product.matmul import MATMUL, MatmulConfig, estimated_cycles
from tir_schedules.product.tile_config import plan_of


def config_of(kernel: str, m: int, threads_n: int = 1, threads_k: int = 1) -> MatmulConfig:
    tile = microkernel_named(kernel)
    return MatmulConfig(
        kernel=kernel,
        rows=min(m, tile.mr),
        vectors=tile.vectors,
        m_block=m,
        k_block=1 << 12,
        threads_n=threads_n,
        threads_k=threads_k,
    )


@pytest.mark.parametrize(
    ("kernel", "rows", "panels", "most"),
    [
        ("avx2_f32_4x24", 1, 100, 5),
        ("avx2_f32_6x16", 1, 100, 7),
        ("avx2_f32_6x16", 2, 100, 3),
        ("avx2_f32_6x16", 1, 3, 3),
        ("avx2_f32_1x120", 1, 100, 1),
        ("avx512_f32_8x48", 1, 100, 5),
        ("avx512_f32_6x64", 1, 100, 3),  # accumulators of a fourth panel would be on the heap
        ("avx512_f32_14x32", 1, 100, 7),
    ],
)
def test_streams_fill_the_registers(kernel: str, rows: int, panels: int, most: int) -> None:
    tile = microkernel_named(kernel)
    assert streams(tile, rows, tile.vectors, panels)[0] == most


@pytest.mark.parametrize("rows", [1, 2])
def test_the_default_reads_streams_on_avx2(rows: int) -> None:
    region, isa = matmul_region((rows,), 384, 1536), isa_named("avx2")
    config = MATMUL.default_config(region, machine_for("avx2"))
    width = config.vectors
    side, _ = streams(microkernel_named(config.kernel), rows, width, 1536 // 8 // width)
    assert side > 1
    loops = innermost_loops(assembly_of(MATMUL.build(region, config, isa), isa))
    products = max(sum("vfmadd" in line for line in loop) for loop in loops)
    assert products % (rows * side * width) == 0 and products
    stores = [
        line for loop in loops for line in loop if re.match(r"\s+vmov\w+\s+%ymm\d+, .*rsp", line)
    ]
    assert not stores, "accumulators stay in registers"


@pytest.mark.isa("avx2")
@pytest.mark.parametrize("kernel", ["avx2_f32_4x24", "avx2_f32_6x16"])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("n", [5, 130, 344])
def test_every_column_is_stored(n: int, rows: int, kernel: str) -> None:
    """344 columns: panels of two widths, and too few of them for the last streams."""
    region = matmul_region((rows,), 37, n, (Tensor((n,), "float32"),), bias_relu())
    check(region, "avx2", config=config_of(kernel, rows))


@pytest.mark.isa("avx2")
def test_threads_share_columns_and_steps_of_k() -> None:
    region = matmul_region((1,), 64, 344, (Tensor((344,), "float32"),), bias_relu())
    check(region, "avx2", config=config_of("avx2_f32_4x24", 1, threads_n=2), threads=2)
    check(region, "avx2", config=config_of("avx2_f32_4x24", 1, threads_k=2), threads=2)


@pytest.mark.isa("avx2")
def test_results_of_bytes() -> None:
    region = matmul_region((1,), 64, 344).replace(output=Tensor((1, 344), "uint8"))
    arrays = random_inputs(region)
    result = run(region, arrays, "avx2", config=config_of("avx2_f32_6x16", 1))
    exact = np.clip(expected(region, arrays), 0, 255)
    assert (np.abs(result - exact) < 1).all()  # casts to integers truncate
    assert result.max() > 5


def test_more_streams_cost_no_more() -> None:
    machine = machine_for("avx2")
    region = matmul_region((1,), 384, 1536)
    narrow, wide = (config_of(kernel, 1) for kernel in ("avx2_f32_4x24", "avx2_f32_1x120"))
    assert estimated_cycles(region, narrow, machine) <= estimated_cycles(region, wide, machine)


@pytest.mark.parametrize(("threads", "side"), [(1, 4), (2, 4), (4, 2)])
def test_threads_that_share_the_panels_of_few_rows_get_as_many(threads: int, side: int) -> None:
    """Eight panels as five and three would keep one of two threads waiting."""
    config = config_of("avx512_f32_8x48", 8)
    config = msgspec.structs.replace(config, threads_m=threads, whole_rows=8)
    plan = plan_of(matmul_region((8,), 64, 384), config)
    assert SIDE_BY_SIDE.side(plan, 1, Group(0, 8, 3))[0] == side


@pytest.mark.parametrize(("panels", "side"), [(10, 5), (8, 4), (7, 5), (32, 4), (1, 1)])
def test_one_thread_reads_one_panel_less_at_once_where_none_are_left_over(
    panels: int, side: int
) -> None:
    """Eight panels are read as four and four: five and three would each have their own code."""
    plan = plan_of(matmul_region((8,), 64, 48 * panels), config_of("avx512_f32_8x48", 8))
    assert SIDE_BY_SIDE.side(plan, 1, Group(0, panels, 3))[0] == side


def test_few_rows_of_a_dynamic_number_are_whole_where_threads_share_rows() -> None:
    """Threads keep their rows from one product to the next, unless rows are few."""
    region = matmul_region((LENGTH,), 384, 1152)
    config = MATMUL.default_config(region, machine_for("avx512", 2))
    assert (config.threads_m, config.threads_n) == (2, 1)
    assert config.whole_rows >= 8
