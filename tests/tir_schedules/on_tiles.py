"""Configurations that put products of any size on AMX tiles."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from microkernels.kernels.amx_tiles import AmxMicrokernel
from microkernels.microkernel import Microkernel
from microkernels.registry import microkernel_named, tile_kernels_for
from tests.tir_schedules.run_region import machine_for
from tir_schedules.core.product_plan import TileConfig, is_integer, quantized_dtype
from tir_schedules.core.region import Region
from tir_schedules.product.batch_matmul import BatchMatmulConfig, BatchProblem
from tir_schedules.product.tile_config import MatmulConfig, dimensions, shares_k

BLOCKS = ("32x32", "16x64")


def kernel_of(region: Region, block: str) -> Microkernel:
    """The tile kernel with this block that multiplies a region's types without a conversion."""
    types = ("bfloat16", "bfloat16")
    if is_integer(region):
        types = (quantized_dtype(region), region.inputs[1].dtype)
    kernels = tile_kernels_for(machine_for("amx").isa, *types)
    (found,) = (kernel for kernel in kernels if kernel.name.endswith(f"_{block}"))
    return found


def sizes_of(region: Region) -> tuple[int, int, int]:
    """Rows, columns and K of the product that one task of one thread computes."""
    if region.op == "matmul":
        return dimensions(region)
    problem = BatchProblem(region)
    return problem.m, problem.n, problem.k


def on_tiles(region: Region, block: str = "32x32", **fields: Any) -> TileConfig:
    """One block of rows and of K, in the largest tiles of a kernel, except for given fields."""
    kernel = kernel_of(region, block)
    m, n, k = sizes_of(region)
    numbers = {
        "kernel": kernel.name,
        "rows": min(kernel.mr, m),
        "vectors": min(kernel.vectors, math.ceil(n / kernel.lanes)),
        "m_block": m,
        "k_block": kernel.steps(k),
    }
    config = MatmulConfig if region.op == "matmul" else BatchMatmulConfig
    return config(**{**numbers, **fields})


@st.composite
def cut_in_any_way(draw: st.DrawFn, region: Region) -> TileConfig:
    """Any tiles and blocks for a region, and any grid of threads."""
    block = draw(st.sampled_from(BLOCKS))
    kernel = kernel_of(region, block)
    m, _, k = sizes_of(region)
    fields = {
        "rows": draw(st.integers(1, kernel.mr) | st.sampled_from([16, kernel.mr])),
        "vectors": draw(st.integers(1, kernel.vectors)),
        "m_block": draw(st.integers(1, m)),
        "k_block": draw(st.integers(1, kernel.steps(k))),
    }
    if region.op == "matmul":
        fields |= {"threads_m": draw(st.integers(1, 3)), "threads_n": draw(st.integers(1, 4))}
        if shares_k(kernel, k):
            fields["threads_k"] = draw(st.integers(1, 3))
    else:
        fields |= {"row_shares": draw(st.integers(1, 3)), "parallel": draw(st.booleans())}
        fields |= {"packs_first": draw(st.booleans()), "threads": draw(st.integers(0, 3))}
    return on_tiles(region, block, **fields)


def counted(config: TileConfig) -> str:
    """The name under which the emulator counts a configuration's products."""
    kernel = microkernel_named(config.kernel)
    assert isinstance(kernel, AmxMicrokernel)
    return kernel.product
