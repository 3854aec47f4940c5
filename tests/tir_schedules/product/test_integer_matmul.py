"""Integer products in the matmul template: every ISA, type, zero point and size, to the bit."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tests.examples import examples
from tests.relay_passes.graphs import run as run_relax
from tests.tir_schedules.integer_regions import (
    BEST,
    DTYPES,
    TYPES,
    check,
    config_for,
    every_isa,
    kernels,
    matmul_region,
    product,
    values,
)
from tests.tir_schedules.run_region import INTEGER_ISAS, machine_for, run
from tir_schedules.core.region import Region, Tensor
from tir_schedules.product.matmul import MATMUL, MatmulConfig
from tir_schedules.product.tile_config import neighbouring_tiles

A_ZEROS: tuple[int | str, ...] = (0, 3, "input", "range")
W_ZEROS: tuple[int | str, ...] = (0, 5, "input")


@pytest.mark.sampled
@every_isa
@pytest.mark.parametrize(("a", "w"), TYPES)
def test_types_and_zero_points(isa: str, a: str, w: str) -> None:
    lanes = machine_for(isa).isa.f32_lanes
    pairs = list(itertools.product(A_ZEROS, W_ZEROS))
    for a_zero, w_zero in pairs if isa == BEST else pairs[TYPES.index((a, w)) % 2 :: 2]:
        if (a, a_zero) != ("int8", "range"):  # the zero point of a range is uint8
            check(matmul_region((5,), 13, 2 * lanes + 1, a, w, a_zero, w_zero), isa)


@pytest.mark.sampled
@every_isa
@pytest.mark.parametrize("at_end", [False, True])
def test_sizes_around_the_tile_and_the_vector(isa: str, at_end: bool) -> None:
    lanes, kernel = machine_for(isa).isa.f32_lanes, kernels(isa)[0]
    word = kernel.kr * lanes
    for m, n, k in [
        (kernel.mr - 1, kernel.nr - 1, 4 * word - 1),
        (kernel.mr, kernel.nr, word),
        (kernel.mr + 1, kernel.nr + 1, word + 1),
        (2, lanes + 15, 3),
    ]:
        check(matmul_region((m,), k, n, "int8", "uint8", -7, "input"), isa, at_end=at_end)
        check(matmul_region((m,), k, n, "uint8", "int8", 7, 0), isa, at_end=at_end)


@pytest.mark.sampled
@every_isa
def test_every_short_k(isa: str) -> None:
    for k in (*range(1, 10), 63, 65):
        at_end = k % 2 == 0
        check(matmul_region((3,), k, 17, "uint8", "uint8", "input", 9), isa, at_end=at_end)


@pytest.mark.sampled
@every_isa
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5])
def test_few_rows(isa: str, m: int) -> None:
    for n in (1, 16, 257) if m % 2 else (15, 17):
        check(matmul_region((m,), 33, n, "int8", "int8", 0, 1), isa, at_end=n % 2 == 0)


@pytest.mark.sampled
@every_isa
@pytest.mark.parametrize(("a", "w"), TYPES)
def test_extreme_values_never_saturate(isa: str, a: str, w: str) -> None:
    left, right = np.iinfo(a), np.iinfo(w)
    region = matmul_region((2,), 260, 18, a, w, left.min, right.max)
    best = MATMUL.default_config(region, machine_for(isa))
    for x, y in itertools.product((left.min, left.max), (right.min, right.max)):
        arrays = [np.full((2, 260), x, a), np.full((260, 18), y, w)]
        wanted = product(region, arrays)
        np.testing.assert_array_equal(run(region, arrays, isa, config=best), wanted)


@st.composite
def blocked(draw: st.DrawFn, isa: str) -> tuple[Region, MatmulConfig, bool]:
    """A product of any size and kind, with any blocks."""
    a, w = draw(st.sampled_from(TYPES))
    a_zero = draw(st.sampled_from(A_ZEROS[: 3 if a == "int8" else 4]))
    region = matmul_region(
        (draw(st.integers(1, 40)),),
        draw(st.integers(1, 150)),
        draw(st.integers(1, 100)),
        a,
        w,
        a_zero,
        draw(st.sampled_from(W_ZEROS)),
    )
    kernel = draw(st.sampled_from(kernels(isa)))
    config = MatmulConfig(
        kernel=kernel.name,
        rows=draw(st.integers(1, kernel.mr)),
        vectors=draw(st.integers(1, kernel.vectors)),
        m_block=draw(st.integers(1, 45)),
        k_block=draw(st.integers(1, 40)),
        threads_m=draw(st.integers(1, 4)),
        threads_n=draw(st.integers(1, 5)),
        threads_k=draw(st.integers(1, 4)),
    )
    return region, config, draw(st.booleans())


@pytest.mark.sampled
@every_isa
def test_every_block_size_and_thread_grid(isa: str) -> None:
    """Accumulators stay between blocks of K, and start with the terms of zero points once."""

    @given(blocked(isa))
    @examples(15 if isa == BEST else 4)
    def any_of_them(drawn: tuple[Region, MatmulConfig, bool]) -> None:
        region, config, at_end = drawn
        check(region, isa, config=config, at_end=at_end)

    any_of_them()


@pytest.mark.sampled
@every_isa
@pytest.mark.parametrize(("k", "k_block"), [(13, 1), (51, 8)])
def test_blocks_of_k_smaller_than_k(isa: str, k: int, k_block: int) -> None:
    zeros: list[tuple[int | str, int | str]] = [(0, 0), (4, "input"), ("range", 3)]
    for a_zero, w_zero in zeros:
        region = matmul_region((7,), k, 20, "uint8", "int8", a_zero, w_zero)
        check(region, isa, config=config_for(region, isa, k_block=k_block, m_block=3))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads(threads: int) -> None:
    region = matmul_region((64,), 128, 200, "int8", "uint8", "input", "input")
    check(region, threads=threads)
    grid = MATMUL.default_config(region, machine_for(BEST, threads))
    assert grid.threads_m * grid.threads_n == threads


@pytest.mark.parametrize(("n", "threads"), [(1024, 2), (256, 1)])
def test_a_row_is_shared_where_its_weight_takes_long_to_read(n: int, threads: int) -> None:
    region = matmul_region((1,), 1024, n, "uint8", "int8", 0, 0)
    grid = MATMUL.default_config(region, Machine("znver5", isa_named("avx512_vnni"), 2))
    assert grid.threads_n == threads


@pytest.mark.sampled
@every_isa
def test_blocks_of_rows_on_threads_with_unequal_shares(isa: str) -> None:
    """Rows count from the first row of a block, in the code for both chunk sizes."""
    for a, k in [("uint8", 36), ("int8", 37)]:
        region = matmul_region((40,), k, 5 * machine_for(isa).isa.f32_lanes, a, "int8", 2, 3)
        check(region, isa, config=config_for(region, isa, vectors=1, m_block=35, threads_n=2))


@every_isa
def test_rows_of_several_dimensions(isa: str) -> None:
    check(matmul_region((2, 3, 2), 9, 20, "int8", "int8", "input", 2), isa)


def test_windows_are_f32() -> None:
    region = matmul_region((1, 9), 8, 5)
    weight = Tensor((3, 8, 5), "int8", True)
    window = region.replace(inputs=(region.inputs[0], weight), attrs={"window": 3, "stride": 1})
    assert "windows of type int8" in str(MATMUL.reject(window, isa_named("avx512")))


def test_space_holds_the_default_and_only_legal_configs_that_build() -> None:
    region = matmul_region((50,), 70, 100, "int8", "uint8", 3, "input")
    configs = list(MATMUL.space(region, machine_for(BEST, 2)))
    assert configs[0] == MATMUL.default_config(region, machine_for(BEST, 2))
    assert len(set(configs)) == len(configs) > 20
    for config in configs[:: len(configs) // 6]:
        check(region, config=config)


# One instruction set for every number of elements in a word and columns in a vector.
@pytest.mark.sampled
@pytest.mark.parametrize("isa", [r for r in INTEGER_ISAS if r in ("scalar", "avx2", BEST)])
@pytest.mark.parametrize("w", DTYPES)
def test_what_is_packed_unpacks_to_the_same(isa: str, w: str) -> None:
    """Weight and terms of zero points per column, through Relax, for panels of unequal width."""
    target_isa, packing = machine_for(isa).isa, MATMUL.packing
    assert packing is not None
    region = matmul_region((4,), 9, 5 * target_isa.f32_lanes + 3, "int8", w, 4, "input")
    arrays = values(region)
    for vectors, threads_n, inputs in [(1, 2, (1,)), (kernels(isa)[0].vectors, 3, (1, 2))]:
        name = kernels(isa)[0].name
        config = config_for(region, isa, kernel=name, vectors=vectors, threads_n=threads_n)
        for index in inputs:
            packed = packing(region, config, target_isa, index).pack(arrays[index])
            assert packed.shape == packing(region, config, target_isa, index).shape
            unpacked = unpack(region, config, isa, index, packed)
            assert unpacked.dtype == arrays[index].dtype
            np.testing.assert_array_equal(unpacked, arrays[index])


def unpack(
    region: Region, config: MatmulConfig, isa: str, index: int, packed: np.ndarray
) -> np.ndarray:
    """The template's unpacking, compiled by TVM."""
    builder, packing = relax.BlockBuilder(), MATMUL.packing
    assert packing is not None
    x = relax.Var("x", relax.TensorType(packed.shape, str(packed.dtype)))
    with builder.function("main", [x]):
        with builder.dataflow():
            expr = packing(region, config, machine_for(isa).isa, index).unpack(x)
            result = builder.emit_output(expr)
        builder.emit_func_output(result)
    return run_relax(builder.get(), [packed])[0]


def test_neighbouring_tiles_count_steps_of_kr() -> None:
    kernel = kernels(BEST)[0]
    tile = {"kernel": kernel.name, "rows": 2, "vectors": 1, "m_block": 8, "k_block": 10}
    steps = {found["k_block"] for found in neighbouring_tiles(tile, 8, 100)}
    assert steps == {10, 5, -(-100 // kernel.kr)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"inputs": 2}, "2 inputs, where the zero points are"),
        ({"a": "int32"}, "activations of type int32"),
        ({"a": "float32"}, "quantised by the kernel"),
        ({"zeros": Tensor((4,), "int32", True)}, "zero points of B"),
        ({"zeros": Tensor((5,), "int32")}, "zero points of B"),
        ({"zero": Tensor((3,), "uint8")}, "a zero point of A"),
        ({"attrs": {"a_zero_point": "dynamic"}}, "without its scale"),
    ],
    ids=str,
)
def test_what_it_does_not_build_has_a_reason(change: dict[str, Any], reason: str) -> None:
    region = matmul_region((3,), 8, 5, "uint8", "int8", "input", "input")
    assert MATMUL.reject(region, isa_named("avx512")) is None
    a, w, zero, zeros = region.inputs
    left = Tensor(a.shape, change.get("a", a.dtype))
    inputs = (left, w, change.get("zero", zero), change.get("zeros", zeros))
    broken = region.replace(
        inputs=inputs[: change.get("inputs", 4)], attrs={**region.attrs, **change.get("attrs", {})}
    )
    assert reason in str(MATMUL.reject(broken, isa_named("avx512")))
