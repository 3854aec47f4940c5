"""The shape of a convolution region, its strides and padding, and its reference in NumPy.

    Y[n, o.., oc] = sum over (k.., ic) of X[n, o * s + k * d - p, g * IC + ic] * W[k.., ic, oc]

with strides s, dilation d, padding p. Inputs are x [N, *extents, C] and the weight
[*kernel, C / groups, OC]; the output is [N, *outputs, OC]. There may be any number of axes. The
attributes "strides", "dilation" and "padding" are lists with one number for each axis ("padding"
has all beginnings, then all ends); "groups" is a number. Outside of x the value is 0, or the zero
point of x if x is an integer.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from microkernels.isa import Isa
from microkernels.vector.expressions import Index
from tir_schedules.core import emission
from tir_schedules.core.blocking import Group, balanced
from tir_schedules.core.product_plan import is_integer
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.size import is_dynamic
from tir_schedules.core.template import C, Template
from tir_schedules.product.zero_points import centred_inputs

SAMPLE_EXTENT = 64  # lines and columns of the sample image that stands for dynamic ones


@dataclass(frozen=True)
class ConvGeometry:
    """Shape of a convolution; the tuples have one entry for each axis."""

    batch: int
    channels: int  # of x
    out_channels: int
    groups: int
    extents: tuple[int, ...]  # positions of x
    kernel: tuple[int, ...]
    outputs: tuple[int, ...]  # positions of the result
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]  # positions of padding before x
    after: tuple[int, ...]  # positions of padding after x

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
        if is_dynamic(extents):  # take the symbols that the region names its result's sizes by
            triples = zip(extents, outputs, region.output.shape[1:-1], strict=True)
            outputs = tuple(own if is_dynamic((size,)) else known for size, known, own in triples)
        sizes = x[0], x[-1], w[-1], region.integer("groups", 1)
        return ConvGeometry(
            *sizes, extents, kernel, outputs, strides, dilation, before=before, after=after
        )

    def as_volume(self) -> ConvGeometry:
        """The geometry with three axes; a 1x1 convolution without strides becomes a single line."""
        if {*self.kernel, *self.strides} == {1} and not self.padded:
            line, one, zero = (math.prod(self.extents),), (1,), (0,)
            pixels = ConvGeometry(
                *(self.batch, self.channels, self.out_channels, self.groups),
                *(line, one, line, one, one, zero, zero),
            )
            return pixels.with_axes(3)
        return self.with_axes(3)

    def with_axes(self, rank: int) -> ConvGeometry:
        """The geometry with leading axes of size 1 added, so that it has `rank` axes."""
        new = rank - len(self.extents)
        of_ones = ("extents", "kernel", "outputs", "strides", "dilation")
        found = {name: (1,) * new + getattr(self, name) for name in of_ones}
        found |= {name: (0,) * new + getattr(self, name) for name in ("before", "after")}
        return dataclasses.replace(self, **found)

    @property
    def has_dynamic_image(self) -> bool:
        """Whether an extent of the image is dynamic."""
        return is_dynamic(self.extents)

    @property
    def group_channels(self) -> int:
        """Channels of x that one result is computed from."""
        return self.channels // self.groups

    @property
    def group_out_channels(self) -> int:
        """Channels of the result in one group."""
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
        """The taps of an axis that lie within x for one position of the result: [first, last)."""
        start = output * self.strides[axis] - self.before[axis]
        step, extent = self.dilation[axis], self.extents[axis]
        first = max(0, -(start // step))
        last = min(self.kernel[axis], max(first, -(-(extent - start) // step)))
        return min(first, last), last

    def whole(self, axis: int) -> tuple[int, int]:
        """The positions of the result whose taps along an axis all lie within x: [first, last).

        The range is contiguous: padding cuts only the first windows and the last ones.
        """
        stride, span = self.strides[axis], (self.kernel[axis] - 1) * self.dilation[axis]
        outputs = self.outputs[axis]
        first = max(0, min(outputs, -(-self.before[axis] // stride)))
        last = -(-(self.extents[axis] + self.before[axis] - span) // stride)
        return first, max(first, min(outputs, last))

    def reached(self, axis: int, tap: int, first: int, last: int) -> int:
        """How many positions in [first, last) of the result have the tap `tap` within x."""
        stride, before = self.strides[axis], self.before[axis] - tap * self.dilation[axis]
        low = max(first, -(-before // stride))
        return max(0, min(last, -(-(self.extents[axis] + before) // stride)) - low)


def alike_tiles(
    total: int, most: int, is_whole: Callable[[int, int], bool]
) -> Iterator[tuple[Group, bool]]:
    """Cuts a line into balanced tiles, and tells whether `is_whole(start, size)` holds for them.

    Neighbouring whole tiles of one size form one group; every other tile is a group by itself.
    """
    tiles = [
        (group.start + number * group.size, group.size)
        for group in balanced(total, most)
        for number in range(group.count)
    ]
    for (whole, size), alike in itertools.groupby(tiles, lambda t: (is_whole(*t), t[1])):
        starts = [start for start, _ in alike]
        if whole:
            yield Group(starts[0], len(starts), size), True
        else:
            yield from ((Group(start, 1, size), False) for start in starts)


def one_image(region: Region, images: int = 1, size: int = SAMPLE_EXTENT) -> Region:
    """The region of one sample image, whose static sizes replace dynamic ones.

    Configurations are chosen for it, so that threads share the lines of an image.

    Parameters
    ----------
    images, size : int
        Number of images, and extent of x along an axis, in the place of dynamic sizes.
    """
    if not region.is_dynamic:
        return region
    x, geometry = region.inputs[0], ConvGeometry.of(region)
    windows = zip(x.shape[1:-1], geometry.kernel, geometry.dilation, geometry.strides, strict=True)
    extents = []
    for own, taps, dilation, stride in windows:
        span = (taps - 1) * dilation + 1
        # If the window is larger than the sample, the result has `size` positions instead of x.
        usual = size if span <= size else (size - 1) * stride + span
        extents.append(usual if is_dynamic((own,)) else own)
    first = images if is_dynamic(x.shape[:1]) else x.shape[0]
    image = Tensor((first, *extents, x.shape[-1]), x.dtype)
    single = region.replace(inputs=(image, *region.inputs[1:]))
    output = (first, *ConvGeometry.of(single).outputs, region.output.shape[-1])

    def known(tensor: Tensor) -> Tensor:
        own = output[len(output) - len(tensor.shape) :]
        sizes = zip(tensor.shape, own, strict=True)
        shape = tuple(there if is_dynamic((size,)) else size for size, there in sizes)
        return Tensor(shape, tensor.dtype, tensor.constant)

    return single.replace(operands=tuple(map(known, region.operands)), output=known(region.output))


def _convolve(geometry: ConvGeometry, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The convolution, as one matrix product for each tap."""
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


class ConvTemplate(Template[C]):
    """Base class of the templates of convolutions."""

    def reject_dynamic(self, region: Region, isa: Isa) -> str | None:
        """Why a convolution cannot be built for dynamic sizes, or None."""
        x, output = region.inputs[0], region.output.shape
        if is_dynamic((x.shape[-1], output[-1])):
            return "a dynamic number of channels"
        if any(tensor.is_dynamic for tensor in region.inputs[1:]):
            return "a weight of dynamic size"
        if any(
            is_dynamic((b,)) and not is_dynamic((a,)) for a, b in zip(x.shape, output, strict=True)
        ):
            return "a result with other dynamic sizes than the input"
        for tensor in region.operands:
            sizes = zip(tensor.shape, output[len(output) - len(tensor.shape) :], strict=True)
            if any(is_dynamic((size,)) and size != there for size, there in sizes):
                return f"an operand {tensor} whose dynamic sizes are not those of the result"
        return None

    def flops(self, region: Region) -> int:
        """Multiplications and additions of a convolution region, padding included."""
        return ConvGeometry.of(region).flops

    def reference(self, region: Region, inputs: list[np.ndarray]) -> np.ndarray:
        """The convolution in float64 or, for integers, wrapped to int32; the weight is unpacked."""
        geometry = ConvGeometry.of(region)
        x, w = inputs[:2]
        if is_integer(region):
            x, w = centred_inputs(region, inputs)
        elif region.inputs[1].dtype in ("bfloat16", "float16"):
            x = x.astype(w.dtype)
        x, w = x.astype(np.float64), w.astype(np.float64)
        result = _convolve(geometry, x, w)
        return result.astype(np.int64).astype(np.int32) if is_integer(region) else result


# Classes of positions: positions whose windows have the same taps within the image.
#
# A zero point is multiplied by the sum of the weights of these taps, so the sum differs at the
# edges. Along an axis there are few classes: each of the first positions is one, all positions with
# every tap inside are one, and each of the last positions is one.


@dataclass(frozen=True)
class AxisClasses:
    """The classes of one axis: `low` positions at its start, `high` at its end, and the rest."""

    outputs: int
    low: int
    high: int

    @staticmethod
    def of(geometry: ConvGeometry, axis: int) -> AxisClasses:
        """The classes of an axis of a convolution."""
        outputs, (first, last) = geometry.outputs[axis], geometry.whole(axis)
        if first == last:
            return AxisClasses(outputs, outputs - 1, 0)
        return AxisClasses(outputs, first, outputs - last)

    @property
    def count(self) -> int:
        """Number of classes."""
        return min(self.outputs, self.low + 1 + self.high)

    def number(self, output: Index) -> Index:
        """The class of a position."""
        if self.count == 1:
            return 0
        beyond = emission.largest(output - (self.outputs - 1 - self.high), 0)
        return emission.smallest(output, self.low) + beyond

    def representative(self, number: int) -> int:
        """Some position of a class."""
        return number if number <= self.low else self.outputs - self.count + number


class PositionClasses:
    """The classes of all positions of a convolution; one class if `whole` (all taps count)."""

    def __init__(self, geometry: ConvGeometry, whole: bool) -> None:
        self.geometry = geometry
        self.axes = [
            AxisClasses(outputs, 0, 0) if whole else AxisClasses.of(geometry, axis)
            for axis, outputs in enumerate(geometry.outputs)
        ]
        self.whole = whole

    @property
    def count(self) -> int:
        """Number of classes."""
        return math.prod(axis.count for axis in self.axes)

    def number(self, position: Sequence[Index]) -> Index:
        """The class of a position; 0 if `whole`."""
        if self.whole:
            return 0
        found: Index = 0
        for axis, output in zip(self.axes, position, strict=True):
            found = found * axis.count + axis.number(output)
        return found

    def taps(self, weight: np.ndarray) -> list[np.ndarray]:
        """For each class, the weights [*kernel, IC, OC] of its inside taps, as a matrix [K, OC]."""
        found = []
        for numbers in itertools.product(*(range(axis.count) for axis in self.axes)):
            inside = [slice(None)] * len(self.axes)
            if not self.whole:
                inside = [
                    slice(*self.geometry.inside(i, axis.representative(number)))
                    for i, (axis, number) in enumerate(zip(self.axes, numbers, strict=True))
                ]
            found.append(weight[tuple(inside)].reshape(-1, weight.shape[-1]))
        return found
