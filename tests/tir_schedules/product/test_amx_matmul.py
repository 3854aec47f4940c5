"""The matmul template on AMX tiles: types, zero points, sizes, blocks, epilogues, threads.

Results equal the definition, integers to the bit; every test ends without a fault of a tile
instruction and without a configured thread (tests/conftest.py).
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from microkernels.base.errors import ConfigError
from tests.amx_emulator import emulator
from tests.examples import examples
from tests.onnx_reference.arithmetic import dynamic_quantize, quantize, quantized
from tests.tir_schedules.bf16_products import exact, normal, rounded, small_integers
from tests.tir_schedules.integer_regions import TYPES, matmul_region, product, values
from tests.tir_schedules.on_tiles import BLOCKS, counted, cut_in_any_way, kernel_of, on_tiles
from tests.tir_schedules.run_region import run
from tir_schedules.core.product_plan import TileConfig
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.product.matmul import MATMUL, MatmulConfig
from tvm_hybrid.runtime.feeds import BFLOAT16

from .test_bf16_matmul import matmul_region as bf16_region
from .test_integer_matmul import A_ZEROS, W_ZEROS, unpack
from .test_quantizing_matmul import awkward, requantizing

pytestmark = pytest.mark.isa("amx")
F, B = "float32", "bfloat16"
ZEROS = list(itertools.product(A_ZEROS, W_ZEROS))


def result_of(
    region: Region, arrays: list[np.ndarray], config: TileConfig, **options: Any
) -> np.ndarray:
    """The kernel's output, computed by tiles."""
    emulator.reset()
    result = run(region, arrays, "amx", config, **options)
    executed = emulator.counts()
    assert executed is None or executed[counted(config)] > 0
    return result


def check(region: Region, config: TileConfig | None = None, **options: Any) -> None:
    """Integers equal the definition; sums of small bfloat16 are exact."""
    config = config or on_tiles(region)
    if region.inputs[1].dtype == B:
        rng = np.random.default_rng(0)
        arrays = [small_integers(rng, tensor.shape, tensor.dtype) for tensor in region.inputs]
        wanted = exact(*arrays)[0]
    else:
        arrays = values(region)
        wanted = product(region, arrays)
    np.testing.assert_array_equal(result_of(region, arrays, config, **options), wanted)


@pytest.mark.parametrize(("a", "w"), TYPES)
def test_types_and_zero_points(a: str, w: str) -> None:
    """Zero points: numbers, at run time, of a range, per column; 16 x 64 blocks, then 32 x 32."""
    number = TYPES.index((a, w))
    for a_zero, w_zero in ZEROS[number % 2 :: 2]:
        if (a, a_zero) != ("int8", "range"):  # the zero point of a range is uint8
            block = BLOCKS[ZEROS.index((a_zero, w_zero)) // 2 % 2]
            region = matmul_region((19,), 70, 37, a, w, a_zero, w_zero)
            check(region, on_tiles(region, block), at_end=number < 2)


@pytest.mark.parametrize("rows", [range(1, 12), range(12, 23), range(23, 34)], ids=str)
def test_every_height(rows: range) -> None:
    for m in rows:
        region = matmul_region((m,), 128, 16, "int8", "uint8", 0, 0)
        check(region, on_tiles(region, BLOCKS[m % 2]), at_end=m % 3 == 0)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["u8", "s8", F, B])
@pytest.mark.parametrize("block", BLOCKS)
def test_sizes_around_the_tile(kind: str, block: str) -> None:
    """Tails of rows, columns and K, with A read in place, in part, or from a copy."""
    for number, (m, n, k) in enumerate(
        [(33, 33, 65), (17, 65, 128), (49, 15, 63), (65, 80, 1), (2, 31, 192), (64, 1, 130)]
    ):
        if kind in (F, B):
            region = bf16_region((m,), k, n, kind)
        else:
            a, w = ("uint8", "int8") if kind == "u8" else ("int8", "int8")
            region = matmul_region((m,), k, n, a, w, *((0, 0), (3, "input"))[number % 2])
        check(region, on_tiles(region, block), at_end=number % 2 == 0)


@pytest.mark.parametrize(("a", "w"), TYPES)
def test_extreme_values_never_saturate(a: str, w: str) -> None:
    left, right = np.iinfo(a), np.iinfo(w)
    region = matmul_region((2,), 260, 18, a, w, left.min, right.max)
    for x, y in itertools.product((left.min, left.max), (right.min, right.max)):
        arrays = [np.full((2, 260), x, a), np.full((260, 18), y, w)]
        wanted = product(region, arrays)
        np.testing.assert_array_equal(result_of(region, arrays, on_tiles(region)), wanted)


@pytest.mark.parametrize("dtype", [F, B])
@pytest.mark.parametrize("block", BLOCKS)
def test_sums_of_any_bfloat16_are_within_the_bound(dtype: str, block: str) -> None:
    """The bound holds for any order: even and odd products of 32 each are added last."""
    rng = np.random.default_rng(1)
    for m, k, n in [(7, 21, 35), (64, 64, 64), (3, 511, 33)]:
        a, w = normal(rng, (m, k), dtype), normal(rng, (k, n), B)
        region = bf16_region((m,), k, n, dtype)
        result = result_of(region, [a, w], on_tiles(region, block))
        wanted, bound = exact(a, w)
        assert (np.abs(result - wanted) <= bound).all()


def test_a_is_rounded_to_nearest_even() -> None:
    bits = np.array([0x3F80, 0x3F81, 0x7F7E, 0x0080, 0xC0FF], np.uint32)[:, None] << 16
    ties = bits + np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    special = np.array([np.inf, -np.inf, np.nan, 3.4e38, 0.0], F)
    a = np.concatenate([ties.reshape(-1).view(F), special])[:, None]
    region = bf16_region((len(a),), 1, 17)
    result = result_of(region, [a, np.ones((1, 17), BFLOAT16)], on_tiles(region))
    np.testing.assert_array_equal(result, np.broadcast_to(rounded(a), result.shape))


@pytest.mark.parametrize("a", ["uint8", "int8"])
def test_the_kernel_quantises_a(a: str) -> None:
    cases: list[tuple[float, int, int, int | str]] = [
        (0.0375, 3, 13, 0),
        (0.25, 0, 64, "input"),
        (3e-5, 101, 131, 2),
    ]
    for (scale, a_zero, k, w_zero), block in zip(cases, itertools.cycle(BLOCKS)):
        region = matmul_region((18,), k, 19, a, "uint8", a_zero, w_zero, quantized=scale)
        arrays = [awkward(scale, (18, k)), *values(region)[1:]]
        result = result_of(region, arrays, on_tiles(region, block))
        np.testing.assert_array_equal(result, product(region, arrays))


def test_the_kernel_quantises_a_by_a_range() -> None:
    region = matmul_region((33,), 77, 19, "uint8", "int8", "range", "input", quantized="range")
    for scale, zero in [(0.0375, 0), (1e30, 128)]:
        arrays = values(region)
        arrays[0] = awkward(scale, (33, 77))
        arrays[2] = np.array([scale, zero], F)
        result = result_of(region, arrays, on_tiles(region, k_block=16))
        np.testing.assert_array_equal(result, product(region, arrays))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_kernel_finds_the_range_of_a(threads: int) -> None:
    """DynamicQuantizeLinear, the product, and the scales."""
    steps = (
        EpilogueOp("cast", (0,)),
        EpilogueOp("range", (), value=0),
        EpilogueOp("multiply", (3, 1)),
        EpilogueOp("multiply", (2, 4)),
    )
    region = matmul_region(
        (34,), 70, 33, "uint8", "int8", "dynamic", "input", quantized="dynamic",
        operands=(Tensor((33,), F),), epilogue=steps, output=Tensor((34, 33), F),
    )  # fmt: skip
    arrays = values(region)
    _, scale, _ = dynamic_quantize(arrays[0])
    total = product(region, arrays).astype(np.float32)
    config = on_tiles(region, threads_m=threads, m_block=20)
    result = result_of(region, arrays, config, threads=threads)
    np.testing.assert_array_equal(result, total * (scale * arrays[-1]))


@pytest.mark.parametrize(("dtype", "residual"), TYPES)
def test_requantising_with_a_quantised_residual(dtype: str, residual: str) -> None:
    m, k, n = 35, 90, 47
    region = matmul_region(
        (m,), k, n, "int8", "int8", 3, "input",
        operands=(Tensor((n,), F), Tensor((m, n), residual)), epilogue=requantizing(dtype),
        output=Tensor((m, n), dtype),
    )  # fmt: skip
    arrays = values(region)
    scales = np.abs(arrays[-2]) / np.float32(400)
    arrays[-2] = scales
    real = product(region, arrays).astype(np.float32) * scales
    real = real + quantized(arrays[-1], 0.37, np.array(12, residual)).real()
    wanted = quantize(real, 1.75, np.array(-5 if dtype == "int8" else 101, dtype))
    assert len(np.unique(wanted)) > 3  # not all results saturate
    np.testing.assert_array_equal(result_of(region, arrays, on_tiles(region)), wanted)


@pytest.mark.parametrize("block", BLOCKS)
def test_bias_relu_and_residual_in_bfloat16(block: str) -> None:
    """bfloat16(relu(acc + bias)) + residual, rounded after every cast."""
    m, k, n = 37, 100, 67
    steps = (
        EpilogueOp("add", (0, 1)),
        EpilogueOp("relu", (3,)),
        EpilogueOp("cast", (4,), dtype=B),
        EpilogueOp("add", (5, 2)),
        EpilogueOp("cast", (6,), dtype=B),
    )
    region = bf16_region(
        (m,), k, n, B, operands=(Tensor((n,), B), Tensor((m, n), B)), epilogue=steps,
        output=Tensor((m, n), B),
    )  # fmt: skip
    rng = np.random.default_rng(2)
    arrays = [small_integers(rng, t.shape, t.dtype) for t in region.inputs]
    arrays += [normal(rng, (n,), B), normal(rng, (m, n), B)]
    acc = exact(*arrays[:2])[0].astype(F)
    inner = np.maximum(acc + arrays[2].astype(F), 0).astype(BFLOAT16).astype(F)
    wanted = (inner + arrays[3].astype(F)).astype(BFLOAT16)
    result = result_of(region, arrays, on_tiles(region, block, k_block=16))
    np.testing.assert_array_equal(result.astype(F), wanted.astype(F))


def test_a_long_epilogue() -> None:
    """A long epilogue loops over a tile's rows and equals the epilogue on the integers."""
    steps = (
        EpilogueOp("cast", (0,)),
        EpilogueOp("constant", value=2.0**-12),
        EpilogueOp("multiply", (1, 2)),
        EpilogueOp("gelu", (3,)),
        EpilogueOp("constant", value=0.05),
        EpilogueOp("constant", value=128.0),
        EpilogueOp("quantize", (4, 5, 6), dtype="uint8"),
    )
    output = Tensor((21, 35), "uint8")
    region = matmul_region((21,), 40, 35, "uint8", "uint8", 120, 128, epilogue=steps, output=output)
    arrays = values(region)
    total = product(region, arrays).astype(np.int32)
    alone = Region(
        op="elementwise", inputs=(Tensor((21, 35), "int32"),), output=output, epilogue=steps
    )
    result = result_of(region, arrays, on_tiles(region))
    np.testing.assert_array_equal(result, run(alone, [total], "avx512"))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_each_task_configures_for_itself(threads: int) -> None:
    """Chunks of rows end in tails; each height is configured once, and released once per task."""
    region = matmul_region((100,), 128, 200, "int8", "uint8", "input", "input")
    config = on_tiles(region, threads_m=threads, m_block=32)
    check(region, config, threads=threads)
    executed = emulator.counts()
    if executed is not None:
        heights = [len({32 if m >= 32 else m, m % 32 or 32}) for m in shares_of(100, threads)]
        assert executed["ldtilecfg"] == sum(heights)
        assert executed["tilerelease"] == threads


def shares_of(m: int, threads: int) -> list[int]:
    """Rows of every thread; of unequal chunks the larger ones come first."""
    return [m // threads + (i < m % threads) for i in range(threads)]


def test_rows_of_several_dimensions() -> None:
    check(matmul_region((2, 3, 7), 64, 20, "int8", "int8", "input", 2))
    check(bf16_region((3, 11), 64, 48, B))


@st.composite
def products(draw: st.DrawFn) -> Region:
    """A product of any size and kind."""
    m, n, k = draw(st.integers(1, 80)), draw(st.integers(1, 100)), draw(st.integers(1, 300))
    if draw(st.integers(0, 3)) == 0:
        return bf16_region((m,), k, n, draw(st.sampled_from([F, B])))
    a, w = draw(st.sampled_from(TYPES))
    a_zero = draw(st.sampled_from(A_ZEROS[: 3 if a == "int8" else 4]))
    return matmul_region((m,), k, n, a, w, a_zero, draw(st.sampled_from(W_ZEROS)))


@given(st.data(), products(), st.booleans())
@examples(25)
def test_any_product_cut_in_any_way(data: st.DataObject, region: Region, at_end: bool) -> None:
    check(region, data.draw(cut_in_any_way(region)), at_end=at_end)


@pytest.mark.parametrize("w", ["uint8", "int8", B])
def test_what_is_packed_unpacks_to_the_same(w: str) -> None:
    """Weight and terms of zero points per column, for panels of unequal width."""
    region = (
        bf16_region((4,), 40, 83) if w == B else matmul_region((4,), 70, 83, "int8", w, 4, "input")
    )
    packing, isa = MATMUL.packing, kernel_of(region, "32x32").isa
    assert packing is not None
    arrays = [normal(np.random.default_rng(3), (40, 83), B)] if w == B else values(region)[1:]
    for vectors, threads_n in [(2, 2), (1, 3)]:
        config = on_tiles(region, vectors=vectors, threads_n=threads_n)
        assert isinstance(config, MatmulConfig)
        for index, array in enumerate(arrays, 1):
            packed = packing(region, config, isa, index).pack(array)
            unpacked = unpack(region, config, "amx", index, packed)
            np.testing.assert_array_equal(unpacked, array)


def test_kernels_of_other_types_are_refused() -> None:
    """Vector kernels multiply u8 by s8 whatever the signs are; tiles shift no operand."""
    region = matmul_region((4,), 40, 83, "uint8", "uint8")
    isa = kernel_of(region, "32x32").isa
    default = on_tiles(region, rows=1).to_dict()

    def build(kernel: str) -> None:
        MATMUL.build(region, MatmulConfig.from_dict({**default, "kernel": kernel}), isa)

    for name in ("amx_s8u8s32_32x32", "amx_bf16_32x32", "avx512_f32_6x64"):
        with pytest.raises(ConfigError, match=f"{name} multiplies .*, not uint8 by uint8"):
            build(name)
    build("avx512_vnni_u8s8s32_6x64")
