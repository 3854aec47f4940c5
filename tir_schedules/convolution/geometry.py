"""What a convolution region is: shapes, strides, padding, and its meaning by NumPy.

    Y[n, o.., oc] = sum over (k.., ic) of X[n, o * s + k * d - p, g * IC + ic] * W[k.., ic, oc]

with strides s, dilation d, padding p. Inputs are x [N, *extents, C] and the weight
[*kernel, C / groups, OC]; the output is [N, *outputs, OC]. Any number of axes; the attributes
"strides", "dilation" and "padding" are lists, one number for each axis ("padding" all
beginnings, then all ends), "groups" is a number. What lies outside of x is 0 or, of integers, their
zero point.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass

import numpy as np

from microkernels.isa import Isa
from tir_schedules.core.integer_product import is_integer
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.size import is_open
from tir_schedules.product.zero_points import centred_inputs


@dataclass(frozen=True)
class ConvGeometry:
    """Shape of a convolution; tuples have an entry for each axis.

    Attributes
    ----------
    batch, channels, out_channels, groups : int
        Samples, channels of x and of the result, and groups that both are cut into.
    extents, kernel, outputs : tuple of int
        Positions of x, of the weight, of the result.
    strides, dilation, before, after : tuple of int
        Steps between windows and between taps; positions added before and after x.
    """

    batch: int
    channels: int
    out_channels: int
    groups: int
    extents: tuple[int, ...]
    kernel: tuple[int, ...]
    outputs: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @staticmethod
    def of(region: Region) -> ConvGeometry:
        """The geometry of a region."""
        x, w = region.inputs[0].shape, region.inputs[1].shape
        rank = len(x) - 2
        extents = x[1:-1]
        strides, dilation = region.numbers("strides"), region.numbers("dilation")
        padding = region.numbers("padding")
        before, after, kernel = padding[:rank], padding[rank:], w[:rank]
        spans = [(taps - 1) * step + 1 for taps, step in zip(kernel, dilation, strict=True)]
        outputs = tuple(
            (extent + low + high - span) // stride + 1
            for extent, low, high, span, stride in zip(
                extents, before, after, spans, strides, strict=True
            )
        )
        return ConvGeometry(
            batch=x[0],
            channels=x[-1],
            out_channels=w[-1],
            groups=region.integer("groups", 1),
            extents=extents,
            kernel=kernel,
            outputs=outputs,
            strides=strides,
            dilation=dilation,
            before=before,
            after=after,
        )

    def as_volume(self) -> ConvGeometry:
        """The same with three axes; where every window is a pixel, one line of all of them."""
        one, zero = (1, 1, 1), (0, 0, 0)
        if {*self.kernel, *self.strides} == {1} and not self.padded:
            line = (1, 1, math.prod(self.extents))
            return dataclasses.replace(
                self, extents=line, outputs=line, kernel=one, strides=one, dilation=one,
                before=zero, after=zero,
            )  # fmt: skip
        new = 3 - len(self.extents)
        return dataclasses.replace(
            self,
            extents=one[:new] + self.extents,
            kernel=one[:new] + self.kernel,
            outputs=one[:new] + self.outputs,
            strides=one[:new] + self.strides,
            dilation=one[:new] + self.dilation,
            before=zero[:new] + self.before,
            after=zero[:new] + self.after,
        )

    @property
    def group_channels(self) -> int:
        """Channels of x that one result is computed from."""
        return self.channels // self.groups

    @property
    def group_out_channels(self) -> int:
        """Channels of the result that are computed from the same channels of x."""
        return self.out_channels // self.groups

    @property
    def pixels(self) -> int:
        """Positions of the result, of all samples."""
        return self.batch * math.prod(self.outputs)

    @property
    def padded(self) -> bool:
        """Whether a window reaches outside of x."""
        return any(self.before) or any(self.after)

    @property
    def flops(self) -> int:
        """Multiplications and additions, padding included."""
        taps = math.prod(self.kernel) * self.group_channels
        return 2 * self.pixels * self.out_channels * taps

    def inside(self, axis: int, output: int) -> tuple[int, int]:
        """The taps of an axis that lie within x, for one position of the result: [first, last)."""
        start = output * self.strides[axis] - self.before[axis]
        step, extent = self.dilation[axis], self.extents[axis]
        first = max(0, -(start // step))
        last = min(self.kernel[axis], max(first, -(-(extent - start) // step)))
        return min(first, last), last


def one_image(region: Region) -> Region:
    """The region of a single image, where the size of the batch is symbolic.

    By it configurations are chosen, so that threads share the lines of an image.
    """
    if not region.is_open:
        return region

    def single(tensor: Tensor) -> Tensor:
        shape = tuple(1 if is_open((size,)) else size for size in tensor.shape)
        return Tensor(shape, tensor.dtype, tensor.constant)

    return region.replace(
        inputs=tuple(map(single, region.inputs)),
        operands=tuple(map(single, region.operands)),
        output=single(region.output),
    )


def opens_batch(region: Region, isa: Isa) -> str | None:
    """Why a convolution cannot be built for any number of images, or None."""
    if is_open(region.inputs[0].shape[1:]) or is_open(region.output.shape[1:]):
        return "lines or columns whose number is not known"
    rank = len(region.output.shape)
    for tensor in region.operands:
        inner = tensor.shape[1:] if len(tensor.shape) == rank else tensor.shape
        if is_open(inner):
            return f"an operand {tensor}"
    return None


def flops(region: Region) -> int:
    """Multiplications and additions of a convolution region, padding included."""
    return ConvGeometry.of(region).flops


def conv_reference(region: Region, inputs: list[np.ndarray]) -> np.ndarray:
    """The convolution in float64 or, of integers, wrapped to int32; the weight unpacked."""
    geometry = ConvGeometry.of(region)
    x, w = inputs[:2]
    if is_integer(region):
        x, w = centred_inputs(region, inputs)
    elif region.inputs[1].dtype == "bfloat16":
        x = x.astype(w.dtype)
    x, w = x.astype(np.float64), w.astype(np.float64)
    result = _convolve(geometry, x, w)
    return result.astype(np.int64).astype(np.int32) if is_integer(region) else result


def _convolve(geometry: ConvGeometry, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """One product for each tap."""
    margins = zip(geometry.before, geometry.after, strict=True)
    x = np.pad(x, ((0, 0), *margins, (0, 0)))
    groups, channels = geometry.groups, geometry.group_channels
    shape = (geometry.batch, *geometry.outputs)
    total = np.zeros((*shape, groups, geometry.group_out_channels))
    for taps in itertools.product(*map(range, geometry.kernel)):
        window = tuple(
            slice(tap * step, tap * step + (count - 1) * stride + 1, stride)
            for tap, step, count, stride in zip(
                taps, geometry.dilation, geometry.outputs, geometry.strides, strict=True
            )
        )
        pixels = x[(slice(None), *window)].reshape(*shape, groups, 1, channels)
        weight = w[taps].reshape(channels, groups, -1).transpose(1, 0, 2)
        total += np.matmul(pixels, weight)[..., 0, :]
    return total.reshape(*shape, geometry.out_channels)
