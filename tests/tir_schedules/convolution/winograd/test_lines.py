"""Winograd's tiles for kernels with taps along one line: every number of taps, any dilation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from microkernels.isa import isa_named
from relay_passes.regions.select_winograd import choose
from tests.examples import examples
from tests.relay_passes.graphs import run as run_relax
from tests.tir_schedules.conv_regions import conv_region
from tests.tir_schedules.convolution.dynamic_images import dynamic_region, symbols
from tests.tir_schedules.dynamic_regions import DynamicKernel
from tests.tir_schedules.run_region import (
    ISAS,
    bias_relu,
    expected,
    highest_native,
    machine_for,
    random_inputs,
)
from tests.tir_schedules.winograd_regions import UNIT, bias, outputs
from tir_schedules.convolution.geometry import ConvGeometry
from tir_schedules.convolution.winograd.algorithm import (
    REACHES,
    WORST_GROWTH,
    Algorithm,
    expected_error,
    line_axis,
    matrices,
)
from tir_schedules.convolution.winograd.config import WinogradConfig
from tir_schedules.convolution.winograd.conv2d_winograd import CONV2D_WINOGRAD
from tir_schedules.core.region import Region

BEST = ISAS[-1]
TAPS = sorted(REACHES)


def line(
    extent: int, taps: int, channels: int = 17, out_channels: int = 20, **options: Any
) -> Region:
    """A convolution along one axis; by default with as many results as positions, or one fewer."""
    margin = taps // 2 * options.get("dilation", (1,))[0]
    fields = {"padding": (margin, margin), "op": "conv2d_winograd", **options}
    return conv_region((extent,), channels, out_channels, (taps,), **fields)


def inputs_of(region: Region) -> list[np.ndarray]:
    """Normal values, with results near one."""
    arrays = random_inputs(region)
    arrays[1] = (arrays[1] / math.sqrt(arrays[1][..., 0].size)).astype(np.float32)
    return arrays


def bound(region: Region, arrays: list[np.ndarray]) -> np.ndarray:
    """A bound for any error (`winograd_regions.error_bound`); two transforms have 16 roundings.

    Every phase of the dilation is a convolution of its own positions without dilation.
    """
    geometry = ConvGeometry.of(region)
    axis = next((at for at, taps in enumerate(geometry.kernel) if taps > 1), 0)
    taps, step = geometry.kernel[axis], geometry.dilation[axis]
    a, g, b = (np.abs(matrix) for matrix in matrices(taps))
    tile, reach = a.shape
    margins = list(zip((0, *geometry.before, 0), (0, *geometry.after, 0), strict=True))
    size = geometry.outputs[axis]
    margins[axis + 1] = (geometry.before[axis], geometry.after[axis] + step * (tile + reach))
    x = np.moveaxis(np.pad(np.abs(arrays[0].astype(np.float64)), margins), axis + 1, 0)
    weight = np.abs(arrays[1].astype(np.float64)).reshape(taps, *arrays[1].shape[-2:])
    u = np.einsum("ij,jco->ico", g, weight)
    sums = np.zeros((size, *x.shape[1:-1], geometry.out_channels))
    for first in range(0, size, step * tile):
        for phase in range(first, min(first + step, size)):
            d = x[phase : phase + step * reach : step]
            m = np.einsum("i...c,ico->i...o", np.tensordot(b, d, (1, 0)), u)
            found = np.tensordot(a, m, (1, 0))
            places = range(phase, min(phase + step * tile, size), step)
            sums[list(places)] = found[: len(places)]
    roundings = 16 + 1 + geometry.channels
    limit: np.ndarray = roundings * UNIT / (1 - roundings * UNIT) * np.moveaxis(sums, 0, axis + 1)
    return limit


def check(region: Region, isa: str, config: WinogradConfig | None = None, threads: int = 1) -> None:
    assert CONV2D_WINOGRAD.rejection(region, isa_named(isa)) is None
    arrays = inputs_of(region)
    wanted = expected(region, arrays)
    limit = bound(region, arrays) + 4 * np.finfo(np.float32).eps * np.abs(wanted)
    for result in outputs(region, arrays, isa, config, threads):
        error = np.abs(result.astype(np.float64) - wanted)
        assert (error <= limit).all(), (region.key, config, float((error - limit).max()))


@pytest.mark.parametrize("taps", TAPS)
def test_the_transforms_compute_a_convolution(taps: int) -> None:
    a, g, b = matrices(taps)
    tile, reach = a.shape
    rng = np.random.default_rng(taps)
    d, w = rng.standard_normal(reach), rng.standard_normal(taps)
    wanted = [d[i : i + taps] @ w for i in range(tile)]
    np.testing.assert_allclose(a @ ((g @ w) * (b @ d)), wanted, rtol=0, atol=1e-11)
    for matrix in (a, b):
        np.testing.assert_array_equal(matrix, matrix.astype(np.float32).astype(np.float64))
    np.testing.assert_allclose(line_axis(taps).g_inverse @ g, np.eye(taps), rtol=0, atol=1e-12)


def test_errors_grow_less_than_those_of_squares() -> None:
    for taps in TAPS:
        assert 1 < line_axis(taps).growth < WORST_GROWTH
    assert line_axis(3).growth == pytest.approx(2.8, abs=0.01)
    assert line_axis(5).growth == pytest.approx(5.455, abs=0.001)
    region = line(4000, 5, 64, 32)
    arrays = inputs_of(region)
    wanted = expected(region, arrays)
    result, _ = outputs(region, arrays, BEST)
    found = np.abs(result - wanted).max() / np.sqrt((wanted**2).mean())
    stated = expected_error(64, Algorithm.of(region).growth)
    assert stated / 4 < found < stated


@pytest.mark.parametrize("taps", TAPS)
def test_tile_minus_one_tile_tile_plus_one(taps: int) -> None:
    tile = line_axis(taps).tile
    for extent in (tile - 1, tile, tile + 1, 3 * tile):
        check(line(max(extent, 1), taps, padding=(taps - 1, 0)), BEST)


@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set(isa: str) -> None:
    lanes = machine_for(isa).isa.f32_lanes
    check(line(9, 3, lanes + 1, lanes - 1 or 1), isa)
    check(line(11, 5, lanes, lanes + 1, dilation=(2,)), isa)


@pytest.mark.parametrize("step", [2, 3, 7, 30])
def test_dilation(step: int) -> None:
    """Some tiles of the last phases have no result; with the largest dilation each has one."""
    for taps in (3, 6):
        check(line(23, taps, dilation=(step,)), BEST)
        low, high = (taps - 1) * step, 0
        check(line(10, taps, dilation=(step,), padding=(low, high), batch=2), BEST)


@pytest.mark.parametrize(
    ("kernel", "dilation"), [((1, 5), (3, 2)), ((4, 1), (3, 2)), ((1, 3), (1, 1))]
)
def test_lines_of_images(kernel: tuple[int, int], dilation: tuple[int, int]) -> None:
    """A single tap has no dilation, and may have padding."""
    region = conv_region(
        (13, 15),
        9,
        33,
        kernel,
        dilation=dilation,
        padding=(1, 2, 3, 0),
        batch=2,
        operands=(bias(33),),
        epilogue=bias_relu(),
        op="conv2d_winograd",
    )
    check(region, BEST)


@given(st.data())
@examples(4)
def test_random_shapes(data: st.DataObject) -> None:
    def size(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    taps, step, padding = size(2, 7), size(1, 5), (size(0, 9), size(0, 9))
    extent = size(max(1, (taps - 1) * step + 1 - sum(padding)), 60)
    channels, out_channels, batch = size(1, 40), size(1, 50), size(1, 2)
    region = line(
        extent, taps, channels, out_channels, padding=padding, dilation=(step,), batch=batch
    )
    default = CONV2D_WINOGRAD.default_config(region, machine_for(BEST))
    changes = {"m_block": size(1, 9), "k_block": size(1, 40), "threads_tiles": size(1, 3)}
    check(region, BEST, WinogradConfig(**{**default.to_dict(), **changes}), 3)


@pytest.mark.parametrize(("taps", "step"), [(3, 1), (5, 3)])
def test_sizes_that_are_known_at_run_time(taps: int, step: int) -> None:
    margin = taps // 2 * step

    def of(sizes: tuple[int, ...]) -> Region:
        return line(sizes[1], taps, 17, 40, batch=sizes[0], dilation=(step,))

    isa = highest_native(ISAS)
    kernel = DynamicKernel(dynamic_region(of, (0, 1), (1, 40)), isa)
    for sizes in ((1, 1), (2, 3), (1, 4), (3, 5), (1, 12), (1, 13), (2, 50), (0, 4), (1, 0)):
        known = of(sizes)
        arrays = inputs_of(known)
        if known.output.size == 0:
            assert kernel.run(symbols(known), arrays).size == 0
            continue
        wanted = expected(known, arrays)
        limit = bound(known, arrays) + 4 * np.finfo(np.float32).eps * np.abs(wanted)
        for at_end in (True, False):
            error = np.abs(kernel.run(symbols(known), arrays, at_end) - wanted)
            assert (error <= limit).all(), sizes
    more = line(40, taps, dilation=(step,), padding=(margin, margin + 1))
    region = dynamic_region(lambda sizes: more, (1,), (1, 40))
    assert "extent that may be 0" in str(CONV2D_WINOGRAD.rejection(region, isa_named(BEST)))


@pytest.mark.parametrize("taps", [2, 5])
def test_packing_is_undone(taps: int) -> None:
    region, machine = line(9, taps, 5, 38), machine_for(BEST)
    config = CONV2D_WINOGRAD.default_config(region, machine)
    packing, weight = CONV2D_WINOGRAD.packing, inputs_of(region)[1]
    assert packing is not None
    packed = packing(region, config, machine.isa, 1)
    array = packed.pack(weight)
    assert array.shape == packed.shape
    for source, wanted, body in ((array, weight, packed.unpack), (weight, array, packed.pack)):
        builder = relax.BlockBuilder()
        x = relax.Var("w", relax.TensorType(source.shape, "float32"))
        with builder.function("main", [x]):
            expr = body(x)
            builder.emit_func_output(builder.emit(expr))
        (found,) = run_relax(builder.get(), [source])
        np.testing.assert_allclose(found, wanted, rtol=0, atol=200 * UNIT * np.abs(wanted).max())


def test_what_it_does_not_build_has_a_reason() -> None:
    isa = isa_named("avx512")
    for region, reason in (
        (line(20, 3, strides=(2,)), "strides"),
        (line(20, 8), "line of 2 to 7 taps"),
        (line(20, 1, padding=(0, 0)), "line of 2 to 7 taps"),
        (line(20, 3, 16, 16, dtype="uint8"), "line of 2 to 7 taps"),
        (line(20, 3, 16, 16, groups=2), "2 groups"),
        (line(2, 7, padding=(0, 0)), "0"),
    ):
        assert reason in str(CONV2D_WINOGRAD.reject(region, isa)), region.key


def test_convolutions_of_signals_are_chosen_where_they_pay() -> None:
    machine = machine_for("avx512")
    for extent, taps, channels in ((512, 5, 256), (7500, 3, 128), (400, 7, 64)):
        choice = choose(
            line(extent, taps, channels, channels, op="conv1d"), machine, "default", False
        )
        assert choice.winograd, choice.reason
    few = choose(line(2, 3, 64, 64, op="conv1d"), machine, "on", False)
    assert not few.winograd and few.reason.startswith("template conv1d; Winograd is estimated at")
    off = choose(line(512, 5, 256, 256, op="conv1d"), machine, "off", False)
    assert not off.winograd
