"""The template of depthwise convolution: every mode, edge, ISA and tile, between guard pages."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from microkernels.base.errors import ConfigError
from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tests.examples import examples
from tests.relay_passes.graphs import run as run_relax
from tests.tir_schedules.conv_regions import check, conv_region, values
from tests.tir_schedules.depthwise_regions import DTYPES, ISAS_OF, cases, config_for, depthwise
from tests.tir_schedules.run_region import ISAS, bias_relu, expected, machine_for, run
from tir_schedules.convolution.depthwise.config import (
    DepthwiseConfig,
    DepthwiseProblem,
    default_config,
)
from tir_schedules.convolution.depthwise.depthwise_conv2d import DEPTHWISE_CONV2D, WHY_VECTORS
from tir_schedules.convolution.depthwise.direct import Strip, strips
from tir_schedules.convolution.depthwise.staged import Groups
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.cost.amx_cost import why_vectors

pytestmark = pytest.mark.turns

BEST = {dtype: isas[-1] for dtype, isas in ISAS_OF.items()}
ALL = (1, 1, 1, 1)


@examples(30)
@given(cases(DTYPES), st.booleans())
def test_any_convolution_by_any_tile(case: tuple[Region, dict[str, int]], at_end: bool) -> None:
    region, fields = case
    isa = BEST[region.inputs[0].dtype]
    check(region, isa, config_for(region, isa, **fields), at_end=at_end)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_isa(dtype: str) -> None:
    """Tails of channels, for most ISAs after whole blocks; two rows, three blocks of rows."""
    zero = {"a_zero_point": 3} if "int8" in dtype else {}
    for isa in ISAS_OF[dtype]:
        region = depthwise((5, 4), 19, (3, 3), padding=ALL, dtype=dtype, **zero)
        check(region, isa, config_for(region, isa, rows=2, columns=2))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
def test_edge_sizes(dtype: str) -> None:
    """Images of one pixel, kernels larger than the image, few and odd channels."""
    zero = {"a_zero_point": 11} if "int8" in dtype else {}
    for (extents, kernel, padding), channels in itertools.product(
        [((1, 1), (1, 1), (0, 0, 0, 0)), ((1, 1), (3, 3), ALL), ((2, 3), (5, 7), (2, 3, 2, 3))],
        (1, 17),
    ):
        region = depthwise(extents, channels, kernel, padding=padding, dtype=dtype, **zero)
        check(region, BEST[dtype])


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_windows_that_lie_outside_altogether(dtype: str) -> None:
    zero = {"a_zero_point": 7} if dtype == "uint8" else {}
    region = depthwise((3, 3), 20, (2, 2), padding=(4, 5, 3, 4), dtype=dtype, **zero)
    check(region, BEST[dtype])
    check(region, BEST[dtype], config_for(region, BEST[dtype], rows=3, columns=2))


def test_the_first_tap_of_a_dilated_window_inside() -> None:
    """A window that begins one row above the image skips one tap of each column.

    With one tap more, the last row of the first image would be multiplied for the second image.
    """
    region = depthwise((9, 9), 17, (3, 3), padding=ALL, dilation=(2, 2), batch=2)
    check(region, "avx2", config_for(region, "avx2", rows=1))


def test_pixels_outside_are_not_multiplied() -> None:
    """An infinite pixel reaches only its neighbours."""
    region = depthwise((5, 5), 17, (3, 3), padding=ALL)
    arrays = values(region)
    arrays[0][0, 0, 0] = np.inf
    for rows in (1, 2):
        result = run(region, arrays, ISAS[-1], config_for(region, ISAS[-1], rows=rows))
        reached = np.zeros((5, 5), bool)
        reached[:2, :2] = True
        np.testing.assert_array_equal(np.isinf(result[0]).all(axis=-1), reached)
        assert np.isfinite(result[0][~reached]).all()


@pytest.mark.parametrize("dtype", ["float32", "uint8", "bfloat16"])
def test_threads_share_rows_of_channels(dtype: str) -> None:
    """Some threads begin in the middle of an image."""
    region = depthwise((7, 4), 70, (3, 3), padding=ALL, batch=2, dtype=dtype)
    config = config_for(region, BEST[dtype], rows=2, columns=2, blocks=2, threads=5)
    check(region, BEST[dtype], config, threads=5)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("kind", ["input", "range"])
def test_zero_points_at_run_time(dtype: str, kind: str) -> None:
    if (dtype, kind) == ("int8", "range"):
        region = depthwise((5, 4), 18, (3, 3), dtype=dtype, a_zero_point=kind)
        region = region.replace(inputs=(*region.inputs, Tensor((2,), "float32")))
        assert "range" in str(DEPTHWISE_CONV2D.reject(region, isa_named(BEST[dtype])))
        return
    further = Tensor((2,), "float32") if kind == "range" else Tensor((), dtype)
    region = depthwise(
        (5, 4), 18, (3, 3), padding=ALL, dtype=dtype, inputs=(further,), a_zero_point=kind
    )
    for zero in (np.iinfo(dtype).min, np.iinfo(dtype).max, 3):
        arrays = values(region)
        arrays[2] = np.array([0.1, zero], "float32") if kind == "range" else np.array(zero, dtype)
        result = run(region, arrays, BEST[dtype])
        np.testing.assert_array_equal(result, expected(region, arrays))


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_extreme_integers(dtype: str) -> None:
    """The largest sums, to the bit, on every instruction set: no 16-bit step may saturate."""
    limits = np.iinfo(dtype)
    region = depthwise((4, 4), 18, (5, 3), padding=ALL, dtype=dtype, a_zero_point=limits.max)
    arrays = values(region)
    arrays[0][:, :, ::2], arrays[0][:, :, 1::2] = limits.min, limits.max
    arrays[1][...] = -128
    arrays[1][..., ::2] = 127
    for isa in ISAS_OF[dtype]:
        np.testing.assert_array_equal(run(region, arrays, isa), expected(region, arrays))


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_x_is_quantised_on_the_way(dtype: str) -> None:
    region = depthwise(
        (5, 6), 21, (3, 3), padding=ALL, dtype="float32", weight="int8",
        a_quantize=dtype, a_scale=0.02, a_zero_point=11,
    )  # fmt: skip
    check(region, BEST[dtype])


def test_x_is_rounded_to_bfloat16() -> None:
    region = depthwise((5, 6), 37, (3, 3), padding=ALL, dtype="float32", weight="bfloat16")
    for isa in ISAS_OF["bfloat16"][-2:]:
        check(region, isa)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 2])
def test_epilogue_with_residual(dtype: str, rows: int) -> None:
    residual = Tensor((2, 5, 6, 21), "float32")
    region = depthwise(
        (5, 6), 21, (3, 3), padding=ALL, dtype=dtype, batch=2,
        operands=(Tensor((21,), "float32"), residual),
        epilogue=(EpilogueOp("add", (0, 1)), EpilogueOp("add", (3, 2)), EpilogueOp("relu", (4,))),
    )  # fmt: skip
    check(region, BEST[dtype], config_for(region, BEST[dtype], rows=rows))


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16"])
def test_a_ring_without_margins_is_kept_beside_what_tiles_store(dtype: str) -> None:
    """Tiles pass through a buffer of their own if the epilogue's factor comes from an input."""
    cast = (EpilogueOp("cast", (0,), dtype="float32"),) if dtype == "uint8" else ()
    region = depthwise(
        (9, 4), 2, (3, 3), dtype=dtype, operands=(Tensor((1, 1, 1, 1), "float32"),),
        epilogue=(*cast, EpilogueOp("divide", (2 if cast else 0, 1))), output="float32",
    )  # fmt: skip
    for isa in ISAS_OF[dtype]:
        check(region, isa, config_for(region, isa, rows=1, columns=2))


def test_a_long_epilogue_and_one_factor_for_each_channel_of_a_sample() -> None:
    """acc * gate, then tanh: each is within two roundings and 4 ulp of its exact value."""
    region = depthwise(
        (5, 6), 21, (3, 3), padding=ALL, batch=2, operands=(Tensor((2, 1, 1, 21), "float32"),),
        epilogue=(EpilogueOp("multiply", (0, 1)), *[EpilogueOp("tanh", (i,)) for i in range(2, 4)]),
    )  # fmt: skip
    for rows in (1, 2):
        arrays = values(region)
        result = run(region, arrays, ISAS[-1], config_for(region, ISAS[-1], rows=rows))
        # tanh has slope 1 at most; 10 roundings of sums of 9 products below 40.
        np.testing.assert_allclose(result, expected(region, arrays), rtol=0, atol=40 * 10 * 2**-23)


@pytest.mark.sampled
@pytest.mark.parametrize("channels", [32, 64, 80, 70])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_integers_out(dtype: str, channels: int) -> None:
    """Results are scaled, quantised and stored as bytes; whole vectors are packed."""
    steps = (
        EpilogueOp("cast", (0,)),
        EpilogueOp("multiply", (2, 1)),
        EpilogueOp("constant", value=0.5),
        EpilogueOp("constant", value=4.0),
        EpilogueOp("quantize", (3, 4, 5), dtype=dtype),
    )
    region = depthwise(
        (4, 5), channels, (3, 3), padding=ALL, dtype=dtype, output=dtype, a_zero_point=9,
        operands=(Tensor((channels,), "float32"),), epilogue=steps,
    )  # fmt: skip
    arrays = values(region)
    arrays[2] = np.abs(arrays[2]) * np.float32(1e-3)
    # In float32 as the single operators compute: an integer sum, scaled, divided.
    total = DEPTHWISE_CONV2D.reference(region, arrays[:2]).astype(np.float32)
    quotient = np.rint(total * arrays[2] / np.float32(0.5)) + 4
    wanted = np.clip(quotient, np.iinfo(dtype).min, np.iinfo(dtype).max)
    np.testing.assert_array_equal(run(region, arrays, BEST[dtype]), wanted)


def test_one_axis_and_a_single_row_are_columns() -> None:
    """Taps of such windows share a loop or interleave; they are not unrolled."""
    for extents, kernel, padding in [((40,), (31,), (15, 15)), ((1, 40), (1, 31), (0, 15, 0, 15))]:
        for dtype in ("float32", "uint8"):
            region = depthwise(
                extents, 18, kernel, padding=padding, dtype=dtype,
                operands=(Tensor((18,), "float32"),) if dtype == "float32" else (),
                epilogue=bias_relu() if dtype == "float32" else (),
            )  # fmt: skip
            problem = DepthwiseProblem.of(region)
            assert (problem.rows.taps, problem.columns.taps) == (31, 1)
            check(region, BEST[dtype])


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2])
def test_unpacking_gives_the_weight(dtype: str, rows: int) -> None:
    zero = {"a_zero_point": 3} if "int8" in dtype else {}
    region = depthwise((9, 5), 38, (5, 2), dtype=dtype, **zero)
    config, isa = config_for(region, BEST[dtype], rows=rows), isa_named(BEST[dtype])
    packing, weight = DEPTHWISE_CONV2D.packing, values(region)[1]
    assert packing is not None
    array = packing(region, config, isa, 1).pack(weight)
    assert array.shape == packing(region, config, isa, 1).shape and array.dtype == weight.dtype
    builder = relax.BlockBuilder()
    w = relax.Var("w", relax.TensorType(array.shape, str(array.dtype)))
    with builder.function("main", [w]):
        builder.emit_func_output(builder.emit(packing(region, config, isa, 1).unpack(w)))
    np.testing.assert_array_equal(run_relax(builder.get(), [array])[0], weight)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_the_space_is_legal(dtype: str) -> None:
    """Every configuration packs a weight and passes the check; a few run."""
    region = depthwise((7, 7), 40, (3, 3), padding=ALL, dtype=dtype)
    machine = machine_for(BEST[dtype], threads=2)
    found = list(DEPTHWISE_CONV2D.space(region, machine))
    assert len(found) == len(set(found)) > 8
    assert found[0] == default_config(region, machine)
    assert DEPTHWISE_CONV2D.packing is not None
    for config in found:
        assert DEPTHWISE_CONV2D.packing(region, config, machine.isa, 1).shape
    for config in found[:: max(1, len(found) // 3)]:
        check(region, BEST[dtype], config)


def test_defaults_follow_the_image() -> None:
    """Two rows if the image is larger than L2; threads if there is enough work."""
    machine = Machine("znver4", isa_named("avx512"), 2)
    large = default_config(depthwise((112, 112), 96, (3, 3), padding=ALL), machine)
    small = default_config(depthwise((7, 7), 96, (3, 3), padding=ALL), machine)
    assert (large.rows, large.vectors, large.threads) == (2, 1, 2)
    assert (small.rows, small.columns, small.threads) == (1, 7, 1)
    wide = default_config(depthwise((40, 40), 8, (31, 31), padding=(15,) * 4), machine)
    assert wide.columns > 1


def test_two_fmas_a_cycle_take_channels_in_pairs() -> None:
    """Small windows do, in tiles of two rows if images exceed L2; large windows do not."""
    machine = Machine("emeraldrapids", isa_named("avx512"))

    def numbers(size: int, channels: int, taps: int = 3) -> tuple[int, ...]:
        region = depthwise((size, size), channels, (taps, taps), padding=(taps // 2,) * 4)
        found = default_config(region, machine)
        return found.rows, found.columns, found.vectors, found.blocks

    assert numbers(112, 96) == (2, 2, 2, 3)
    assert numbers(56, 96) == numbers(14, 72) == (1, 7, 2, 3)
    assert numbers(14, 8) == (1, 7, 1, 1)
    assert numbers(56, 96, taps=5) == (1, 14, 1, 1)


def test_pairs_are_computed_one_after_the_other_where_l1_keeps_their_rows() -> None:
    """Not if pixels share sets of L1, nor if rows come from beyond a slow cache."""

    def blocks(name: str, size: int, channels: int, stride: int = 1, threads: int = 1) -> int:
        window = {"padding": ALL, "strides": (stride, stride)}
        region = depthwise((size, size), channels, (3, 3), **window)
        return default_config(region, Machine(name, isa_named("avx512"), threads)).blocks

    measured = [(56, 144, 1), (28, 192, 1), (28, 192, 2), (14, 384, 1), (14, 480, 1), (7, 960, 1)]
    assert {blocks("znver5", *shape) for shape in measured} == {1}
    assert (blocks("znver5", 56, 128), blocks("znver5", 28, 256)) == (4, 8)
    assert (blocks("znver5", 14, 512), blocks("znver5", 112, 96, 2)) == (16, 3)
    assert (blocks("emeraldrapids", 56, 144), blocks("emeraldrapids", 14, 480)) == (5, 1)
    # Threads write next to each other: only if the bytes a tile reads exceed L1.
    wide, narrow = [(14, 480), (14, 672), (7, 960)], [(28, 144), (56, 72), (56, 144)]
    assert {blocks("znver5", *shape, threads=2) for shape in wide} == {1}
    assert {blocks("znver5", *shape, threads=2) for shape in narrow} == {5, 3}


def test_an_odd_number_of_vectors_in_the_outer_loop_has_no_pairs() -> None:
    """144, 176 and 240 channels are 9, 11 and 15 vectors; tiles of two rows take one of them."""

    def tile(channels: int, size: int = 56) -> tuple[int, int, int]:
        region = depthwise((size, size), channels, (3, 3), padding=ALL)
        found = default_config(region, Machine("znver5", isa_named("avx512")))
        return found.rows, found.vectors, found.blocks

    assert {tile(channels) for channels in (144, 176, 240)} == {(2, 1, 1)}
    assert tile(160) == (2, 2, 1)
    assert tile(144, size=28) == (1, 2, 1)


def test_half_registers_take_all_channels_of_a_tile() -> None:
    """AVX2: two rows for small windows; threads split channels only if blocks of rows are few."""

    def config(height: int, window: int, threads: int) -> DepthwiseConfig:
        region = depthwise((height, 56), 96, (window, window), padding=(window // 2,) * 4)
        machine = Machine("znver3", isa_named("avx2"), threads).with_numbers(fork_us=0)
        return default_config(region, machine)

    assert config(56, 3, 2).to_dict() == {
        "rows": 2, "columns": 4, "vectors": 1, "blocks": 12, "threads": 2
    }  # fmt: skip
    assert config(56, 5, 2).to_dict() == {
        "rows": 1, "columns": 7, "vectors": 1, "blocks": 12, "threads": 2
    }  # fmt: skip
    assert config(2, 3, 1).blocks == 12
    assert config(8, 3, 2).blocks == 6
    assert config(2, 3, 16).blocks == 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rows": 0}, "rows=0"),
        ({"columns": 8}, "columns=8"),
        ({"vectors": 4}, "vectors=4"),
        ({"blocks": 9}, "blocks=9"),
        ({"threads": 0}, "threads=0"),
    ],
)
def test_illegal_configurations_are_refused(fields: dict[str, int], message: str) -> None:
    region = depthwise((7, 7), 40, (3, 3), padding=ALL)
    config = config_for(region, "avx512", **fields)
    with pytest.raises(ConfigError, match=message):
        DEPTHWISE_CONV2D.build(region, config, isa_named("avx512"))


def test_tiles_that_cannot_be_built_are_refused() -> None:
    apart = depthwise((9, 9), 40, (3, 3), dilation=(2, 2))
    with pytest.raises(ConfigError, match="taps that lie apart"):
        DEPTHWISE_CONV2D.build(apart, config_for(apart, "avx512", rows=2), isa_named("avx512"))
    large = depthwise((64, 64), 40, (31, 31), padding=(15,) * 4)
    with pytest.raises(ConfigError, match="products, more than"):
        DEPTHWISE_CONV2D.build(
            large, config_for(large, "avx512", rows=4, columns=16), isa_named("avx512")
        )


@pytest.mark.parametrize(
    ("region", "reason"),
    [
        (conv_region((5, 5), 4, 8, (3, 3), groups=4), "4 groups, 4 channels of x and 8"),
        (conv_region((5, 5), 4, 4, (3, 3), groups=2), "2 groups"),
        (conv_region((5, 5, 5), 4, 4, (3, 3, 3), groups=4), "3 axes"),
        (depthwise((2, 2), 4, (3, 3)), "dimension is 0"),
        (depthwise((40, 40), 4, (3, 40)), "a kernel of 3 by 40"),
        (depthwise((5, 5), 4, (3, 3), dtype="uint8", b_zero_point=3), "zero point of the weight"),
        (depthwise((5, 5), 4, (3, 3), dtype="float32", weight="int8"), "x of type float32"),
        (depthwise((5, 5), 4, (3, 3), dtype="bfloat16", weight="float32"), "x of type bfloat16"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_template_does_not_build_has_a_reason(region: Region, reason: str) -> None:
    assert reason in str(DEPTHWISE_CONV2D.reject(region, isa_named("avx512_bf16")))


def test_columns_are_cut_into_tiles_of_equal_code() -> None:
    region = depthwise((5, 29), 4, (3, 5), padding=(1, 2, 1, 2))
    found = list(strips(DepthwiseProblem.of(region), 6))
    assert found == [Strip(0, 1, 6, True), Strip(6, 3, 6, False), Strip(24, 1, 5, True)]
    inner = list(strips(DepthwiseProblem.of(depthwise((5, 29), 4, (3, 5))), 6))
    assert inner == [Strip(0, 5, 5, False)]


def test_rows_of_x_serve_several_rows_of_the_result() -> None:
    """With kr = 4, two rows of a 3x3 convolution share a group of x; single rows have their own."""
    problem = DepthwiseProblem.of(depthwise((9, 9), 4, (3, 3), padding=ALL))
    assert Groups.of(problem, 1, 4).taps == {(0, 0): (0, 1, 2, None)}
    assert Groups.of(problem, 2, 4).taps == {(0, 0): (0, 1, 2, None), (1, 0): (None, 0, 1, 2)}


def test_a_depthwise_convolution_is_no_product_for_tiles() -> None:
    region = depthwise((9, 9), 64, (3, 3), dtype="uint8")
    machine = Machine("sapphirerapids", isa_named("amx"))
    config = default_config(region, machine)
    assert why_vectors(region, config, machine) == WHY_VECTORS
    assert DEPTHWISE_CONV2D.kernel_name(region, config, machine.isa).startswith(
        "avx512_vnni_u8s8s32_depthwise_"
    )
