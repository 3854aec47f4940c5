"""Loops over a number that is known at run time only, against the same cuts by Python."""

from __future__ import annotations

import numpy as np
import pytest
import tvm.tirx.script.builder.ir as I

from microkernels.vector.expressions import Expr
from tests.stand_ins import running
from tests.tir_schedules.run_region import ISAS, highest_native
from tir_schedules.core.emission import kernel_function, tensor_parameter
from tir_schedules.core.extents import as_expr, extent, read_extents
from tir_schedules.core.open_loops import even_heights, for_balanced_blocks, for_even_tiles
from tir_schedules.core.region import Tensor
from tir_schedules.core.size import SymbolicSize
from tvm_hybrid.dlpack import tensor_of

N = SymbolicSize.of("n")


@pytest.mark.parametrize(("most", "unit"), [(42, 6), (85, 6), (5, 6), (16, 4), (7, 1)])
def test_balanced_blocks(most: int, unit: int) -> None:
    """Each element of the result is the number of the block that it lies in, from 1 on."""
    isa = highest_native(ISAS)
    with kernel_function("blocks") as builder:
        out = tensor_parameter("out", Tensor((N,), "int32"))
        read_extents()
        number = I.sblock_alloc_buffer((1,), "int32")
        I.buffer_store(number, as_expr(0), [0])

        def block(start: Expr, size: Expr) -> None:
            I.buffer_store(number, number[0] + 1, [0])
            with I.serial(size) as at:
                I.buffer_store(out, number[0], [start + at])

        for_balanced_blocks(as_expr(extent(N)), most, unit, block)
    kernel = running.compiled(builder.get().with_attr("global_symbol", "kernel"), isa)["kernel"]
    whole = unit if unit <= most else 1
    for total in (0, 1, 6, 41, 42, 43, 84, 85, 128, 384):
        result = np.zeros(total, np.int32)
        kernel(tensor_of(result))
        sizes = np.bincount(result)[1:] if total else np.zeros(0, int)
        assert (np.diff(result) >= 0).all() and sizes.sum() == total
        units = -(-total // whole)
        assert len(sizes) == -(-units // (most // whole))
        assert all(size % whole == 0 for size in sizes[:-1])
        counts = [-(-size // whole) for size in sizes]
        assert not counts or (max(counts) - min(counts) <= 1 and max(sizes) <= most)


@pytest.mark.parametrize(("most", "least"), [(8, 1), (8, 2), (5, 1), (1, 1), (2, 2)])
def test_even_tiles(most: int, least: int) -> None:
    """How often each element is computed, and the heights of the pieces."""
    isa = highest_native(ISAS)
    with kernel_function("tiles") as builder:
        out = tensor_parameter("out", Tensor((N,), "int32"))
        heights = tensor_parameter("heights", Tensor((most + 1,), "int32"))
        read_extents()

        def tile(start: Expr, height: int) -> None:
            for at in range(height):
                I.buffer_store(out, out[start + at] + 1, [start + at])

        def after(_start: Expr, height: Expr) -> None:
            I.buffer_store(heights, heights[height] + 1, [height])

        for_even_tiles(as_expr(extent(N)), most, tile, after, least)
    kernel = running.compiled(builder.get().with_attr("global_symbol", "kernel"), isa)["kernel"]
    for total in (0, *range(least, 5 * most)):
        computed, found = np.zeros(total, np.int32), np.zeros(most + 1, np.int32)
        kernel(tensor_of(computed), tensor_of(found))
        extra = total % 2 if most % 2 == 0 and total > 1 else found @ np.arange(most + 1) - total
        assert (computed >= 1).all() and computed.sum() == total + extra and 0 <= extra <= 2
        assert set(np.flatnonzero(found)) <= set(even_heights(least, most))
        assert found.sum() <= -(-total // most) + (total % 2 and total < most)
