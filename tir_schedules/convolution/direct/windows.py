"""Where a convolution's kernel reads windows: in x itself, or in a padded copy of a band of lines.

x is copied where the kernel cannot read it as it is: elements of another type, runs that are no
whole steps of the kernel, AMX tiles, 8-bit integers that are widened before they are multiplied.
The copy holds the lines that a band of the result needs, with padding filled in, so every window is
complete. Without a copy, taps outside of the image are left out: above and below by the bounds of
the loop, at the left and right edges by tiles with code of their own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence

import tvm.tirx.script.builder.ir as I
from tvm import DataType, tirx

from microkernels.kernels.byte_pairs import KR
from microkernels.microkernel import Microkernel
from microkernels.tile import Address
from microkernels.vector.expressions import Expr, Index, cast, constant, materialise, ramp, splat
from microkernels.vector.placeholders import Placeholder
from tir_schedules.convolution.geometry import alike_tiles
from tir_schedules.core import emission
from tir_schedules.core.blocking import Group
from tir_schedules.core.extents import allocated, as_expr, extent
from tir_schedules.epilogue.epilogue import Columns, load_vector, store_vector
from tir_schedules.epilogue.quantize_steps import Number
from tir_schedules.product.activations import HighBits, as_operand, converts
from tir_schedules.product.byte_outliers import LANES, OutlierList, Products
from tir_schedules.product.tile_products import LoadPanel

from .config import wide_of
from .weight import WeightLayout

Bounds = tuple[Index, Index]


class Windows:
    """The A operand of a convolution.

    Parameters
    ----------
    layout : WeightLayout
        The convolution's weight.
    x : Buffer
        The parameter.
    quantize : tuple or None
        Scale and zero point with which f32 elements become the kernel's type.
    outside : Expr or int
        The value outside of x, as the kernel multiplies it.
    widens : bool
        Whether elements are widened, if tiles of the region may multiply widened ones.
    """

    def __init__(
        self,
        layout: WeightLayout,
        x: Expr,
        quantize: tuple[Number, Number] | None,
        outside: Index,
        widens: bool = True,
    ) -> None:
        region, config = layout.region, layout.plan.config
        self.geometry = geometry = layout.geometry.as_volume()
        self.kernel: Microkernel = layout.kernel
        self.dtype, self.staged = region.inputs[0].dtype, config.staged
        self.quantize, self.outside = quantize, outside
        self.wide = wide_of(region, self.kernel) if widens else None
        self.element_dtype = self.kernel.operand_dtype if self.wide is None else self.wide.dtype
        item = int(DataType(self.dtype).itemsize)
        size = extent(region.inputs[0].size)
        self.x = I.decl_buffer((size,), self.dtype, data=x.data, align=item)
        self.plane: Sequence[Expr] = ()
        self.first: Expr = tirx.const(0, "int32")
        if not self.staged:
            self.pixel, self.group = geometry.channels, geometry.group_channels
            return
        unit = self.kernel.kr * self.kernel.depth if layout.form == "split" else 1
        self.group = math.ceil(geometry.group_channels / unit) * unit
        self.pixel = geometry.groups * self.group
        span = [(k - 1) * d + 1 for k, d in zip(geometry.kernel, geometry.dilation, strict=True)]
        self.most_lines = (config.band - 1) * geometry.strides[1] + span[1]
        across = layout.plan.across
        # If tiles run on from line to line, the lines of neighbouring results must be neighbours.
        self.phases = 1 if across is None else geometry.strides[1]
        self.phase = math.ceil(self.most_lines / self.phases)
        vector = self.kernel.lanes * self.kernel.kr
        # A padded run reads this many elements behind the last window; the line has them.
        beyond = layout.steps * self.kernel.kr - layout.packed.k

        def pitch(outputs: Index) -> Index:
            if across is not None:
                return across.distance * geometry.strides[2] * self.pixel
            if (
                geometry.has_dynamic_image
            ):  # room for whole tiles, of which the last may exceed the line
                outputs = emission.ceil_div(outputs, config.rows) * config.rows
            used = ((outputs - 1) * geometry.strides[2] + span[2]) * self.pixel + beyond
            return emission.ceil_div(used, vector) * vector

        outputs = geometry.outputs[2]
        self.width: Index = (extent(outputs) - 1) * geometry.strides[2] + span[2]
        self.pitch = emission.named(pitch(extent(outputs)))
        lines = geometry.kernel[0] * self.phases * self.phase
        size = pitch(allocated(outputs)) * lines + (0 if across is None else beyond)
        self.copy = I.sblock_alloc_buffer((size,), self.element_dtype, align=64)

    def bounds(self, axis: int, output: Index) -> Bounds:
        """The taps of an axis that are multiplied for a position of the result: [first, last)."""
        geometry, taps = self.geometry, self.geometry.kernel[axis]
        if self.staged or geometry.whole(axis) == (0, geometry.outputs[axis]):
            return 0, taps
        step, extent = geometry.dilation[axis], geometry.extents[axis]
        start = output * geometry.strides[axis] - geometry.before[axis]
        zero, most = tirx.const(0, "int32"), tirx.const(taps, "int32")
        below = tirx.Max(I.floordiv(step - 1 - start, step), zero)
        above = tirx.Min(I.floordiv(extent - start + step - 1, step), most)
        return below, tirx.Max(above, below)

    def inside(self, first: Index, columns: int, tap: int) -> list[int]:
        """The pixels of a tile for which a tap lies within the line; `first` is static."""
        assert isinstance(first, int)
        bounds = [self.geometry.inside(2, first + i) for i in range(columns)]
        return [i for i, (low, high) in enumerate(bounds) if low <= tap < high]

    def whole(self, first: int, columns: int) -> bool:
        """Whether no window of a tile reaches over the left or right edge."""
        every = (0, self.geometry.kernel[2])
        ends = (first, first + columns - 1)
        return self.staged or all(self.geometry.inside(2, end) == every for end in ends)

    def tiles(self, width: int, rows: int) -> Iterator[tuple[Group, bool]]:
        """Groups of equal tiles of a line, and whether their windows are whole.

        AMX tiles all have one configuration: the last tile overlaps the one before.
        """
        if self.kernel.by_tiles:
            yield Group(0, width // rows, rows), True
            if width % rows:
                yield Group(width - rows, 1, rows), True
        else:
            yield from alike_tiles(width, rows, self.whole)

    def element(self, line: Index, column: Index, group: Index, tap: Sequence[Index]) -> Expr:
        """Address of the first element of one pixel's run.

        `line` and `column` are the pixel of the result, in the plane that `enter` was called for;
        `tap` is the (plane, line, column) of the run.
        """
        geometry = self.geometry
        depth, height, width = tap
        if not self.staged:
            sample, plane = self.plane
            z = plane * geometry.strides[0] - geometry.before[0] + depth * geometry.dilation[0]
            y = line * geometry.strides[1] - geometry.before[1] + height * geometry.dilation[1]
            x = column * geometry.strides[2] - geometry.before[2] + width * geometry.dilation[2]
            place = ((sample * geometry.extents[0] + z) * geometry.extents[1] + y) * (
                geometry.extents[2] * self.pixel
            )
            return place + x * self.pixel + group * self.group
        tap_y = height * geometry.dilation[1]
        if self.phases == 1:
            y = self._place(depth, (line - self.first) * geometry.strides[1] + tap_y)
        else:
            y = self._place(depth, as_expr(tap_y)) + (line - self.first)
        x = column * geometry.strides[2] + width * geometry.dilation[2]
        return y * self.pitch + x * self.pixel + group * self.group

    def _place(self, plane: Index, line: Expr) -> Expr:
        """Number of a line of the band in the copy."""
        if self.phases > 1:
            turn = line // self.phases
            line = (line - turn * self.phases) * self.phase + turn
        return plane * (self.phases * self.phase) + line

    def load(self, start: Expr, step: Index) -> Expr | Address:
        """kr elements of a run, in the form that the kernel's `emit` takes."""
        if self.wide is not None:
            return self.wide.spread(self.copy, [start + step * self.wide.kernel.kr])
        kr, kernel = self.kernel.kr, self.kernel
        index = start + step * kr
        if self.staged:
            pitch = self.geometry.strides[2] * self.pixel
            return kernel.a_operand(self.copy, [index], pitch)
        value = self.x[ramp(index, kr)]
        return kernel.spread(as_operand(value, self.dtype, kernel))

    def small(self, lines: Index) -> Expr:
        """Whether no byte is beyond 127 in the copy for `lines` lines of the result."""
        geometry, (depth, taps, _) = self.geometry, self.geometry.kernel
        count = (lines - 1) * geometry.strides[1] + (taps - 1) * geometry.dilation[1] + 1
        search = HighBits(4 * self.kernel.lanes)

        def look(line: Expr, offset: Index, valid: Index) -> None:
            columns = Columns(line + offset, search.lanes, valid)
            search.add(load_vector(self.copy, "uint8", [], columns))

        with emission.opaque_block("find_high_bits"):
            search.clear()
            with I.serial(depth) as z, I.serial(count) as y:
                line = (z * self.most_lines + y) * self.pitch
                self._vectors(self.width * self.pixel, search.lanes, functools.partial(look, line))
        return search.none()

    def enter(self, sample: Expr, plane: Expr, first: Expr, lines: Index) -> None:
        """Prepares a band before its products: `lines` lines of a plane from `first` on."""
        self.plane, self.first = (sample, plane), first
        if not self.staged:
            return
        geometry = self.geometry
        depth = geometry.kernel[0]
        height = (geometry.kernel[1] - 1) * geometry.dilation[1] + 1
        count = (lines - 1) * geometry.strides[1] + height
        with emission.opaque_block("stage"), I.serial(depth) as z, I.serial(count) as y:
            source_z = plane * geometry.strides[0] - geometry.before[0]
            source_z = source_z + z * geometry.dilation[0]
            source_y = first * geometry.strides[1] - geometry.before[1] + y
            planes, lines_of_x, columns = map(extent, geometry.extents)
            number = (sample * planes + source_z) * lines_of_x + source_y
            start = number * (columns * geometry.channels)
            to = self._place(z, y) * self.pitch
            self._stage(to, start, source_z, source_y)

    def _stage(self, to: Expr, start: Expr, z: Expr, y: Expr) -> None:
        """Copies one line of x to `to`, or fills that place if the line is outside of x."""
        geometry, width, end = self.geometry, self.width, self.width * self.pixel
        if geometry.has_dynamic_image:
            # Fill the whole line: the last tile may have more windows than pixels.
            width, end = as_expr(width), self.pitch
        before = emission.named(emission.smallest(geometry.before[2], width))
        used = emission.named(
            emission.largest(emission.smallest(extent(geometry.extents[2]), width - before), 0)
        )
        conditions: list[Expr] = []
        for axis, place in ((0, z), (1, y)):
            if geometry.before[axis] or geometry.after[axis]:
                conditions += [place >= 0, place < extent(geometry.extents[axis])]

        def inside() -> None:
            self._fill(to, before * self.pixel)
            self._copy(to + before * self.pixel, start, used)
            self._fill(to + (before + used) * self.pixel, end - (before + used) * self.pixel)

        emission.where_all(conditions, inside, lambda: self._fill(to, end))

    def _copy(self, to: Expr, start: Expr, pixels: Index) -> None:
        """Copies consecutive pixels of x in the form that the kernel multiplies."""
        geometry = self.geometry
        if self.pixel == geometry.channels:
            self._run(to, start, pixels * self.pixel)
            return
        with I.serial(pixels) as pixel, I.serial(geometry.groups) as group:
            source = start + pixel * geometry.channels + group * geometry.group_channels
            place = to + pixel * self.pixel + group * self.group
            self._run(place, source, geometry.group_channels)
            zeros = self.group - geometry.group_channels
            self._fill(place + geometry.group_channels, zeros, 0)

    def _run(self, to: Expr, start: Expr, count: Index) -> None:
        lanes = self.kernel.lanes
        if not converts(self.dtype, self.kernel) and self.quantize is None:
            lanes *= 4 // DataType(self.element_dtype).itemsize

        def move(offset: Index, valid: Index) -> None:
            value = load_vector(self.x, self.dtype, [], Columns(start + offset, lanes, valid))
            value = as_operand(value, self.dtype, self.kernel, self.quantize)
            if self.wide is not None:
                value = self.wide.widen(value)
            store_vector(self.copy, value, [], Columns(to + offset, lanes, valid))

        self._vectors(count, lanes, move)

    def _fill(self, to: Expr, count: Index, number: Index | None = None) -> None:
        number = self.outside if number is None else number
        dtype = self.element_dtype
        lanes = self.kernel.lanes * 4 // DataType(dtype).itemsize
        if isinstance(number, (int, Placeholder)):
            value = constant(number, dtype, lanes)
        else:
            value = splat(cast(dtype, number), lanes)

        def put(offset: Index, valid: Index) -> None:
            store_vector(self.copy, value, [], Columns(to + offset, lanes, valid))

        self._vectors(count, lanes, put)

    @staticmethod
    def _vectors(count: Index, lanes: int, emit: Callable[[Index, Index], None]) -> None:
        count = emission.named(count)
        if isinstance(count, int):
            emission.for_groups([Group(0, count // lanes, lanes)] if count >= lanes else [], emit)
            if count % lanes:
                emit(count // lanes * lanes, count % lanes)
            return
        vectors = materialise(I.floordiv(count, lanes))
        with I.serial(vectors) as vector:
            emit(vector * lanes, lanes)
        if lanes > 1:
            with I.If(count > vectors * lanes), I.Then():
                emit(vectors * lanes, materialise(count - vectors * lanes))


# ConvOutliers: a band of x for tiles by bytes, with its outliers apart (see `byte_outliers`).
#
# The copy of a band is cut to seven bits in place. For each line of the result, the outliers of the
# lines of x that it reads are multiplied by all columns of the kernel; tiles start with these sums.
# There are sums for every place that a window can have with a stride of 1, so that no code has to
# check whether an outlier has a result there.


FEWEST_PRODUCTS = 128  # for one element of x: with fewer, a list takes longer than it saves


def lists_outliers(layout: WeightLayout) -> bool:
    """Whether the outliers of a band are listed when its bytes are examined."""
    geometry = layout.geometry.as_volume()
    taps = geometry.kernel[1] * geometry.kernel[2]
    return (
        layout.plan.config.staged
        and not geometry.has_dynamic_image
        and geometry.groups == 1
        and geometry.dilation[2] == 1
        and geometry.channels % KR == 0
        and taps * geometry.out_channels >= FEWEST_PRODUCTS
    )


class ConvOutliers:
    """The outliers of a band, in the PrimFunc under construction.

    `layout` describes the convolution's weight, `windows` the copy of a band, of bytes.
    """

    def __init__(self, layout: WeightLayout, windows: Windows) -> None:
        assert isinstance(windows.width, int) and isinstance(windows.pitch, int)
        self.layout, self.windows, self.geometry = layout, windows, windows.geometry
        self.groups = windows.pixel // KR  # in a pixel
        self.beside = self.geometry.kernel[2] - 1
        self.places = windows.width + self.beside
        lines = self.geometry.kernel[0] * windows.most_lines
        self.found = OutlierList(lines, windows.width * windows.pixel)
        widest = max(layout.packed.widths) * layout.kernel.lanes
        size = layout.plan.config.lines * self.places * widest
        self.count: Index = 0  # lines of x in each plane of the band
        self.sums = I.sblock_alloc_buffer((size,), "int32", align=64)

    def split(self, lines: Index, whole: Expr) -> Expr:
        """Cuts the copy for `lines` lines to seven bits; returns whether bytes are right for it.

        If `whole` is true, no byte has to be cut.
        """
        geometry, windows, found = self.geometry, self.windows, self.found
        depth, taps, _ = geometry.kernel
        count = (lines - 1) * geometry.strides[1] + (taps - 1) * geometry.dilation[1] + 1
        self.count = emission.named(count)
        rows = self.count * depth
        most = found.most(rows)
        with emission.opaque_block("outliers"):
            found.begin(whole)
            with I.serial(depth) as z, I.serial(self.count) as y:
                start = (z * windows.most_lines + y) * windows.pitch

                def read(at: Expr) -> Expr:
                    return load_vector(windows.copy, "uint8", [], Columns(start + at, LANES, LANES))

                def write(at: Expr, value: Expr) -> None:
                    I.buffer_store(windows.copy, value, [ramp(start + at, LANES)])

                found.add_row(z * self.count + y, most, read, write)
            found.end(rows)
        return found.short(most)

    def add(self, line: Index, height: int, vector: Index, vectors: int, load_b: LoadPanel) -> None:
        """Computes what outliers add to `height` lines of the result, for a panel of the weight."""
        geometry, windows, lanes = self.geometry, self.windows, self.layout.kernel.lanes
        depth, taps, columns = geometry.kernel
        zero = constant(0, "int32", lanes)
        with emission.opaque_block("add_outliers"), I.serial(height) as i:
            before = i * self.places
            with I.serial(self.places * vectors) as place:
                at = before * (vectors * lanes) + place * lanes
                I.buffer_store(self.sums, zero, [ramp(at, lanes)])
            with I.serial(depth) as z, I.serial(taps) as y:
                of_x = (line + i - windows.first) * geometry.strides[1] + y * geometry.dilation[1]

                def add(number: Expr, products: Products) -> None:
                    pixel = materialise(number // self.groups)
                    inside = materialise(number - pixel * self.groups)
                    for tap in range(columns):
                        step = ((z * taps + y) * columns + tap) * self.groups + inside
                        slot = before + pixel + (self.beside - tap)
                        for j in range(vectors):
                            b = load_b(vector, vectors, step, j)
                            to = ramp((slot * vectors + j) * lanes, lanes)
                            total = self.sums[to] + products(self.layout.kernel, b)
                            I.buffer_store(self.sums, total, [to])

                self.found.for_each(z * self.count + of_x, add)

    def sum(self, line: Index, column: Index, vectors: int, j: int) -> Expr:
        """What outliers add to one vector of a pixel; `line` counts from the first one of `add`."""
        lanes = self.layout.kernel.lanes
        slot = line * self.places + column * self.geometry.strides[2] + self.beside
        return self.sums[ramp((slot * vectors + j) * lanes, lanes)]
