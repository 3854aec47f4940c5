"""The template of direct convolution: every mode, edge and ISA, between guard pages."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from tvm import relax

from microkernels.base.errors import ConfigError, TvmHybridError
from microkernels.isa import isa_named
from microkernels.registry import microkernel_named
from tests.examples import examples
from tests.relay_passes.graphs import run as run_relax
from tests.tir_schedules.conv_regions import check, conv_region, convolutions, values
from tests.tir_schedules.run_region import (
    BF16_ISAS,
    INTEGER_ISAS,
    ISAS,
    bias_relu,
    compiled,
    machine_for,
    packed,
)
from tir_schedules.convolution.direct.config import ConvConfig, reads_in_place
from tir_schedules.convolution.direct.weight import WeightLayout
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.template import template_for
from tvm_hybrid.runtime.feeds import tensor_of

DTYPES = ("float32", "uint8", "int8", "bfloat16")
BEST = {"float32": ISAS, "uint8": INTEGER_ISAS, "int8": INTEGER_ISAS, "bfloat16": BF16_ISAS}


def config_for(region: Region, isa: str, **fields: object) -> ConvConfig:
    """The default configuration with some fields changed."""
    config = template_for(region.op).default_config(region, machine_for(isa))
    assert isinstance(config, ConvConfig)
    return ConvConfig.from_dict({**config.to_dict(), **fields})


@examples(60)
@given(convolutions(DTYPES))
def test_any_convolution(region: Region) -> None:
    check(region, BEST[region.inputs[0].dtype][-1])


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("at_end", [False, True])
def test_padded_edges_and_tails(dtype: str, staged: bool, at_end: bool) -> None:
    """Asymmetric padding, tails of pixels and channels, several blocks; guarded on both sides."""
    isa = BEST[dtype][-1]
    zero = {"a_zero_point": 9} if dtype in ("uint8", "int8") else {}
    region = conv_region(
        (9, 31), 8, 35, (3, 5), padding=(1, 3, 0, 2), strides=(1, 1), dtype=dtype, **zero
    )
    config = config_for(region, isa, staged=staged, band=4, lines=1)
    check(region, isa, config, at_end=at_end)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_isa(dtype: str) -> None:
    zero = {"a_zero_point": 3} if dtype in ("uint8", "int8") else {}
    region = conv_region((6, 7), 4, 19, (3, 3), padding=(1, 1, 1, 1), dtype=dtype, **zero)
    for isa in BEST[dtype]:
        check(region, isa)


@pytest.mark.sampled
@pytest.mark.parametrize("channels", [1, 3, 17])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_edge_sizes(channels: int, dtype: str) -> None:
    """Images of one pixel, kernels larger than the image, few and odd channels."""
    isa = BEST[dtype][-1]
    for extents, kernel, padding in [
        ((1, 1), (1, 1), (0, 0, 0, 0)),
        ((1, 1), (3, 3), (1, 1, 1, 1)),
        ((2, 3), (5, 7), (2, 3, 2, 3)),
        ((4, 1), (3, 1), (0, 0, 2, 0)),
    ]:
        check(conv_region(extents, channels, channels, kernel, padding=padding, dtype=dtype), isa)


def test_a_window_that_lies_outside_altogether() -> None:
    region = conv_region((3, 3), 4, 16, (2, 2), padding=(4, 5, 3, 4), dtype="uint8", a_zero_point=7)
    beside = conv_region(
        (3, 1), 4, 16, (2, 2), padding=(0, 5, 0, 0), strides=(1, 9), dtype="uint8", a_zero_point=7
    )
    for staged in (False, True):
        for case in (region, beside):
            config = config_for(case, INTEGER_ISAS[-1], staged=staged, lines=1)
            check(case, INTEGER_ISAS[-1], config)


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [(1, 2), (2, 1), (3, 2)])
@pytest.mark.parametrize("groups", [1, 3])
def test_threads(threads: tuple[int, int], groups: int) -> None:
    region = conv_region((7, 9), 6, 96, (3, 3), padding=(1,) * 4, batch=2, groups=groups)
    for staged in (False, True):
        config = config_for(
            region, ISAS[-1], threads_m=threads[0], threads_n=threads[1], band=3, staged=staged
        )
        check(region, ISAS[-1], ConvConfig.from_dict({**config.to_dict(), "lines": 1}))


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [2, 3, 5, 100])
@pytest.mark.parametrize("groups", [1, 2])
def test_threads_share_the_tiles_of_a_line(threads: int, groups: int) -> None:
    """Threads share tiles at the edges, which have their own code, and loops over inner tiles."""
    region = conv_region((40,), 6, 64, (5,), padding=(3, 2), batch=2, groups=groups)
    for staged in (False, True):
        shared = {"threads_m": 2, "threads_n": 2, "threads_x": threads}
        check(region, ISAS[-1], config_for(region, ISAS[-1], staged=staged, rows=4, **shared))


@pytest.mark.parametrize(
    ("isa", "kernel"),
    [
        ("avx2", "avx2_f32_6x16"),
        pytest.param("avx512", "avx512_f32_6x64", marks=pytest.mark.isa("avx512")),
    ],
)
def test_lines_of_a_small_image_share_a_tile(isa: str, kernel: str) -> None:
    region = conv_region((5, 3), 8, 40, (3, 3), padding=(1,) * 4)
    config = config_for(region, isa, kernel=kernel, vectors=2, rows=3, lines=2, staged=True, band=5)
    check(region, isa, config)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["input", "range"])
@pytest.mark.parametrize("staged", [False, True])
def test_zero_points_at_run_time(kind: str, staged: bool) -> None:
    further = Tensor((2,), "float32") if kind == "range" else Tensor((), "uint8")
    region = conv_region(
        (5, 9), 8, 20, (3, 3), padding=(1,) * 4, dtype="uint8", inputs=(further,), a_zero_point=kind
    )
    arrays = values(region)
    arrays[2] = np.array([0.1, 37], "float32") if kind == "range" else np.array(200, "uint8")
    config = config_for(region, INTEGER_ISAS[-1], staged=staged)
    machine = machine_for(INTEGER_ISAS[-1])
    template = template_for("conv2d")
    kernel = compiled(template.build(region, config, machine.isa), INTEGER_ISAS[-1])
    output = np.zeros(region.output.shape, "int32")
    inputs = packed(region, config, machine.isa, arrays)
    kernel(*(tensor_of(x) for x in inputs), tensor_of(output))
    np.testing.assert_array_equal(output, template.reference(region, arrays))


def test_x_is_quantised_on_the_way() -> None:
    region = conv_region(
        (9, 9), 3, 16, (3, 3), padding=(1,) * 4, dtype="float32", weight="int8",
        a_quantize="uint8", a_scale=0.02, a_zero_point=11,
    )  # fmt: skip
    check(region, INTEGER_ISAS[-1])


def test_epilogue_with_residual() -> None:
    shape = (1, 8, 8, 24)
    region = conv_region(
        (8, 8), 16, 24, (3, 3), padding=(1,) * 4,
        operands=(Tensor((24,), "float32"), Tensor(shape, "float32")),
        epilogue=(EpilogueOp("add", (0, 1)), EpilogueOp("add", (3, 2)), EpilogueOp("relu", (4,))),
    )  # fmt: skip
    check(region, ISAS[-1])
    grouped = conv_region(
        (8, 8), 16, 24, (3, 3), groups=2, operands=(Tensor((24,), "float32"),), epilogue=bias_relu()
    )
    check(grouped, ISAS[-1])


def test_integers_out() -> None:
    """Scaled, quantised and stored as bytes."""
    steps = (
        EpilogueOp("cast", (0,)),
        EpilogueOp("multiply", (2, 1)),
        EpilogueOp("constant", (), 0.5),
        EpilogueOp("constant", (), 4.0),
        EpilogueOp("quantize", (3, 4, 5), None, "uint8"),
    )
    for channels in (64, 70):
        region = conv_region(
            (5, 20), 16, channels, (3, 3), padding=(1,) * 4, dtype="uint8", output="uint8",
            operands=(Tensor((channels,), "float32"),), epilogue=steps,
        )  # fmt: skip
        arrays = values(region)
        arrays[2] = np.abs(arrays[2]) * np.float32(1e-3)
        template, machine = template_for("conv2d"), machine_for(INTEGER_ISAS[-1])
        config = template.default_config(region, machine)
        kernel = compiled(template.build(region, config, machine.isa), INTEGER_ISAS[-1])
        output = np.zeros(region.output.shape, "uint8")
        inputs = packed(region, config, machine.isa, arrays)
        kernel(*(tensor_of(x) for x in inputs), tensor_of(output))
        scaled = template.reference(region, arrays[:2]).astype("float32") * arrays[2]
        wanted = np.clip(np.rint(scaled / np.float32(0.5)) + 4, 0, 255)
        np.testing.assert_array_equal(output, wanted)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("dtype", "groups"), [("float32", 1), ("float32", 2), ("uint8", 1), ("bfloat16", 2)]
)
def test_unpacking_gives_the_weight(dtype: str, groups: int) -> None:
    region = conv_region(
        (5, 5), 6, 38, (3, 2), groups=groups, dtype=dtype,
        **({"a_zero_point": 3} if dtype == "uint8" else {}),
    )  # fmt: skip
    isa = BEST[dtype][-1]
    config = config_for(region, isa)
    weight = values(region)[1]
    template, target_isa = template_for("conv2d"), machine_for(isa).isa
    assert template.packing is not None
    array = template.packing(region, config, target_isa, 1).pack(weight)
    assert array.shape == template.packing(region, config, target_isa, 1).shape
    builder = relax.BlockBuilder()
    x = relax.Var("w", relax.TensorType(array.shape, str(array.dtype)))
    with builder.function("main", [x]):
        builder.emit_func_output(
            builder.emit(template.packing(region, config, target_isa, 1).unpack(x))
        )
    np.testing.assert_array_equal(run_relax(builder.get(), [array])[0], weight)


def test_defaults_and_the_space_are_legal() -> None:
    """Every configuration of the space builds; a few of them run."""
    region = conv_region((7, 7), 8, 40, (3, 3), padding=(1,) * 4)
    machine = machine_for(ISAS[-1], threads=2)
    template = template_for("conv2d")
    found = list(template.space(region, machine))
    assert len(found) == len(set(found)) > 20
    assert found[0] == template.default_config(region, machine)
    for config in itertools.islice(found, 0, None, max(1, len(found) // 4)):
        check(region, ISAS[-1], config)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rows": 99}, "rows=99"),
        ({"vectors": 0}, "vectors=0"),
        ({"lines": 2}, "lines=2"),
        ({"lines": 2, "staged": True, "band": 2, "rows": 2}, "needs a staged, whole image"),
        ({"kernel": "no_such_kernel"}, "no microkernel"),
        ({"kernel": "avx2_u8s8s32_4x16", "rows": 1, "vectors": 1}, "multipl"),
    ],
)
def test_illegal_configurations_are_refused(fields: dict, message: str) -> None:
    region = conv_region((7, 7), 8, 40, (3, 3))
    config = config_for(region, ISAS[-1], **fields)
    with pytest.raises(TvmHybridError, match=message):
        template_for("conv2d").build(region, config, isa_named(ISAS[-1]))


def test_many_taps_at_the_edges_are_refused_in_place() -> None:
    region = conv_region((9, 90), 8, 16, (3, 39), padding=(1, 19, 1, 19))
    config = config_for(region, ISAS[-1])
    assert config.staged
    check(region, ISAS[-1], config)
    with pytest.raises(ConfigError, match="taps with code of their own"):
        in_place = config_for(region, ISAS[-1], staged=False)
        template_for("conv2d").build(region, in_place, isa_named(ISAS[-1]))


def test_what_cannot_be_read_in_place_says_so() -> None:
    region = conv_region((7, 7), 3, 16, (3, 3), dtype="uint8")
    config = config_for(region, INTEGER_ISAS[-1], staged=False)
    with pytest.raises(ConfigError, match="staged"):
        template_for("conv2d").build(region, config, isa_named(INTEGER_ISAS[-1]))


@pytest.mark.parametrize(
    ("region", "reason"),
    [
        (conv_region((5, 5), 4, 8, (3, 3), weight="int8", dtype="uint8", b_zero_point=3), "zero"),
        (conv_region((2, 2), 4, 8, (3, 3)), "dimension is 0"),
    ],
    ids=["weight zero point", "empty"],
)
def test_what_no_kernel_builds_has_a_reason(region: Region, reason: str) -> None:
    found = template_for("conv2d").reject(region, isa_named("avx512_bf16"))
    assert found is not None and reason in found


def test_forms() -> None:
    """Which contiguous runs of memory form a window."""

    def form(region: Region, isa: str) -> tuple[str, bool]:
        config = config_for(region, isa)
        kernel = microkernel_named(config.kernel)
        return WeightLayout.of(region, config, kernel).form, reads_in_place(region, kernel)

    assert form(conv_region((5, 5), 3, 8, (3, 3)), ISAS[-1]) == ("fused", True)
    assert form(conv_region((5, 5), 3, 8, (3, 3), dilation=(1, 2)), ISAS[-1]) == ("split", True)
    # Floats that pad a run could be infinite, even where the weight is 0.
    odd, even = (conv_region((5, 5), count, 8, (3, 3), dtype="bfloat16") for count in (3, 4))
    assert form(odd, "avx512_bf16")[0] == "split"
    assert form(even, "avx512_bf16")[0] == "fused"
    best = INTEGER_ISAS[-1]
    if machine_for(best).isa.includes(isa_named("avx2")):
        assert form(conv_region((5, 5), 3, 8, (3, 3), dtype="uint8"), best) == ("fused", False)
        assert form(conv_region((5, 5), 8, 8, (3, 3), dtype="uint8"), best) == ("fused", True)
