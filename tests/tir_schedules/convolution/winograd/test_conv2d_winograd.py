"""The Winograd template: every edge of its tiles, threads, epilogues, within the derived bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from microkernels.base.errors import ConfigError
from microkernels.isa import isa_named
from tests.examples import examples
from tests.relay_passes.graphs import run as run_relax
from tests.tir_schedules.run_region import ISAS, bias_relu, expected, machine_for
from tests.tir_schedules.winograd_regions import (
    ONES,
    bias,
    bound,
    check,
    outputs,
    region_of,
    scaled_inputs,
)
from tir_schedules.convolution.winograd.algorithm import expected_error
from tir_schedules.convolution.winograd.config import WinogradConfig, odd_lines
from tir_schedules.convolution.winograd.conv2d_winograd import CONV2D_WINOGRAD
from tir_schedules.core.region import EpilogueOp, Region, Tensor

pytestmark = pytest.mark.turns

BEST = ISAS[-1]


def config_for(region: Region, threads: int = 1, **changes: int) -> WinogradConfig:
    config = CONV2D_WINOGRAD.default_config(region, machine_for(BEST, threads))
    return WinogradConfig(**{**config.to_dict(), **changes})


@pytest.mark.parametrize("isa", ISAS)
def test_tile_minus_one_tile_tile_plus_one(isa: str) -> None:
    lanes = machine_for(isa).isa.f32_lanes
    check(region_of((3, 5), lanes + 1, lanes), isa)
    check(region_of((4, 4), lanes, lanes + 1), isa)
    check(region_of((5, 3), max(lanes - 1, 1), max(lanes - 1, 1)), isa)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("extents", "padding"),
    [
        ((6, 10), (0, 0, 0, 0)),  # no edge
        ((1, 1), ONES),
        ((2, 9), (0, 3, 2, 0)),
        ((1, 2), (6, 0, 5, 7)),  # tiles entirely outside
    ],
)
def test_paddings(extents: tuple[int, int], padding: tuple[int, int, int, int]) -> None:
    check(region_of(extents, 17, 20, padding), BEST)


@given(st.data())
@examples(4)
def test_random_shapes(data: st.DataObject) -> None:
    def size(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    padding = (size(0, 3), size(0, 3), size(0, 3), size(0, 3))
    extents = (
        size(max(1, 3 - padding[0] - padding[2]), 14),
        size(max(1, 3 - padding[1] - padding[3]), 14),
    )
    out_channels = size(1, 50)
    region = region_of(
        extents,
        size(1, 40),
        out_channels,
        padding,
        batch=size(1, 2),
        operands=(bias(out_channels),),
        epilogue=bias_relu(),
    )
    config = config_for(
        region,
        m_block=size(1, 9),
        k_block=size(1, 40),
        vectors=size(1, 2),
        threads_tiles=size(1, 3),
        threads_panels=size(1, 3),
    )
    check(region, BEST, config)


def test_results_do_not_depend_on_blocks_or_threads() -> None:
    """Every sum has its terms in one order, whichever thread computes it."""
    region = region_of((9, 22), 24, 40, batch=2)
    arrays = scaled_inputs(region)
    plain, _ = outputs(region, arrays, BEST, config_for(region, m_block=36))
    for changes in (
        {"m_block": 5, "rows": 3, "vectors": 1},
        {"m_block": 8, "threads_tiles": 3, "k_block": 7},
        {"m_block": 20, "threads_tiles": 2, "threads_panels": 3, "vectors": 1},
    ):
        for result in outputs(region, arrays, BEST, config_for(region, **changes)):
            np.testing.assert_array_equal(result, plain)


def test_a_few_tiles_use_all_threads() -> None:
    for extents, channels in (((14, 14), 256), ((7, 7), 512)):
        for threads in (2, 4):
            region = region_of(extents, channels, channels)
            config = config_for(region, threads)
            assert config.threads_tiles * config.threads_panels == threads


def test_more_threads_than_channels_or_tiles() -> None:
    region = region_of((5, 4), 3, 5)
    check(region, BEST, config_for(region, m_block=1, threads_tiles=4, threads_panels=3))


def test_operands_of_every_kind() -> None:
    shape = (2, 5, 6, 20)
    region = region_of(
        (5, 6),
        8,
        20,
        batch=2,
        operands=(
            Tensor(shape, "float32"),
            bias(20),
            Tensor((1, 1, 1, 20), "float32"),
            Tensor((2, 5, 6, 1), "float32"),
        ),
        epilogue=(
            EpilogueOp("add", (0, 1)),
            EpilogueOp("add", (5, 2)),
            EpilogueOp("add", (6, 3)),
            EpilogueOp("add", (7, 4)),
            EpilogueOp("relu", (8,)),
        ),
    )
    check(region, BEST)


def test_a_gate_for_each_sample_and_a_long_epilogue() -> None:
    """Operands that are no matrix of pixels, and a long function that the code has once."""
    region = region_of(
        (6, 5),
        8,
        17,
        batch=2,
        operands=(Tensor((2, 1, 1, 17), "float32"),),
        epilogue=(EpilogueOp("sigmoid", (0,)), EpilogueOp("multiply", (2, 1))),
    )
    arrays = scaled_inputs(region)
    wanted = expected(region, arrays)
    # A sigmoid's slope is at most 1/4; the function itself is within 16 units (vector_math).
    gate = np.abs(arrays[2])
    limit = gate * (bound(region, arrays) / 4 + 16 * np.finfo(np.float32).eps)
    for result in outputs(region, arrays, BEST):
        assert (np.abs(result - wanted) <= limit).all()


def test_results_may_be_bytes() -> None:
    region = region_of((6, 6), 4, 20)
    steps = (
        EpilogueOp("constant", value=0.05),
        EpilogueOp("constant", value=128.0),
        EpilogueOp("quantize", (0, 1, 2), dtype="uint8"),
    )
    region = region.replace(epilogue=steps, output=Tensor(region.output.shape, "uint8"))
    arrays = scaled_inputs(region)
    wanted = expected(region, arrays).astype(int)
    for result in outputs(region, arrays, BEST):
        # Next to a tie an error of 1e-6 may decide; elsewhere integers are equal.
        assert np.abs(result.astype(int) - wanted).max() <= 1
        assert (result != wanted).mean() < 0.01


@pytest.mark.parametrize("dilation", [(2, 1), (3, 5), (20, 2)])
def test_dilation(dilation: tuple[int, int]) -> None:
    """Every phase is a convolution of its pixels without dilation; some tiles are empty."""
    (down, right), margins = dilation, (dilation[0], 2 * dilation[1], dilation[0] + 1, 0)
    region = region_of((13, 23), 17, 20, margins, dilation=dilation, batch=2)
    arrays = scaled_inputs(region)
    wanted = expected(region, arrays)
    padded = np.pad(arrays[0], ((0, 0), margins[::2], margins[1::2], (0, 0)))
    limit = np.zeros(wanted.shape)
    for y in range(min(down, wanted.shape[1])):
        for x in range(min(right, wanted.shape[2])):
            own = np.ascontiguousarray(padded[:, y::down, x::right])
            phase = region_of(own.shape[1:3], 17, 20, (0, 0, 0, 0), batch=2)
            limit[:, y::down, x::right] = bound(phase, [own, arrays[1]])
    for result in outputs(region, arrays, BEST):
        assert (np.abs(result.astype(np.float64) - wanted) <= limit).all()


def test_what_lies_outside_is_zero_whatever_is_inside() -> None:
    """The pixel at the edge is loaded in place of one outside, and not used."""
    region = region_of((4, 12), 16, 16)
    arrays = scaled_inputs(region)
    clean, _ = outputs(region, arrays, BEST)
    arrays[0][:, :, -1] = np.inf
    for result in outputs(region, arrays, BEST):
        np.testing.assert_array_equal(result[:, :, :8], clean[:, :, :8])
        assert not np.isfinite(result[:, :, 10:]).any()


def test_errors_are_as_large_as_expected() -> None:
    """Errors do not exceed `expected_error`, and it is not far above them."""
    region = region_of((40, 40), 64, 32)
    arrays = scaled_inputs(region)
    wanted = expected(region, arrays)
    result, _ = outputs(region, arrays, BEST)
    found = np.abs(result - wanted).max() / np.sqrt((wanted**2).mean())
    assert expected_error(64) / 4 < found < expected_error(64)


def test_unpacking_gives_the_weight() -> None:
    region, machine = region_of((8, 8), 5, 38), machine_for(BEST, 2)
    config = config_for(region, threads_panels=2, vectors=1)
    packing, weight = CONV2D_WINOGRAD.packing, scaled_inputs(region)[1]
    assert packing is not None
    array = packing(region, config, machine.isa, 1).pack(weight)
    assert array.shape == packing(region, config, machine.isa, 1).shape
    builder = relax.BlockBuilder()
    x = relax.Var("w", relax.TensorType(array.shape, "float32"))
    with builder.function("main", [x]):
        expr = packing(region, config, machine.isa, 1).unpack(x)
        builder.emit_func_output(builder.emit(expr))
    (found,) = run_relax(builder.get(), [array])
    # G has full rank: its inverse restores the weight with roundings, 20 u for entries below 3.
    np.testing.assert_allclose(found, weight, rtol=0, atol=100 * 2.0**-24 * np.abs(weight).max())


def test_the_space_begins_with_the_default_and_holds_only_legal_configs() -> None:
    region, machine = region_of((20, 20), 32, 48), machine_for(BEST, 2)
    configs = list(CONV2D_WINOGRAD.space(region, machine))
    assert configs[0] == CONV2D_WINOGRAD.default_config(region, machine)
    assert len(set(configs)) == len(configs) > 10
    for config in configs[:: max(1, len(configs) // 6)]:
        CONV2D_WINOGRAD.build(region, config, machine.isa)
    check(region, BEST, configs[-1])


@pytest.mark.parametrize(
    ("field", "value"), [("rows", 15), ("vectors", 0), ("m_block", 0), ("threads_panels", 0)]
)
def test_illegal_configs_are_refused(field: str, value: int) -> None:
    region = region_of((8, 8), 8, 8)
    config = WinogradConfig(kernel="avx512_f32_14x32", rows=4, vectors=1, m_block=4, k_block=8)
    illegal = WinogradConfig(**{**config.to_dict(), field: value})
    with pytest.raises(ConfigError, match=f"{field}={value}"):
        CONV2D_WINOGRAD.build(region, illegal, isa_named("avx512"))
    with pytest.raises(ConfigError, match="needs avx512"):
        CONV2D_WINOGRAD.build(region, config, isa_named("avx2"))


def test_what_it_does_not_build_has_a_reason() -> None:
    isa = isa_named("avx512")
    assert CONV2D_WINOGRAD.reject(region_of((8, 8), 8, 8), isa) is None
    assert "strides" in str(CONV2D_WINOGRAD.reject(region_of((8, 8), 8, 8, strides=(2, 1)), isa))
    assert "2 groups" in str(CONV2D_WINOGRAD.reject(region_of((8, 8), 8, 8, groups=2), isa))
    integers = region_of((8, 8), 8, 8, dtype="uint8")
    assert "one instruction" in str(CONV2D_WINOGRAD.reject(integers, isa_named("avx512_vnni")))
    assert CONV2D_WINOGRAD.reject(integers, isa) is None  # in words
    assert "0" in str(CONV2D_WINOGRAD.reject(region_of((2, 8), 8, 8, padding=(0, 0, 0, 0)), isa))
    five = region_of((8, 8), 8, 8).replace(
        inputs=(Tensor((1, 8, 8, 8), "float32"), Tensor((5, 3, 8, 8), "float32", True))
    )
    assert "5x3" in str(CONV2D_WINOGRAD.reject(five, isa))


def test_distances_in_memory_are_odd_numbers_of_lines() -> None:
    assert [odd_lines(n) // 16 for n in (1, 16, 17, 48, 64, 512)] == [1, 1, 3, 3, 5, 33]
    assert all(odd_lines(n) % 32 == 16 and odd_lines(n) >= n for n in range(1, 600))
