"""Regions of depthwise convolutions for tests, and configurations of the template."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.tir_schedules.conv_regions import conv_region
from tests.tir_schedules.run_region import BF16_ISAS, INTEGER_ISAS, ISAS, machine_for
from tir_schedules.convolution.depthwise.config import (
    DepthwiseConfig,
    DepthwiseProblem,
    default_config,
    dot_kernel,
)
from tir_schedules.core.region import Region

ISAS_OF = {"float32": ISAS, "uint8": INTEGER_ISAS, "int8": INTEGER_ISAS, "bfloat16": BF16_ISAS}
DTYPES = tuple(ISAS_OF)


def depthwise(
    extents: tuple[int, ...], channels: int, kernel: tuple[int, ...], **fields: Any
) -> Region:
    """A depthwise convolution, as `conv_region` describes it."""
    return conv_region(
        extents, channels, channels, kernel, groups=channels, op="depthwise_conv2d", **fields
    )


def config_for(region: Region, isa: str, **fields: int) -> DepthwiseConfig:
    """The default configuration with some fields changed."""
    default = default_config(region, machine_for(isa))
    return DepthwiseConfig.from_dict({**default.to_dict(), **fields})


@st.composite
def cases(draw: st.DrawFn, dtypes: tuple[str, ...]) -> tuple[Region, dict[str, int]]:
    """A small depthwise convolution, and fields of a legal configuration for it."""
    rank = draw(st.sampled_from((1, 2, 2, 2)))

    def numbers(low: int, high: int, count: int = rank) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(count))

    dtype = draw(st.sampled_from(dtypes))
    channels = draw(st.sampled_from((1, 3, 16, 17, 33, 70, 130)))
    kernel, strides, dilation = numbers(1, 5), numbers(1, 3), numbers(1, 2)
    padding = numbers(0, 3, 2 * rank)
    least = [
        max(1, (k - 1) * d + 1 - padding[i] - padding[rank + i])
        for i, (k, d) in enumerate(zip(kernel, dilation, strict=True))
    ]
    region = depthwise(
        tuple(low + draw(st.integers(0, 9)) for low in least),
        channels,
        kernel,
        batch=draw(st.integers(1, 2)),
        strides=strides,
        padding=padding,
        dilation=dilation,
        dtype=dtype,
        **({"a_zero_point": draw(st.sampled_from((0, 5)))} if "int8" in dtype else {}),
    )
    problem = DepthwiseProblem.of(region)
    isa = ISAS_OF[dtype][-1]
    lanes = machine_for(isa).isa.f32_lanes
    kernel_of = dot_kernel(region, machine_for(isa).isa)
    vectors = -(-channels // lanes)
    most = {
        "rows": problem.rows.outputs if problem.rows.dilation == 1 else 1,
        "columns": problem.columns.outputs,
        "vectors": vectors if kernel_of is None else 1,
        "blocks": vectors if kernel_of is None else -(-channels // (lanes * kernel_of.kr)),
    }
    fields = {name: draw(st.integers(1, min(limit, 4))) for name, limit in most.items()}
    return region, {**fields, "threads": draw(st.integers(1, 3))}
