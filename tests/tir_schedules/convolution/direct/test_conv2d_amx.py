"""Convolution on AMX tiles: types, padding, tails, zero points; integers to the bit.

Every test ends without a fault of a tile instruction and without a configured thread
(tests/conftest.py).
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given

from microkernels.base.errors import ConfigError
from microkernels.isa import isa_named
from microkernels.microkernel import Microkernel
from microkernels.registry import tile_kernels_for
from tests.amx_emulator import emulator
from tests.examples import examples
from tests.tir_schedules.conv_regions import check, conv_region, convolutions
from tests.tir_schedules.run_region import machine_for
from tir_schedules.convolution.direct.config import ConvConfig
from tir_schedules.convolution.geometry import ConvGeometry
from tir_schedules.core.product_plan import product_types
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for
from tir_schedules.cost.amx_cost import why_vectors

pytestmark = pytest.mark.isa("amx")
BLOCKS = ("32x32", "16x64")
COUNTED = {"uint8": "tdpbusd", "int8": "tdpbssd", "bfloat16": "tdpbf16ps"}


def on_tiles(region: Region, block: str, **fields: int) -> ConvConfig:
    """A configuration with the largest tiles of a kernel, except for given fields."""
    kernel = kernel_of(region, block)
    geometry = ConvGeometry.of(region).as_volume()
    vectors = math.ceil(geometry.group_out_channels / kernel.lanes)
    numbers = {
        "kernel": kernel.name,
        "rows": min(kernel.mr, geometry.outputs[2]),
        "vectors": min(kernel.vectors, vectors),
        "band": geometry.outputs[1],
        "staged": True,
    }
    return ConvConfig.from_dict({**numbers, **fields})


def kernel_of(region: Region, block: str) -> Microkernel:
    types = ("bfloat16", "bfloat16") if "int8" not in region.inputs[1].dtype else None
    kernels = tile_kernels_for(machine_for("amx").isa, *(types or product_types(region)))
    (found,) = (kernel for kernel in kernels if kernel.name.endswith(f"_{block}"))
    return found


def run_on_tiles(region: Region, config: ConvConfig, **options: bool) -> None:
    emulator.reset()
    check(region, "amx", config, **options)
    executed = emulator.counts()
    kind = product_types(region)[0] if "int8" in region.inputs[1].dtype else "bfloat16"
    assert executed is None or executed[COUNTED[kind]] > 0


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["uint8", "int8", "bfloat16"])
@pytest.mark.parametrize("block", BLOCKS)
def test_padding_and_tails(dtype: str, block: str) -> None:
    """Lines that tiles do not divide, tails of input and output channels, asymmetric padding."""
    zero = {} if dtype == "bfloat16" else {"a_zero_point": -3 if dtype == "int8" else 9}
    for channels, out_channels, width in ((5, 19, 37), (64, 70, 9)):
        region = conv_region(
            (6, width), channels, out_channels, (3, 2), padding=(1, 2, 1, 0), dtype=dtype, **zero
        )
        run_on_tiles(region, on_tiles(region, block, band=4), at_end=channels == 5)


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16"])
def test_groups_strides_and_dilation(dtype: str) -> None:
    region = conv_region(
        (9, 21), 6, 40, (3, 3), batch=2, strides=(2, 1), padding=(2, 1, 0, 1), dilation=(1, 2),
        groups=2, dtype=dtype,
    )  # fmt: skip
    run_on_tiles(region, on_tiles(region, "16x64", threads_m=2, threads_n=2))


def test_threads_share_the_tiles_of_a_line_that_do_not_overlap() -> None:
    region = conv_region((32,), 6, 40, (3,), padding=(1, 1), dtype="uint8")
    run_on_tiles(region, on_tiles(region, "16x64", threads_x=2))
    region = conv_region((33,), 6, 40, (3,), padding=(1, 1), dtype="uint8")
    config = on_tiles(region, "16x64", threads_x=2)
    with pytest.raises(ConfigError, match="threads_x=2: tiles overlap"):
        template_for("conv1d").build(region, config, isa_named("amx"))


def test_float_activations_become_bfloat16() -> None:
    region = conv_region(
        (5, 9), 3, 16, (3, 3), padding=(1,) * 4, dtype="float32", weight="bfloat16"
    )
    run_on_tiles(region, on_tiles(region, "32x32"))


def test_a_first_layer() -> None:
    region = conv_region((16, 20), 3, 16, (7, 7), strides=(2, 2), padding=(3,) * 4, dtype="uint8")
    run_on_tiles(region, on_tiles(region, "16x64"))


@examples(12)
@given(convolutions(("uint8", "int8", "bfloat16")))
def test_any_convolution(region: Region) -> None:
    run_on_tiles(region, on_tiles(region, BLOCKS[region.output.size % 2]))


def test_large_layers_choose_tiles_and_others_say_why_not() -> None:
    machine = machine_for("amx")
    template = template_for("conv2d")
    large = conv_region((28, 28), 128, 128, (3, 3), padding=(1,) * 4, dtype="uint8")
    assert kernel_is_by_tiles(template.default_config(large, machine))
    assert why_vectors(large, template.default_config(large, machine), machine) == ""
    f32 = conv_region((28, 28), 128, 128, (3, 3), padding=(1,) * 4)
    assert "not float32" in why_vectors(f32, template.default_config(f32, machine), machine)
    small = conv_region((2, 2), 4, 3, (2, 2), dtype="uint8")
    config = template.default_config(small, machine)
    assert not kernel_is_by_tiles(config)
    assert "AMX tiles" in why_vectors(small, config, machine)


def kernel_is_by_tiles(config: ConvConfig) -> bool:
    return config.kernel.startswith("amx")


# Image, channels, kernel, strides, padding, lines of a block (`band`).
ACROSS = [
    ((7, 7), 64, (3, 3), (1, 1), (1, 1, 1, 1), 7),
    ((7, 7), 20, (3, 3), (1, 1), (1, 1, 1, 1), 7),  # even and odd lines follow each other
    ((14, 14), 32, (3, 3), (2, 2), (1, 1, 1, 1), 7),  # tiles of both parities follow each other
    ((12, 9), 8, (5, 2), (3, 2), (2, 0, 2, 1), 2),
    ((10, 5), 6, (1, 3), (1, 1), (0, 1, 0, 1), 5),
]


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["uint8", "int8", "bfloat16"])
@pytest.mark.parametrize("case", ACROSS, ids=lambda case: "x".join(map(str, case[0])))
def test_tiles_go_on_from_line_to_line(case: tuple, dtype: str) -> None:
    extents, channels, kernel, strides, padding, lines = case
    zero = {} if dtype == "bfloat16" else {"a_zero_point": 5}
    region = conv_region(
        extents, channels, 35, kernel, strides=strides, padding=padding, dtype=dtype, **zero
    )
    block = BLOCKS[channels % 3 % 2]
    rows = 16 if block == "16x64" else 32
    config = on_tiles(region, block, lines=lines, band=lines, rows=rows)
    run_on_tiles(region, config, at_end=channels > 20)


def test_lines_of_groups_and_planes() -> None:
    region = conv_region(
        (3, 6, 5), 8, 36, (2, 3, 3), padding=(0, 1, 1, 1, 1, 1), groups=2, batch=2, dtype="uint8",
        dilation=(1, 2, 1),
    )  # fmt: skip
    lines = ConvGeometry.of(region).outputs[1]
    run_on_tiles(region, on_tiles(region, "32x32", lines=lines, band=lines, rows=32, threads_m=2))


def test_a_7x7_image_takes_4_tiles_of_pixels_in_the_place_of_7() -> None:
    """Each tile of the weight is loaded twice, not once for each line."""
    region = conv_region((7, 7), 64, 32, (3, 3), padding=(1,) * 4, dtype="uint8")
    found = []
    for fields in ({}, {"lines": 7, "rows": 32}):
        run_on_tiles(region, on_tiles(region, "32x32", **fields))
        executed = emulator.counts()
        if executed is None:
            return
        found.append((executed["tdpbusd"], executed["tileloadd"]))
    steps, columns = 9, 2
    assert found[0] == (7 * columns * steps, 7 * (1 + columns) * steps)
    assert found[1] == (4 * columns * steps, 2 * (2 + columns) * steps)


def test_small_images_choose_to_go_on() -> None:
    machine, template = machine_for("amx"), template_for("conv2d")
    small = conv_region((7, 7), 512, 512, (3, 3), padding=(1,) * 4, dtype="uint8")
    config = template.default_config(small, machine)
    assert kernel_is_by_tiles(config) and config.lines == 7
    wide = conv_region((32, 32), 128, 128, (3, 3), padding=(1,) * 4, dtype="uint8")
    assert template.default_config(wide, machine).lines == 1
    large = conv_region((300, 300), 64, 64, (3, 3), padding=(1,) * 4, dtype="uint8")
    lines = max(config.lines for config in template.space(large, machine))
    assert 1 < lines * 300 * 64 <= machine.l2_bytes // 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lines": 3}, "equal staged bands"),
        ({"lines": 7, "threads_x": 2}, "run on over lines"),
        ({"lines": 2, "band": 2}, "equal staged bands"),
    ],
)
def test_what_does_not_go_on_is_refused(fields: dict[str, int], message: str) -> None:
    region = conv_region((7, 7), 8, 16, (3, 3), padding=(1,) * 4, dtype="uint8")
    with pytest.raises(ConfigError, match=message):
        template_for("conv2d").build(region, on_tiles(region, "32x32", **fields), isa_named("amx"))
