"""bfloat16 products in the matmul template: every ISA, sizes around the tile, how A is rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from microkernels.isa import isa_named
from tests.examples import examples
from tests.relay_passes.graphs import compiled as compiled_relax
from tests.tir_schedules.bf16_products import TINY, exact, kernels, normal, rounded, small_integers
from tests.tir_schedules.run_region import BF16_ISAS, machine_for, run
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.product.matmul import MATMUL, MatmulConfig
from tvm_hybrid.runtime.feeds import BFLOAT16, array_of, tensor_of

pytestmark = pytest.mark.turns

BEST = BF16_ISAS[-1]
F, B = "float32", "bfloat16"
every_isa = pytest.mark.parametrize("isa", BF16_ISAS)


def matmul_region(lead: tuple[int, ...], k: int, n: int, dtype: str = F, **fields: Any) -> Region:
    """A [*lead, k] of some type times a bfloat16 weight."""
    return Region(
        op="matmul",
        inputs=(Tensor((*lead, k), dtype), Tensor((k, n), B, True)),
        output=fields.pop("output", Tensor((*lead, n), F)),
        **fields,
    )


def check(region: Region, isa: str = BEST, **options: Any) -> None:
    """Integers with exact sums in any order: equal to the bit."""
    rng = np.random.default_rng(0)
    a, w = (small_integers(rng, tensor.shape, tensor.dtype) for tensor in region.inputs)
    result = run(region, [a, w], isa, **options)
    np.testing.assert_array_equal(result, exact(a, w)[0])


@pytest.mark.sampled
@every_isa
@pytest.mark.parametrize("dtype", [F, B])
def test_sizes_around_the_tile_and_the_vector(isa: str, dtype: str) -> None:
    lanes, kernel = machine_for(isa).isa.f32_lanes, kernels(isa)[0]
    for m, n, k in [
        (max(1, kernel.mr - 1), max(1, kernel.nr - 1), 2 * lanes - 1),
        (kernel.mr, kernel.nr, 2 * lanes),
        (kernel.mr + 1, kernel.nr + 1, 2 * lanes + 1),
        (2, lanes + 15, 4),
    ]:
        for at_end in (False, True):
            check(matmul_region((m,), k, n, dtype), isa, at_end=at_end)


@pytest.mark.sampled
@every_isa
@pytest.mark.parametrize("dtype", [F, B])
def test_every_short_k_and_few_rows(isa: str, dtype: str) -> None:
    for k in range(1, 10):
        check(matmul_region((1 + k % 5,), k, 17, dtype), isa, at_end=k % 2 == 0)
    for n in (1, 15, 257):
        check(matmul_region((3,), 33, n, dtype), isa)


@st.composite
def blocked(draw: st.DrawFn, isa: str) -> tuple[Region, MatmulConfig, bool]:
    """A product of any size with any blocks."""
    sizes = (draw(st.integers(1, 40)),), draw(st.integers(1, 120)), draw(st.integers(1, 100))
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
    return matmul_region(*sizes, draw(st.sampled_from([F, B]))), config, draw(st.booleans())


@pytest.mark.sampled
@every_isa
def test_every_block_size_and_thread_grid(isa: str) -> None:
    @given(blocked(isa))
    @examples(20 if isa == BEST else 5)
    def any_of_them(drawn: tuple[Region, MatmulConfig, bool]) -> None:
        region, config, at_end = drawn
        check(region, isa, config=config, at_end=at_end)

    any_of_them()


@pytest.mark.sampled
@every_isa
@pytest.mark.parametrize("dtype", [F, B])
def test_sums_of_any_values_are_within_the_bound(isa: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    for m, k, n in [(7, 21, 35), (64, 64, 64), (3, 511, 33)]:
        a, w = normal(rng, (m, k), dtype), normal(rng, (k, n), B)
        result = run(matmul_region((m,), k, n, dtype), [a, w], isa)
        wanted, bound = exact(a, w)
        assert (np.abs(result - wanted) <= bound).all()


@every_isa
def test_a_is_rounded_to_nearest_even(isa: str) -> None:
    """With K = 1 and a weight of 1 the result is A as bfloat16; a subnormal one may become 0."""
    bits = np.array([0x3F80, 0x3F81, 0x7F7E, 0x0080, 0xC0FF], np.uint32)[:, None] << 16
    ties = bits + np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    special = np.array([np.inf, -np.inf, np.nan, 3.4e38, 0.0, 1e-40, TINY], F)
    a = np.concatenate([ties.reshape(-1).view(F), special])[:, None]
    result = run(matmul_region((len(a),), 1, 17), [a, np.ones((1, 17), BFLOAT16)], isa)
    wanted = np.broadcast_to(rounded(a), result.shape)
    same = (result == wanted) | (np.isnan(result) & np.isnan(wanted))
    assert (same | ((result == 0) & (np.abs(wanted) < TINY))).all()


@pytest.mark.sampled
@every_isa
def test_epilogue_reads_and_stores_bfloat16(isa: str) -> None:
    """bfloat16(relu(acc + bias)) + residual, both operands bfloat16, rounded after every cast."""
    m, k, n = 5, 9, 35
    steps = (
        EpilogueOp("add", (0, 1)),
        EpilogueOp("relu", (3,)),
        EpilogueOp("cast", (4,), dtype=B),
        EpilogueOp("add", (5, 2)),
        EpilogueOp("cast", (6,), dtype=B),
    )
    region = matmul_region(
        (m,), k, n, operands=(Tensor((n,), B), Tensor((m, n), B)), epilogue=steps,
        output=Tensor((m, n), B),
    )  # fmt: skip
    rng = np.random.default_rng(2)
    arrays = [small_integers(rng, t.shape, t.dtype) for t in region.inputs]
    arrays += [normal(rng, (n,), B), normal(rng, (m, n), B)]
    acc = exact(*arrays[:2])[0].astype(F)
    inner = np.maximum(acc + arrays[2].astype(F), 0).astype(BFLOAT16).astype(F)
    wanted = (inner + arrays[3].astype(F)).astype(BFLOAT16)
    for at_end in (False, True):
        result = run(region, arrays, isa, at_end=at_end)
        assert result.dtype == BFLOAT16
        np.testing.assert_array_equal(result.astype(F), wanted.astype(F))


def test_space_holds_the_default_and_only_legal_configs_that_build() -> None:
    region = matmul_region((50,), 70, 100)
    configs = list(MATMUL.space(region, machine_for(BEST, 2)))
    assert configs[0] == MATMUL.default_config(region, machine_for(BEST, 2))
    assert len(set(configs)) == len(configs) > 20
    for config in configs[:: len(configs) // 5]:
        check(region, config=config)


@every_isa
def test_what_is_packed_unpacks_to_the_same(isa: str) -> None:
    target_isa, kernel, packing = machine_for(isa).isa, kernels(isa)[0], MATMUL.packing
    assert packing is not None
    region = matmul_region((4,), 9, 5 * target_isa.f32_lanes + 3)
    weight = normal(np.random.default_rng(3), region.inputs[1].shape, B)
    default = MATMUL.default_config(region, machine_for(isa)).to_dict()
    config = MatmulConfig(
        **{**default, "kernel": kernel.name, "vectors": kernel.vectors, "threads_n": 2}
    )
    packed = packing(region, config, target_isa, 1).pack(weight)
    assert (packed.dtype, packed.shape) == (BFLOAT16, packing(region, config, target_isa, 1).shape)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(packed.shape, B))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(packing(region, config, target_isa, 1).unpack(x))
        builder.emit_func_output(result)
    unpacked = array_of(compiled_relax(builder.get())(tensor_of(packed)))
    np.testing.assert_array_equal(unpacked.astype(F), weight.astype(F))


def test_what_it_does_not_build_has_a_reason() -> None:
    isa = isa_named(BEST)
    assert "int8" in str(MATMUL.reject(matmul_region((3,), 4, 5, "int8"), isa))
    window = matmul_region((1, 9), 8, 5)
    window = window.replace(
        inputs=(window.inputs[0], Tensor((3, 8, 5), B, True)), attrs={"window": 3, "stride": 1}
    )
    assert "windows of type bfloat16" in str(MATMUL.reject(window, isa))
