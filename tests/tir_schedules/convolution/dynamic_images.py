"""Convolutions with dynamic image sizes: their regions, and the values of their symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tests.tir_schedules.conv_regions import values
from tests.tir_schedules.dynamic_regions import DynamicKernel, at_sizes
from tests.tir_schedules.run_region import expected, product_bound
from tir_schedules.convolution.geometry import ConvGeometry
from tir_schedules.core.config import Config
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.size import SymbolicSize

Sizes = Sequence[int]  # batch, then an extent for each axis
OfSizes = Callable[[Sizes], Region]

EXAMPLE = (1, 9, 13)


def dynamic_region(of_sizes: OfSizes, axes: Sequence[int], example: Sizes = EXAMPLE) -> Region:
    """The region with symbols for some axes of x, and other symbols for the result."""
    region = of_sizes(example)

    def of(tensor: Tensor, name: str) -> Tensor:
        shape = tuple(
            SymbolicSize.of(f"{name}{axis}") if axis in axes else size
            for axis, size in enumerate(tensor.shape)
        )
        return Tensor(shape, tensor.dtype)

    output = of(region.output, "y")
    if 0 in axes:
        output = Tensor((SymbolicSize.of("x0"), *output.shape[1:]), output.dtype)
    operands = tuple(
        output if each.shape == region.output.shape else each for each in region.operands
    )
    x = of(region.inputs[0], "x")
    return region.replace(inputs=(x, *region.inputs[1:]), operands=operands, output=output)


def symbols(region: Region) -> Mapping[str, int]:
    """The values of all symbols for a static region."""
    found = {f"x{axis}": size for axis, size in enumerate(region.inputs[0].shape)}
    return found | {f"y{axis}": size for axis, size in enumerate(region.output.shape)}


def check(
    of_sizes: OfSizes,
    axes: Sequence[int],
    isa: str,
    sizes: Sequence[Sizes],
    threads: int = 1,
    config: Config | None = None,
    example: Sizes = EXAMPLE,
) -> None:
    """One kernel is right for all sizes: integers to the bit, floats within a bound.

    The bound is that of `conv_regions.check`: K * eps * |x| |w|, and the operands' rounding.
    """
    region = dynamic_region(of_sizes, axes, example)
    kernel = DynamicKernel(region, isa, threads, config)
    for size in sizes:
        static = of_sizes(size)
        found = symbols(static)
        assert at_sizes(region, found) == static
        arrays = values(static)
        wanted = expected(static, arrays)
        bound = np.zeros(())
        if static.output.dtype != "int32":
            taps = static.inputs[1].size // static.output.shape[-1]
            bound = product_bound(static, arrays) * taps + 1e-6 * np.abs(wanted) + 1e-6
        for at_end in (True, False):
            result = kernel.run(found, arrays, at_end)
            assert (np.abs(result - wanted) <= bound).all(), size


def bias_and_residual(region: Region) -> Region:
    """The region with a bias, a residual and a relu."""
    channels = region.output.shape[-1]
    return region.replace(
        operands=(Tensor((channels,), "float32"), Tensor(region.output.shape, "float32")),
        epilogue=(EpilogueOp("add", (0, 1)), EpilogueOp("add", (3, 2)), EpilogueOp("relu", (4,))),
    )


def fits(of_sizes: OfSizes, size: Sizes) -> bool:
    """Whether the result for such an image has elements."""
    return min(ConvGeometry.of(of_sizes(size)).outputs) > 0
