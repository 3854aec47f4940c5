"""Convolutions with dynamic image sizes: one kernel is right for every width and height."""

from __future__ import annotations

from typing import Any

import pytest

from microkernels.isa import isa_named
from tests.tir_schedules.conv_regions import conv_region
from tests.tir_schedules.convolution.dynamic_images import (
    OfSizes,
    Sizes,
    bias_and_residual,
    check,
    dynamic_region,
)
from tests.tir_schedules.depthwise_regions import depthwise
from tests.tir_schedules.run_region import (
    BF16_ISAS,
    INTEGER_ISAS,
    ISAS,
    highest_native,
    machine_for,
)
from tir_schedules.convolution.depthwise.config import DepthwiseConfig
from tir_schedules.convolution.geometry import one_image
from tir_schedules.core.region import EpilogueOp, Region
from tir_schedules.core.template import template_for

COLUMNS, IMAGE = (0, 2), (0, 1, 2)
SIZES: list[Sizes] = [
    *((1, 9, width) for width in (*range(3, 20), 27, 28, 29, 43)),
    *((batch, 9, 30) for batch in (0, 2, 3)),
]
IMAGES: list[Sizes] = [*((1, n, 3 + 5 * n % 31) for n in range(3, 19)), (2, 40, 41), (0, 9, 9)]


def convolution(kernel: tuple[int, int], **options: Any) -> OfSizes:
    channels, results = options.pop("channels", 16), options.pop("results", 40)

    def of(sizes: Sizes) -> Region:
        batch, *extents = sizes
        return conv_region(tuple(extents), channels, results, kernel, batch=batch, **options)

    return of


def depthwise_of(kernel: tuple[int, int], channels: int = 40, **options: Any) -> OfSizes:
    def of(sizes: Sizes) -> Region:
        batch, *extents = sizes
        return depthwise(tuple(extents), channels, kernel, batch=batch, **options)

    return of


def fused(of_sizes: OfSizes) -> OfSizes:
    return lambda sizes: bias_and_residual(of_sizes(sizes))


KINDS = {
    "3x3": convolution((3, 3), padding=(1, 1, 1, 1)),
    "3x3 inside": convolution((3, 3)),
    "stride 2": convolution((3, 3), padding=(1, 1, 1, 1), strides=(2, 2), channels=3),
    "columns alone": convolution((1, 3), padding=(0, 1, 0, 1), results=12),
    "1x1 stride 2": convolution((1, 1), strides=(2, 2)),
    "stride 2 of columns": convolution((3, 2), strides=(1, 2), padding=(0, 0, 1, 1)),
    "dilated": convolution((2, 2), dilation=(2, 2), padding=(1, 1, 1, 1), channels=5),
    "groups": convolution((3, 3), groups=2, channels=8, results=12, padding=(1, 1, 1, 1)),
    "wide padding": convolution((2, 2), padding=(3, 3, 3, 3), channels=4, results=8),
}
DEPTHWISE = {
    "depthwise 3x3": depthwise_of((3, 3), padding=(1, 1, 1, 1)),
    "depthwise 3x3 inside": depthwise_of((3, 3), channels=20),
    "depthwise 5x5": depthwise_of((5, 5), padding=(2, 2, 2, 2)),
    "depthwise stride 2": depthwise_of((3, 3), padding=(1, 1, 1, 1), strides=(2, 2), channels=33),
    "depthwise lines": depthwise_of((5, 3), padding=(2, 1, 2, 1), strides=(2, 1)),
    "depthwise uneven": depthwise_of((3, 3), padding=(0, 0, 1, 1), strides=(2, 2)),
    "depthwise dilated": depthwise_of((2, 3), padding=(1, 2, 1, 2), dilation=(2, 2)),
    "depthwise wide padding": depthwise_of((2, 2), padding=(4, 4, 4, 4)),
}
ALL = KINDS | DEPTHWISE


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ALL)
def test_any_number_of_columns(isa: str, kind: str) -> None:
    check(ALL[kind], COLUMNS, isa, SIZES)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ALL)
def test_images_of_any_size(isa: str, kind: str) -> None:
    check(fused(ALL[kind]), IMAGE, isa, IMAGES)


def test_windows_that_reach_over_the_edges_of_lines() -> None:
    """Lines as long as a tile, shorter and longer ones; tiles of one row and of two."""
    for kind in ("depthwise 3x3", "depthwise 5x5"):
        sizes = [(2, rows, width) for rows, width in ((1, 1), (2, 3), (5, 4), (6, 7), (9, 15))]
        check(ALL[kind], IMAGE, highest_native(ISAS), sizes)


@pytest.mark.parametrize(("kind", "rows", "tiles"), [("5x5", 1, 4), ("3x3", 2, 5)])
def test_one_code_for_all_edges(kind: str, rows: int, tiles: int) -> None:
    """Inner tiles, edge tiles, and two sizes for short lines; with two rows also single rows."""
    region = dynamic_region(ALL[f"depthwise {kind}"], IMAGE)
    template, isa = template_for(region.op), isa_named("avx512")
    config = DepthwiseConfig(rows=rows, columns=4, blocks=3)
    text = template.build(region, config, isa).script()
    taps = 5 if rows == 1 else 3
    unrolled = [taps] * tiles if rows == 1 else [taps * taps] * 2 + [taps] * (tiles - 2)
    assert text.count("= W[") == 2 * sum(unrolled)  # whole vectors of channels, and the tail


@pytest.mark.parametrize("isa", ISAS)
def test_lines_alone(isa: str) -> None:
    check(fused(KINDS["3x3"]), (1,), isa, [(1, n, 13) for n in (1, 2, 9, 30)])


@pytest.mark.sampled
@pytest.mark.parametrize("isa", INTEGER_ISAS)
def test_integers_are_exact(isa: str) -> None:
    for dtype in ("uint8", "int8"):
        kind = convolution((3, 3), padding=(1, 1, 1, 1), channels=20, results=24, dtype=dtype)
        check(kind, IMAGE, isa, IMAGES[::3])


@pytest.mark.parametrize("isa", BF16_ISAS)
def test_bfloat16(isa: str) -> None:
    kind = convolution((3, 3), padding=(1, 1, 1, 1), results=24, dtype="bfloat16")
    check(kind, IMAGE, isa, IMAGES[::3])


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [2, 7])
@pytest.mark.parametrize("kind", ["3x3", "depthwise 3x3"])
def test_threads_share_images(threads: int, kind: str) -> None:
    isa, sizes = highest_native(ISAS), [(1, 60, 41), (3, 5, 70), (1, 1, 3)]
    machine = machine_for(isa, threads).with_numbers(fork_us=0)
    region = dynamic_region(ALL[kind], IMAGE)
    config = template_for(region.op).default_config(region, machine)
    assert config.to_dict().get("threads_m", config.to_dict().get("threads")) == threads
    check(ALL[kind], IMAGE, isa, sizes, threads, config)


def test_small_windows_take_two_lines_at_once() -> None:
    template = template_for("depthwise_conv2d")
    for kind, two in (("depthwise 3x3", True), ("depthwise 5x5", False)):
        region = dynamic_region(ALL[kind], IMAGE)
        config = template.default_config(region, machine_for("avx2"))
        assert ("2 lines at once" in template.at_run_time(region, config)) == two
        assert config.to_dict()["blocks"] == 5  # all channels before the next pixels


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["depthwise 3x3", "depthwise stride 2", "depthwise uneven"])
def test_tiles_of_several_rows(kind: str) -> None:
    isa = highest_native(ISAS)
    for rows, columns, vectors in ((2, 4, 1), (3, 2, 2), (1, 1, 1)):
        config = DepthwiseConfig(rows=rows, columns=columns, vectors=vectors, blocks=2)
        check(fused(ALL[kind]), IMAGE, isa, IMAGES, config=config)


def interleaved(dtype: str, kernel: tuple[int, int], **options: Any) -> OfSizes:
    return depthwise_of(kernel, dtype=dtype, **options)


INTERLEAVED: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "5x5 inside": ((5, 5), {}),
    "stride 2": ((3, 3), {"padding": (0, 0, 1, 1), "strides": (2, 2), "channels": 33}),
    "wide padding": ((2, 2), {"padding": (4, 4, 4, 4), "dilation": (1, 2)}),
}


@pytest.mark.sampled
@pytest.mark.parametrize("kind", INTERLEAVED)
@pytest.mark.parametrize(
    ("dtype", "isa"),
    [*((dtype, isa) for dtype in ("uint8", "int8") for isa in INTEGER_ISAS)]
    + [("bfloat16", isa) for isa in BF16_ISAS],
)
def test_interleaved_taps(dtype: str, isa: str, kind: str) -> None:
    kernel, options = INTERLEAVED[kind]
    sizes = [size for size in IMAGES[2::4] if min(size[1:]) >= kernel[0]] + IMAGES[-1:]
    check(interleaved(dtype, kernel, **options), IMAGE, isa, sizes)


@pytest.mark.parametrize(("dtype", "isas"), [("uint8", INTEGER_ISAS), ("bfloat16", BF16_ISAS)])
def test_interleaved_tiles_of_several_rows(dtype: str, isas: list[str]) -> None:
    isa = highest_native(isas)
    kernel, options = (3, 3), {"padding": (1, 1, 1, 1)}
    for rows, columns, threads in ((2, 4, 1), (3, 2, 2), (1, 1, 1)):
        config = DepthwiseConfig(rows=rows, columns=columns, blocks=1, threads=threads)
        kind = interleaved(dtype, kernel, **options)
        check(
            fused(kind) if dtype == "bfloat16" else kind, IMAGE, isa, IMAGES[::5], threads, config
        )
    check(kind, COLUMNS, isa, SIZES[::4])


def test_one_vector_of_long_epilogues() -> None:
    def long(sizes: Sizes) -> Region:
        region = ALL["depthwise 3x3"](sizes)
        return region.replace(
            epilogue=(EpilogueOp("sigmoid", (0,)), EpilogueOp("multiply", (1, 0)))
        )

    check(long, IMAGE, highest_native(ISAS), IMAGES[::2])


def test_configurations_are_those_of_an_image_of_a_usual_size() -> None:
    region = dynamic_region(KINDS["stride 2"], IMAGE)
    single = one_image(region)
    assert not single.is_dynamic
    assert single.inputs[0].shape == (1, 64, 64, 3)
    assert single.output.shape == (1, 32, 32, 40)


def test_windows_larger_than_an_image_of_a_usual_size() -> None:
    long = convolution((1, 100), channels=2, strides=(1, 20), padding=(0, 9, 0, 0))
    example = (1, 1, 300)
    single = one_image(dynamic_region(long, COLUMNS, example))
    assert single.inputs[0].shape == (1, 1, 63 * 20 + 100, 2)
    sizes = [(1, 1, width) for width in (91, 100, 300, 777)]
    check(long, COLUMNS, highest_native(ISAS), sizes, example=example)
