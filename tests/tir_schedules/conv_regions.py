"""Regions of convolutions for tests, their inputs and what their results must be."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.tir_schedules.run_region import expected, product_bound, random_inputs, run
from tir_schedules.convolution.geometry import ConvGeometry
from tir_schedules.core.config import Config
from tir_schedules.core.region import EpilogueOp, Region, Tensor

WEIGHTS = {"float32": "float32", "uint8": "int8", "int8": "int8", "bfloat16": "bfloat16"}


def conv_region(
    extents: tuple[int, ...],
    channels: int,
    out_channels: int,
    kernel: tuple[int, ...],
    *,
    batch: int = 1,
    strides: tuple[int, ...] | None = None,
    padding: tuple[int, ...] | None = None,
    dilation: tuple[int, ...] | None = None,
    groups: int = 1,
    dtype: str = "float32",
    weight: str | None = None,
    output: str | None = None,
    inputs: tuple[Tensor, ...] = (),
    operands: tuple[Tensor, ...] = (),
    epilogue: tuple[EpilogueOp, ...] = (),
    op: str | None = None,
    **attrs: Any,
) -> Region:
    """A convolution; strides and dilation are 1, padding is 0, unless given."""
    rank = len(extents)
    weight = weight or WEIGHTS[dtype]
    described = {
        "strides": tuple(strides or (1,) * rank),
        "dilation": tuple(dilation or (1,) * rank),
        "padding": tuple(padding or (0,) * 2 * rank),
        "groups": groups,
        **attrs,
    }
    x = (batch, *extents, channels)
    region = Region(
        op=op or f"conv{rank}d",
        inputs=(
            Tensor(x, dtype),
            Tensor((*kernel, channels // groups, out_channels), weight, constant=True),
            *inputs,
        ),
        output=Tensor((), output or ("int32" if weight == "int8" else "float32")),
        operands=operands,
        attrs=described,
        epilogue=epilogue,
    )
    shape = (batch, *ConvGeometry.of(region).outputs, out_channels)
    return region.replace(output=Tensor(shape, region.output.dtype))


def values(region: Region, seed: int = 0) -> list[np.ndarray]:
    """Inputs and operands; integers over their whole range."""
    arrays = random_inputs(region, seed)
    rng = np.random.default_rng(seed)
    for i, tensor in enumerate(region.inputs):
        if tensor.dtype in ("uint8", "int8"):
            limits = np.iinfo(tensor.dtype)
            arrays[i] = rng.integers(limits.min, limits.max, tensor.shape, tensor.dtype, True)
    return arrays


def check(
    region: Region, isa: str, config: Config | None = None, seed: int = 0, **options: Any
) -> None:
    """The kernel's result is that of the definition: integers to the bit, floats within a bound.

    The bound of a sum of K products in any order is K * eps * |x| |w| (Higham, section 3.1), and
    bfloat16 products are exact in f32; adding an operand and a relu keep it but for one rounding.
    """
    arrays = values(region, seed)
    result = run(region, arrays, isa, config, **options)
    wanted = expected(region, arrays)
    if region.output.dtype in ("int32", "uint8", "int8"):
        np.testing.assert_array_equal(result, wanted)
        return
    k = int(np.prod(region.inputs[1].shape[:-1]))
    bound = (k + 2) / arrays[0].shape[-1] * product_bound(plain(region), arrays)
    error = np.abs(result.astype(np.float64) - wanted)
    assert (error <= bound + np.finfo(np.float32).eps * np.abs(wanted)).all(), error.max()


def plain(region: Region) -> Region:
    """The convolution without its epilogue."""
    shape = region.output.shape
    return region.replace(operands=(), epilogue=(), output=Tensor(shape, "float32"))


@st.composite
def convolutions(draw: st.DrawFn, dtypes: tuple[str, ...] = ("float32",)) -> Region:
    """Small convolutions of every kind whose result is not empty."""
    rank = draw(st.sampled_from((1, 2, 2, 2, 3)))

    def numbers(low: int, high: int, count: int = rank) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(count))

    dtype = draw(st.sampled_from(dtypes))
    groups = draw(st.sampled_from((1, 1, 1, 2, 3)))
    channels = groups * draw(st.sampled_from((1, 2, 3, 4, 8, 17)))
    out_channels = groups * draw(st.sampled_from((1, 3, 16, 17, 40)))
    kernel, dilation = numbers(1, 4), numbers(1, 3)
    strides, padding = numbers(1, 3), numbers(0, 3, 2 * rank)
    least = [
        max(1, (k - 1) * d + 1 - padding[i] - padding[rank + i])
        for i, (k, d) in enumerate(zip(kernel, dilation, strict=True))
    ]
    extents = tuple(low + draw(st.integers(0, 9 if rank < 3 else 3)) for low in least)
    zero: dict[str, Any] = {}
    if dtype in ("uint8", "int8"):
        zero["a_zero_point"] = draw(st.sampled_from((0, 5)))
    return conv_region(
        extents,
        channels,
        out_channels,
        kernel,
        batch=draw(st.integers(1, 2)),
        strides=strides,
        padding=padding,
        dilation=dilation,
        groups=groups,
        dtype=dtype,
        **zero,
    )
