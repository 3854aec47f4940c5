"""The matmul template: sizes around the tile, every ISA, operands of every kind, block sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm_ffi import structural_equal

from microkernels.base.errors import ConfigError
from microkernels.isa import isa_named
from tests.examples import examples
from tests.tir_schedules.dynamic_regions import DynamicKernel, dynamic_region
from tests.tir_schedules.run_region import (
    ISAS,
    bias_relu,
    expected,
    machine_for,
    product_bound,
    random_inputs,
    run,
)
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.product.matmul import MATMUL, MatmulConfig

any_rows = pytest.mark.parametrize("rows", ["static", "dynamic"])


def matmul_region(
    lead: tuple[int, ...],
    k: int,
    n: int,
    operands: tuple[Tensor, ...] = (),
    epilogue: tuple[EpilogueOp, ...] = (),
    dtype: str = "float32",
) -> Region:
    return Region(
        op="matmul",
        inputs=(Tensor((*lead, k), dtype), Tensor((k, n), "float32", True)),
        output=Tensor((*lead, n), "float32"),
        operands=operands,
        epilogue=epilogue,
    )


def run_rows(
    rows: str, region: Region, arrays: list[np.ndarray], isa: str, **options
) -> np.ndarray:
    """The result of a kernel with this static number of rows, or of a dynamic kernel."""
    if rows == "static":
        return run(region, arrays, isa, **options)
    sizes = dict(zip(("batch", "length"), region.inputs[0].shape[:-1], strict=False))
    return DynamicKernel(dynamic_region(region), isa).run(sizes, arrays, **options)


def check(region: Region, isa: str, rows: str = "static", **options) -> None:
    arrays = random_inputs(region)
    result = run_rows(rows, region, arrays, isa, **options)
    slack = 4 * np.finfo(np.float32).eps * np.abs(expected(region, arrays))
    assert (
        np.abs(result - expected(region, arrays)) <= product_bound(region, arrays) + slack
    ).all()


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("at_end", [False, True])
def test_tile_minus_one_tile_tile_plus_one(isa: str, at_end: bool) -> None:
    lanes = machine_for(isa).isa.f32_lanes
    default = MATMUL.default_config(matmul_region((64,), 64, 64), machine_for(isa))
    m, n = default.rows, default.vectors * lanes
    for rows, columns, k in [
        (m - 1, n - 1, 1),
        (m, n, 2),
        (m + 1, n + 1, 17),
        (2 * m, n + lanes, 5),
    ]:
        check(matmul_region((max(rows, 1),), k, columns), isa, at_end=at_end)


@pytest.mark.sampled
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5])
def test_skinny(m: int) -> None:
    for n in (1, 15, 16, 17, 255, 257):
        check(matmul_region((m,), 33, n), ISAS[-1])


@given(
    st.integers(1, 40), st.integers(1, 140), st.integers(1, 70), st.integers(1, 3), st.booleans()
)
@examples(25)
def test_random_shapes_with_bias_and_relu(
    m: int, n: int, k: int, threads: int, at_end: bool
) -> None:
    region = matmul_region((m,), k, n, (Tensor((n,), "float32"),), bias_relu())
    machine = machine_for(ISAS[-1], threads)
    config = MATMUL.default_config(region, machine)
    split = MatmulConfig(**{**config.to_dict(), "threads_m": threads, "threads_n": 2})
    check(region, ISAS[-1], at_end=at_end)
    check(region, ISAS[-1], config=split, at_end=at_end)


@given(st.data())
@examples(20)
def test_every_block_size_gives_the_same_result(data: st.DataObject) -> None:
    region = matmul_region((29,), 37, 83)
    config = MatmulConfig(
        kernel="avx512_f32_6x64" if ISAS[-1] == "avx512" else "scalar_f32_4x4",
        rows=data.draw(st.integers(1, 4)),
        vectors=data.draw(st.integers(1, 4 if ISAS[-1] == "avx512" else 1)),
        m_block=data.draw(st.integers(1, 40)),
        k_block=data.draw(st.integers(1, 40)),
        threads_m=data.draw(st.integers(1, 5)),
        threads_n=data.draw(st.integers(1, 8)),
        threads_k=data.draw(st.integers(1, 4)),
    )
    check(region, ISAS[-1], config=config)


OPERAND_SHAPES = [(), (1,), (37,), (3, 1), (2, 3, 37), (2, 1, 37), (1, 3, 1), (2, 3, 1), (3, 37)]


@pytest.mark.sampled
@pytest.mark.parametrize("shape", OPERAND_SHAPES, ids=str)
@pytest.mark.parametrize("isa", ISAS)
@any_rows
def test_operands_broadcast_as_in_numpy(rows: str, shape: tuple[int, ...], isa: str) -> None:
    region = matmul_region((2, 3), 9, 37, (Tensor(shape, "float32"),), (EpilogueOp("add", (0, 1)),))
    check(region, isa, rows)


@any_rows
def test_a_condition_selects_between_values(rows: str) -> None:
    region = matmul_region(
        (2, 5),
        8,
        33,
        (Tensor((5, 33), "bool"), Tensor((33,), "float32")),
        (
            EpilogueOp("constant", value=-2.0),
            EpilogueOp("multiply", (0, 3)),
            EpilogueOp("where", (1, 4, 2)),
        ),
    )
    check(region, ISAS[-1], rows)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float64", "float16", "bool"])
@any_rows
def test_activations_are_cast_on_the_way_in(rows: str, dtype: str) -> None:
    check(matmul_region((5,), 12, 20, dtype=dtype), ISAS[-1], rows)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float64", "float16"])
@pytest.mark.parametrize("isa", ISAS)
@any_rows
def test_the_result_is_cast_on_the_way_out(rows: str, dtype: str, isa: str) -> None:
    region = matmul_region((5,), 4, 37, dtype="uint8").replace(
        output=Tensor((5, 37), dtype), epilogue=(EpilogueOp("cast", (0,), dtype=dtype),)
    )
    arrays = random_inputs(region)
    arrays[1] = np.sign(arrays[1])  # small integers: every type holds the result exactly
    if dtype == "uint8":
        arrays[1] = np.abs(arrays[1])
    result = run_rows(rows, region, arrays, isa)
    np.testing.assert_array_equal(result, expected(region, arrays))


def test_space_holds_the_default_and_only_legal_configs_that_build() -> None:
    region = matmul_region((50,), 40, 100)
    machine = machine_for(ISAS[-1], 2)
    configs = list(MATMUL.space(region, machine))
    assert configs[0] == MATMUL.default_config(region, machine)
    assert len(set(configs)) == len(configs) > 20
    for config in configs[:: len(configs) // 6]:
        check(region, ISAS[-1], config=config)


def test_block_sizes_change_the_code() -> None:
    region = matmul_region((50,), 40, 100)
    machine = machine_for(ISAS[-1])
    default = MATMUL.default_config(region, machine)
    halved = MatmulConfig(**{**default.to_dict(), "k_block": 20})
    built = [MATMUL.build(region, config, machine.isa) for config in (default, halved)]
    assert not structural_equal(*built)


@pytest.mark.parametrize(
    ("field", "value"), [("rows", 7), ("rows", 0), ("vectors", 5), ("k_block", 0), ("threads_n", 0)]
)
def test_illegal_configs_are_refused(field: str, value: int) -> None:
    region = matmul_region((50,), 40, 100)
    config = MatmulConfig(kernel="avx512_f32_6x64", rows=6, vectors=4, m_block=50, k_block=40)
    fields = {**config.to_dict(), field: value}
    with pytest.raises(ConfigError, match=f"{field}={value}"):
        MATMUL.build(region, MatmulConfig(**fields), isa_named("avx512"))
    with pytest.raises(ConfigError, match="needs avx512"):
        MATMUL.build(region, config, isa_named("avx2"))


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize(("rows", "fetched"), [(1, False), (8, True), (512, False)])
def test_the_next_panel_is_fetched_where_few_rows_pass_over_this_one(
    isa: str, rows: int, fetched: bool
) -> None:
    machine = machine_for(isa)
    region = matmul_region((rows,), 256, 256)
    kernel = MATMUL.build(region, MATMUL.default_config(region, machine), machine.isa)
    assert ("tvm_hybrid_prefetch" in str(kernel.body)) == fetched


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("rows", "k", "n"), [(8, 40, 70), (27, 40, 70), (32, 264, 270)])
def test_what_is_fetched_beyond_the_weight_is_never_read(
    isa: str, rows: int, k: int, n: int
) -> None:
    check(matmul_region((rows,), k, n), isa, at_end=True)


def test_what_it_does_not_build_has_a_reason() -> None:
    isa = isa_named("avx512")
    assert MATMUL.reject(matmul_region((4,), 4, 4), isa) is None
    assert "complex64" in str(MATMUL.reject(matmul_region((4,), 4, 4, dtype="complex64"), isa))
    assert "0" in str(MATMUL.reject(matmul_region((0,), 4, 4), isa))
