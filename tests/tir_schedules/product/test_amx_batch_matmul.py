"""The batch_matmul template on AMX tiles: types, stored orders, zero points, sizes, blocks, tasks.

Results equal the definition, integers to the bit; every test ends without a fault of a tile
instruction and without a configured thread (tests/conftest.py).
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from microkernels.amx.instructions import full_then_tail, product_counts
from tests.amx_emulator import emulator
from tests.examples import examples
from tests.onnx_reference.arithmetic import quantize
from tests.tir_schedules.bf16_products import exact, normal
from tests.tir_schedules.on_tiles import BLOCKS, counted, cut_in_any_way, on_tiles
from tests.tir_schedules.run_region import run
from tir_schedules.core.product_plan import TileConfig
from tir_schedules.core.region import EpilogueOp, Region, Tensor

from .test_narrow_batch_matmul import (
    PLAIN,
    TRANSPOSED,
    TYPES,
    ZEROS,
    Shape,
    axes_of,
    product,
    region_of,
    values,
)

pytestmark = pytest.mark.isa("amx")
F, B = "float32", "bfloat16"
FLOATS = [(F, F), (B, B), (F, B), (B, F)]


def check(region: Region, config: TileConfig | None = None, **options: Any) -> None:
    """Tiles compute the numbers of the definition, to the bit."""
    config = config or on_tiles(region)
    arrays = values(region)
    order = axes_of(region, "out_axes", len(region.output.shape))
    wanted = product(region, arrays).transpose(order)
    emulator.reset()
    result = run(region, arrays, "amx", config, stored_shape=wanted.shape, **options)
    np.testing.assert_array_equal(result, wanted)
    executed = emulator.counts()
    assert executed is None or executed[counted(config)] > 0


@pytest.mark.sampled
@pytest.mark.parametrize(("a", "b"), TYPES)
def test_types_and_zero_points(a: str, b: str) -> None:
    first = TYPES.index((a, b)) % 2
    for number, (a_zero, b_zero) in enumerate(ZEROS):
        axes = (PLAIN, TRANSPOSED)[(number + first) % 2]
        region = region_of((2, 19, 70), (2, 70, 37), a, b, a_zero, b_zero, b_axes=axes)
        check(region, on_tiles(region, BLOCKS[number // 2 % 2]), at_end=axes == PLAIN)


@pytest.mark.sampled
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtypes", [("int8", "uint8"), (F, F), (B, B)], ids=str)
def test_sizes_around_the_tile(dtypes: tuple[str, str], transposed: bool) -> None:
    """Tails of rows, columns and K, with A read in place, in part, or from a copy."""
    zeros = (-7, 11) if dtypes == ("int8", "uint8") else (0, 0)
    sizes = [(33, 33, 65), (17, 65, 128), (1, 1, 1), (50, 16, 31)]
    if dtypes[1] == F and transposed:  # LLVM takes a second for each packing of f32
        sizes = sizes[:2]
    for number, (m, n, k) in enumerate(sizes):
        axes = TRANSPOSED if transposed else None
        region = region_of((2, m, k), (2, k, n), *dtypes, *zeros, b_axes=axes)
        check(region, on_tiles(region, BLOCKS[number % 2]), at_end=number % 2 == 0)


@pytest.mark.parametrize("b_axes", list(itertools.permutations(range(3))), ids=str)
def test_any_stored_order(b_axes: Shape) -> None:
    """Rows of A at any distance, and columns of A far apart."""
    for a_axes, (a, b) in [((1, 0, 2), ("int8", "int8")), ((2, 1, 0), (F, B))]:
        zeros: tuple[int | str, int] = ("input", 3) if a == "int8" else (0, 0)
        shapes = (2, 21, 64), (2, 64, 21)
        check(region_of(*shapes, a, b, *zeros, a_axes=a_axes, b_axes=b_axes))


@pytest.mark.parametrize("dtypes", [("int8", "uint8"), (F, F), (B, B)], ids=str)
def test_attention_heads_are_read_and_written_in_place(dtypes: tuple[str, str]) -> None:
    head = (0, 2, 1, 3)
    check(region_of((1, 3, 40, 64), (1, 3, 64, 48), *dtypes, a_axes=head, b_axes=(0, 2, 3, 1)))
    check(region_of((1, 3, 40, 45), (1, 3, 45, 64), *dtypes, b_axes=head, out_axes=head))


@st.composite
def products(draw: st.DrawFn) -> Region:
    """Products of any types and sizes, with broadcast batches."""
    left, right = draw(
        st.sampled_from([((2,), (2,)), ((2,), (1,)), ((1,), (3,)), ((2, 3), (3,)), ((4,), ())])
    )
    m, n, k = draw(st.integers(1, 50)), draw(st.integers(1, 70)), draw(st.integers(1, 150))
    a, b = draw(st.sampled_from([*TYPES, *FLOATS]))
    zeros = draw(st.sampled_from(ZEROS)) if (a, b) in TYPES else (0, 0)
    return region_of((*left, m, k), (*right, k, n), a, b, *zeros)


@given(st.data(), products(), st.booleans())
@examples(20)
def test_any_product_cut_in_any_way(data: st.DataObject, region: Region, at_end: bool) -> None:
    check(region, data.draw(cut_in_any_way(region)), at_end=at_end)


@pytest.mark.parametrize("dtypes", [(F, F), (B, B)], ids=str)
def test_sums_of_any_values_are_within_the_bound(dtypes: tuple[str, str]) -> None:
    rng = np.random.default_rng(1)
    region = region_of((2, 37, 160), (2, 160, 33), *dtypes, b_axes=TRANSPOSED)
    arrays = [normal(rng, tensor.shape, tensor.dtype) for tensor in region.inputs]
    wanted, bound = exact(arrays[0], arrays[1].transpose(TRANSPOSED))
    for config in (on_tiles(region), on_tiles(region, "16x64", k_block=16)):
        assert (np.abs(run(region, arrays, "amx", config) - wanted) <= bound).all()


def test_attention_scores_are_requantised() -> None:
    """Scores are scaled, masked and quantised in the epilogue."""
    steps = (
        EpilogueOp("cast", (0,)),
        EpilogueOp("constant", value=0.0021),
        EpilogueOp("multiply", (2, 3)),
        EpilogueOp("add", (4, 1)),
        EpilogueOp("constant", value=0.11),
        EpilogueOp("constant", value=131.0),
        EpilogueOp("quantize", (5, 6, 7), dtype="uint8"),
    )
    mask, output = Tensor((2, 1, 1, 39), F), Tensor((2, 3, 18, 39), "uint8")
    region = region_of(
        (2, 3, 18, 64), (2, 3, 64, 39), "uint8", "uint8", 128, 121,
        operands=(mask,), epilogue=steps, output=output,
    )  # fmt: skip
    arrays = values(region)
    real = product(region, arrays).astype(np.float32) * np.float32(0.0021) + arrays[-1]
    wanted = quantize(real, 0.11, np.uint8(131))
    assert len(np.unique(wanted)) > 50
    np.testing.assert_array_equal(run(region, arrays, "amx", on_tiles(region)), wanted)


@pytest.mark.parametrize("parallel", [False, True])
def test_every_task_executes_what_the_model_says(parallel: bool) -> None:
    """Batches of 70 rows in two chunks, on one thread or two: 35 rows are a block and a tail."""
    m, n, k = 70, 90, 300
    region = region_of((3, m, k), (3, k, n), "int8", "uint8", 3, 0)
    config = on_tiles(region, k_block=32, row_shares=2, parallel=parallel)
    check(region, config, threads=2)
    executed = emulator.counts()
    if executed is not None:  # hardware has no counters
        pieces = [2, 2, 1]  # 300 bytes of K are five tiles
        panels = full_then_tail(math.ceil(n / 16), 2)
        share = product_counts("2x2", full_then_tail(m // 2, 32), panels, pieces, started=True)
        found = {instruction: count for instruction, count in executed.items() if count}
        assert found == (share * 6).named("tdpbsud")
