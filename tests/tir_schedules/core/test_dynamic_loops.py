"""Loops over a dynamic number, compared with blocks computed in Python."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tvm.tirx.script.builder.ir as I

from microkernels.vector.expressions import Expr
from tests.stand_ins import running
from tests.tir_schedules.run_region import ISAS, highest_native
from tir_schedules.core.blocking import tail_heights
from tir_schedules.core.emission import (
    balanced_blocks,
    for_tiles,
    kernel_function,
    opaque_block,
    tensor_parameter,
)
from tir_schedules.core.extents import as_expr, extent, read_extents
from tir_schedules.core.region import Tensor
from tir_schedules.core.size import SymbolicSize
from tvm_hybrid.runtime.feeds import tensor_of

N = SymbolicSize.of("n")


@pytest.mark.parametrize(("most", "unit"), [(42, 6), (85, 6), (5, 6), (16, 4), (7, 1)])
def test_balanced_blocks(most: int, unit: int) -> None:
    """Each element of the result is the number of its block, from 1 on."""
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

        count, block_of = balanced_blocks(as_expr(extent(N)), most, unit)
        with I.serial(count) as at, opaque_block("block"):
            block(*block_of(at))
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


@pytest.mark.parametrize(("most", "vectors", "least"), [(14, 2, 3), (6, 4, 16), (28, 1, 1)])
def test_tiles_cover_every_row_once(most: int, vectors: int, least: int) -> None:
    """Each element is the height of its tile; only heights that have code occur."""
    isa, heights = highest_native(ISAS), tail_heights(most, vectors, least)
    with kernel_function("tiles") as builder:
        out = tensor_parameter("out", Tensor((N,), "int32"))
        read_extents()

        def tile(start: Expr, height: int) -> None:
            for row in range(height):
                I.buffer_store(out, out[start + row] + height, [start + row])

        for_tiles(as_expr(extent(N)), heights, tile)
    kernel = running.compiled(builder.get().with_attr("global_symbol", "kernel"), isa)["kernel"]
    for total in (0, *range(least, 5 * most)):
        result = np.zeros(total, np.int32)
        kernel(tensor_of(result))
        found = Counter(result.tolist())
        assert all(height in heights.heights for height in found)
        assert all(rows % height == 0 for height, rows in found.items())
        assert found[most] >= total // most * most - most


def test_few_heights_cost_little() -> None:
    """Five heights have less than a third of all heights' rows; 13 rows are 5, 4 and 4."""
    heights = tail_heights(14, 2, 3)
    assert heights.heights == (3, 4, 5, 6, 14)
    assert sum(heights.heights) * 3 < sum(range(3, 15))
    assert [heights.first[rows] for rows in (3, 13, 14, 16, 20)] == [3, 5, 14, 6, 14]
    assert heights.counts[13] == 3
