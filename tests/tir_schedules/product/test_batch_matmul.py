"""The batch_matmul template: stored orders, broadcasting, sizes around the tile, every ISA."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from microkernels.base.errors import ConfigError
from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from microkernels.registry import microkernel_named
from tests.examples import examples
from tests.tir_schedules.run_region import (
    ISAS,
    expected,
    highest_native,
    machine_for,
    random_inputs,
    run,
)
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.size import SymbolicSize
from tir_schedules.product.batch_matmul import BATCH_MATMUL, BatchMatmulConfig

Shape = tuple[int, ...]


def batch_region(
    a: Shape,
    b: Shape,
    a_axes: Shape | None = None,
    b_axes: Shape | None = None,
    out_axes: Shape | None = None,
    operands: tuple[Tensor, ...] = (),
    epilogue: tuple[EpilogueOp, ...] = (),
) -> Region:
    """A region over stored shapes."""
    axes = {"a_axes": a_axes, "b_axes": b_axes, "out_axes": out_axes}
    logical_a = [a[i] for i in a_axes or range(len(a))]
    logical_b = [b[i] for i in b_axes or range(len(b))]
    batch = np.broadcast_shapes(tuple(logical_a[:-2]), tuple(logical_b[:-2]))
    return Region(
        op="batch_matmul",
        inputs=(Tensor(a, "float32"), Tensor(b, "float32")),
        output=Tensor((*batch, logical_a[-2], logical_b[-1]), "float32"),
        attrs={name: tuple(value) for name, value in axes.items() if value},
        operands=operands,
        epilogue=epilogue,
    )


def check(region: Region, isa: str = ISAS[-1], **options) -> None:
    arrays = random_inputs(region)
    order = region.numbers("out_axes")
    shape = tuple(region.output.shape[i] for i in order) if order else region.output.shape
    result = run(region, arrays, isa, stored_shape=shape, **options)
    reference = expected(region, arrays)
    magnitude = BATCH_MATMUL.reference(region, [np.abs(x) for x in arrays[:2]])
    k = region.inputs[0].size  # at least K
    bound = min(k, 4096) * np.finfo(np.float32).eps * (magnitude + np.abs(reference) + 1)
    if order:
        reference, bound = reference.transpose(order), bound.transpose(order)
    assert (np.abs(result - reference) <= bound).all()


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("transposed", [False, True])
def test_sizes_around_the_tile_and_the_vector(isa: str, transposed: bool) -> None:
    lanes = machine_for(isa).isa.f32_lanes
    for m, n, k in [
        (1, 1, 1),
        (5, lanes - 1 or 1, lanes + 1),
        (7, 4 * lanes + 1, 2 * lanes),
        (6, 64, 3),
    ]:
        b = (3, n, k) if transposed else (3, k, n)
        axes = (0, 2, 1) if transposed else None
        for at_end in (False, True):
            check(batch_region((3, m, k), b, b_axes=axes), isa, at_end=at_end)


def test_attention_heads_are_read_and_written_in_place() -> None:
    scores = batch_region((1, 20, 3, 18), (1, 23, 3, 18), (0, 2, 1, 3), (0, 2, 3, 1))
    check(scores)
    context = batch_region((1, 3, 20, 23), (1, 23, 3, 18), None, (0, 2, 1, 3), (0, 2, 1, 3))
    check(context)


@pytest.mark.sampled
@pytest.mark.parametrize("axes", list(itertools.permutations(range(3))), ids=str)
def test_any_stored_order_of_b(axes: Shape) -> None:
    logical = (2, 9, 21)
    stored = tuple(logical[axes.index(i)] for i in range(3))
    check(batch_region((2, 5, 9), stored, b_axes=axes))


@given(
    st.sampled_from(
        [((2,), (2,)), ((2,), (1,)), ((1,), (3,)), ((2, 3), (3,)), ((4,), ()), ((), (4,))]
    ),
    st.integers(1, 20),
    st.integers(1, 40),
    st.integers(1, 40),
)
@examples(20)
def test_batches_broadcast(batches: tuple[Shape, Shape], m: int, n: int, k: int) -> None:
    check(batch_region((*batches[0], m, k), (*batches[1], k, n)))


@pytest.mark.parametrize(
    "shape", [(), (33,), (7, 33), (1, 7, 33), (2, 1, 1, 33), (2, 3, 7, 1)], ids=str
)
def test_scale_and_mask_in_the_epilogue(shape: Shape) -> None:
    steps = (
        EpilogueOp("constant", value=0.125),
        EpilogueOp("multiply", (0, 2)),
        EpilogueOp("add", (3, 1)),
    )
    region = batch_region(
        (2, 3, 7, 16), (2, 3, 16, 33), operands=(Tensor(shape, "float32"),), epilogue=steps
    )
    check(region)


def test_rows_are_shared_where_batches_are_too_few() -> None:
    region = batch_region((1, 64, 64), (1, 64, 64))
    config = BATCH_MATMUL.default_config(region, machine_for(ISAS[-1], 2))
    assert config.parallel and config.row_shares == 2
    check(region, threads=2)
    check(
        batch_region((1, 7, 9), (1, 9, 33)),
        config=BatchMatmulConfig(**{**config.to_dict(), "row_shares": 3, "rows": 2, "vectors": 1}),
    )


@pytest.mark.sampled
@pytest.mark.parametrize("axes", [None, (0, 2, 1), (2, 1, 0)], ids=str)
@pytest.mark.parametrize("threads", [0, 3, 7, 53, 112])
def test_b_is_packed_before_by_any_number_of_threads(threads: int, axes: Shape | None) -> None:
    """Copied, transposed and gathered; columns, rows and K end within vectors, tiles, blocks."""
    logical = (3, 37, 150)
    stored = tuple(logical[axes.index(i)] for i in range(3)) if axes else logical
    region = batch_region((3, 45, 37), stored, b_axes=axes)
    config = BATCH_MATMUL.default_config(region, machine_for(ISAS[-1])).to_dict()
    config |= {"row_shares": 13, "packs_first": True, "parallel": True, "threads": threads}
    for at_end in (False, True):
        check(region, config=BatchMatmulConfig(**config), at_end=at_end)


@pytest.mark.slow
def test_space_holds_the_default_and_builds() -> None:
    region = batch_region((2, 30, 40), (2, 40, 50))
    isa = highest_native(ISAS)
    configs = list(BATCH_MATMUL.space(region, machine_for(isa)))
    assert configs[0] == BATCH_MATMUL.default_config(region, machine_for(isa))
    assert len(set(configs)) == len(configs)
    for config in configs[::5]:
        check(region, isa, config=config)


def test_illegal_configs_and_regions_are_refused() -> None:
    region = batch_region((2, 30, 40), (2, 40, 50))
    config = BatchMatmulConfig(kernel="avx512_f32_6x64", rows=7, vectors=4, m_block=8, k_block=8)
    with pytest.raises(ConfigError, match="rows=7: must be at least 1 and at most 6"):
        BATCH_MATMUL.build(region, config, isa_named("avx512"))
    columns_not_last = batch_region((2, 3, 4), (2, 4, 5), out_axes=(0, 2, 1))
    assert "columns" in str(BATCH_MATMUL.reject(columns_not_last, isa_named("avx512")))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shares", [1, 3])
def test_b_is_packed_panel_by_panel(isa: str, shares: int) -> None:
    """Tails of columns in a vector, a panel and a chunk; tails of rows in a tile."""
    lanes = machine_for(isa).isa.f32_lanes
    for m, n, k in [(17, 5 * lanes + 1, 9), (6, 3 * lanes, 1), (1, lanes - 1 or 1, 4)]:
        for b, axes in [((2, k, n), None), ((2, n, k), (0, 2, 1))]:
            region = batch_region((2, m, k), b, b_axes=axes)
            config = BATCH_MATMUL.default_config(region, machine_for(isa)).to_dict()
            kernel = microkernel_named(config["kernel"])
            for vectors in {1, min(2, kernel.vectors)}:
                config |= {"vectors": vectors, "m_block": m, "column_shares": shares}
                for at_end in (False, True):
                    check(region, isa, config=BatchMatmulConfig(**config), at_end=at_end)


def test_b_is_packed_panel_by_panel_where_it_would_leave_the_cache() -> None:
    large = batch_region((64, 32), (1, 32, 12544))
    zen4 = Machine("znver4", isa_named("avx512"))
    config = BATCH_MATMUL.default_config(large, zen4)
    assert (config.column_shares, config.vectors, config.m_block) == (1, 1, 64)
    assert BATCH_MATMUL.default_config(large, Machine("sapphirerapids", zen4.isa)).vectors == 2
    shared = BATCH_MATMUL.default_config(large, Machine("znver4", zen4.isa, 2))
    assert shared.parallel and shared.column_shares == 2
    for other in [
        batch_region((64, 32), (1, 32, 784)),  # B stays in the cache
        batch_region((4096, 64), (1, 64, 12544)),  # A does not stay in the cache
        batch_region((64, 32), (1, 12544, 32), b_axes=(0, 2, 1)),  # not measured
    ]:
        assert not BATCH_MATMUL.default_config(other, zen4).column_shares


def test_illegal_shares_of_columns_are_refused() -> None:
    region = batch_region((2, 30, 40), (2, 40, 50))
    isa = isa_named("avx512")
    config = BatchMatmulConfig(
        kernel="avx512_f32_6x64", rows=6, vectors=4, m_block=8, k_block=8, column_shares=2
    ).to_dict()
    for changed in ({"row_shares": 2}, {"packs_first": True}):
        with pytest.raises(ConfigError, match="row_shares=1"):
            BATCH_MATMUL.check(region, BatchMatmulConfig(**{**config, **changed}), isa)
    rows = SymbolicSize.of("rows")
    dynamic = batch_region((2, 30, 40), (2, 40, 50)).replace(
        inputs=(Tensor((2, rows, 40), "float32"), Tensor((2, 40, 50), "float32")),
        output=Tensor((2, rows, 50), "float32"),
    )
    with pytest.raises(ConfigError, match="column_shares needs static rows and K"):
        BATCH_MATMUL.check(dynamic, BatchMatmulConfig(**config), isa)
