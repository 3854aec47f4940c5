"""Legalises R.image.resize2d in generic code, as weighted sums along one axis after the other.

Before

    lv = R.image.resize2d(x, (160, 160), layout="NHWC", method="linear")

After

    lv = R.call_tir(resize2d, (x, rows, row_weights, columns, column_weights))

    t[h, w, c] = row_weights[h, 0] * x[rows[h, 0], w, c] + row_weights[h, 1] * x[rows[h, 1], w, c]
    y[h, w, c] = column_weights[w, 0] * t[h, columns[w, 0], c] + ...

TVM's own legalisation computes indices and weights again for every element, and reads four elements
(linear) or sixteen (cubic) for each. Here indices and weights are constants, and each interpolated
row is computed once. For dynamic extents one kernel computes all four tables, or the resizing
kernel computes indices and weights of a pixel once for all of its channels. TVM legalises crops and
other types than f32. Cubic weights are those of R. Keys, "Cubic Convolution Interpolation for
Digital Image Processing" (IEEE Trans. ASSP, 1981).
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax, te, tirx, topi
from tvm.sym import Analyzer

from microkernels.base.tvm_compat.relax import (
    OP_PATTERN,
    OUT_ELEMENTWISE_FUSABLE,
    Legalize,
    legalize_by_tvm,
)
from tir_schedules.generic.expressions import const_int, substitute

MOST_TIMES = 16  # that an element of an open image is repeated
TAPS = {"linear": 2, "cubic": 4}  # of the methods with weights
MANY_CHANNELS = 64  # of a pixel that computes its own taps

_PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "half_pixel": lambda x, scale: (x + 0.5) * scale - 0.5,
    "asymmetric": lambda x, scale: x * scale,
    "tf_half_pixel_for_nn": lambda x, scale: (x + 0.5) * scale,
}
"""Where outputs lie between the elements, of arrays or expressions of float32."""

Taps = tuple[NDArray[np.int32], NDArray[np.float32]]
"""For every output along an axis, [outputs, taps]: which elements it is made of, and how much."""

_Tap = int | tirx.Var


@dataclass(frozen=True)
class _Sizes:
    """Of an image and of the resized one, along rows and columns; `axis` is that of rows."""

    axis: int
    extents: Sequence[tirx.Expr]
    outputs: Sequence[tirx.Expr]

    @property
    def static(self) -> tuple[list[int], list[int]] | None:
        """The numbers; None if one is dynamic."""
        found = [const_int(size) for size in (*self.extents, *self.outputs)]
        known = [size for size in found if size is not None]
        return (known[:2], known[2:]) if len(known) == len(found) else None


def resize2d(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Resizing by taps, which are constants of static extents, else TVM's way."""
    sizes, found = _sizes(call), None
    if sizes is not None and sizes.static is not None:
        found = _by_constants(builder, call, sizes.axis, *sizes.static)
    elif sizes is not None and str(call.attrs.method) == "nearest_neighbor":
        found = _repeated(builder, call, sizes)
    elif sizes is not None:
        found = _dynamic_sums(builder, call, sizes)
    return legalize_by_tvm(builder, call) if found is None else found


def _sizes(call: relax.Call) -> _Sizes | None:
    """The sizes of a call that is not left to TVM for its layout or type."""
    before, after, layout = call.args[0].ty, call.ty, str(call.attrs.layout)
    shapes = isinstance(before.shape, relax.ShapeExpr) and isinstance(after.shape, relax.ShapeExpr)
    if not shapes or layout not in ("NCHW", "NHWC") or before.dtype != after.dtype:
        return None
    method, dtype = str(call.attrs.method), str(before.dtype)
    if method != "nearest_neighbor" and (method not in TAPS or dtype != "float32"):
        return None
    axis = layout.index("H")
    of_both = slice(axis, axis + 2)
    return _Sizes(axis, before.shape.values[of_both], after.shape.values[of_both])


def _by_constants(
    builder: relax.BlockBuilder,
    call: relax.Call,
    axis: int,
    extents: Sequence[int],
    outputs: Sequence[int],
) -> relax.Expr | None:
    """Resizing by taps that are constants; None if they are not known."""
    taps = [_taps(call, n, m) for n, m in zip(extents, outputs, strict=True)]
    known = [each for each in taps if each is not None]
    if len(known) != 2:
        return None
    if str(call.attrs.method) == "nearest_neighbor":
        return _nearest_elements(builder, call.args[0], axis, extents, [t for t, _ in known])
    tables = [relax.const(np.ascontiguousarray(table.T)) for pair in known for table in pair]
    # Of a much smaller result, most of a row would be made for nothing.
    return _weighted_sums(builder, call, tables, at_once=2 * outputs[1] < extents[1])


@dataclass(frozen=True)
class _Axis:
    """What every output along an axis is made of, as expressions of its place.

    Attributes
    ----------
    outputs : PrimExpr
        How many there are.
    taps : int
        Elements that one output is made of.
    index, weight : callable
        Which element a tap is at an output, and its weight.
    """

    outputs: tirx.Expr
    taps: int
    index: Callable[[_Tap, tirx.Expr], tirx.Expr]
    weight: Callable[[_Tap, tirx.Expr], tirx.Expr]


def _of_tables(tables: Sequence[te.Tensor]) -> list[_Axis]:
    """Both axes by tables [taps, outputs]: indices and weights of rows, and of columns."""
    return [
        _Axis(index.shape[1], int(index.shape[0]), index, weight)
        for index, weight in zip(tables[::2], tables[1::2], strict=True)
    ]


def _weighted_sums(
    builder: relax.BlockBuilder,
    call: relax.Call,
    tables: Sequence[relax.Expr],
    at_once: bool = False,
) -> relax.Expr:
    """Sums by tables [taps, outputs]: indices and weights of rows, and of columns."""
    first = str(call.attrs.layout).index("H")
    at_once = at_once or _at_once(call)

    def compute(x: te.Tensor, *given: te.Tensor) -> te.Tensor:
        rows, columns = _of_tables(given)
        if at_once:
            return _summed_at_once(x, first, rows, columns)
        kept = _summed(x, first, rows, "rows")
        return _summed(kept, first + 1, columns, "resized")

    attrs = {} if at_once else {"primfunc_attrs": {OP_PATTERN: OUT_ELEMENTWISE_FUSABLE}}
    return builder.call_te(compute, call.args[0], *tables, primfunc_name_hint="resize2d", **attrs)


def _at_once(call: relax.Call) -> bool:
    """Whether rows between two rows cost more to keep than to make twice."""
    # Lanes that lie along a row make it in little time.
    return str(call.attrs.method) == "linear" and str(call.attrs.layout) == "NHWC"


def _dynamic_sums(
    builder: relax.BlockBuilder, call: relax.Call, sizes: _Sizes
) -> relax.Expr | None:
    """Sums for an image of dynamic extents; None for what is left to TVM.

    A pixel of many channels computes its own taps: on Zen 4, those of 64 to 512 channels take 1% to
    9% less time without tables, those of 3 to 32 channels 1% to 16% more. Other images have one
    kernel that computes all tables.
    """
    coordinates = str(call.attrs.coordinate_transformation_mode)
    if coordinates not in _PLACES or int(call.attrs.cubic_exclude):
        return None
    first = sizes.axis
    channels = const_int(call.args[0].ty.shape.values[str(call.attrs.layout).index("C")])

    if _at_once(call) and channels is not None and channels >= MANY_CHANNELS:

        def sums(x: te.Tensor, *outputs: tirx.Expr) -> te.Tensor:
            axes = map(functools.partial(_placed, call), x.shape[first : first + 2], outputs)
            return _summed_at_once(x, first, *axes)

        return builder.call_te(sums, call.args[0], *sizes.outputs, primfunc_name_hint="resize2d")

    def tables(*given: tirx.Expr) -> list[te.Tensor]:
        axes = map(functools.partial(_placed, call), given[:2], given[2:])
        return [
            te.compute((axis.taps, axis.outputs), element, name="taps")
            for axis in axes
            for element in (axis.index, axis.weight)
        ]

    # By itself: in one kernel with what reads it, a table would be computed for every element.
    made = builder.emit(
        builder.call_te(tables, *sizes.extents, *sizes.outputs, primfunc_name_hint="resize_taps")
    )
    read = [builder.emit(relax.TupleGetItem(made, number)) for number in range(4)]
    return _weighted_sums(builder, call, read)


def _placed(call: relax.Call, extent: tirx.Expr, outputs: tirx.Expr) -> _Axis:
    """An axis of dynamic extent, with the taps of the call."""
    method = str(call.attrs.method)
    taps = TAPS[method]
    scale = extent.astype("float32") / outputs.astype("float32")

    def place(at: tirx.Expr) -> tirx.Expr:
        return _PLACES[str(call.attrs.coordinate_transformation_mode)](at.astype("float32"), scale)

    def index(tap: _Tap, at: tirx.Expr) -> tirx.Expr:
        low = te.floor(place(at)).astype("int64")
        return te.max(te.min(low + tap - (taps // 2 - 1), extent - 1), 0)

    def weight(tap: _Tap, at: tirx.Expr) -> tirx.Expr:
        part = place(at)
        part = part - te.floor(part)
        found = [1 - part, part]
        if method == "cubic":
            found = _cubic(part, float(call.attrs.cubic_alpha))
        if isinstance(tap, int):
            return found[tap]
        value = found[-1]
        for number in range(taps - 1):
            value = tirx.Select(tirx.EQ(tap, number), found[number], value)
        return value

    return _Axis(outputs, taps, index, weight)


def _factor(before: tirx.Expr, after: tirx.Expr) -> int | None:
    analyzer = Analyzer()
    for factor in range(1, MOST_TIMES + 1):
        rest = analyzer.simplify(after - before * factor)
        if isinstance(rest, tirx.IntImm) and int(rest) == 0:
            return factor
    return None


def _repeated(builder: relax.BlockBuilder, call: relax.Call, sizes: _Sizes) -> relax.Expr | None:
    """Every element some times over, along two axes; None if that is not known."""
    how = str(call.attrs.coordinate_transformation_mode), str(call.attrs.rounding_method)
    if how != ("asymmetric", "floor"):
        return None
    found = [_factor(one, other) for one, other in zip(sizes.extents, sizes.outputs, strict=True)]
    factors = [factor for factor in found if factor is not None]
    if len(factors) != 2:
        return None

    def compute(x: te.Tensor) -> te.Tensor:
        shape = list(x.shape)
        for number, factor in enumerate(factors):
            shape[sizes.axis + number] = shape[sizes.axis + number] * factor

        def element(*at: tirx.Var) -> tirx.Expr:
            place: list[tirx.Expr] = list(at)
            for number, factor in enumerate(factors):
                place[sizes.axis + number] = at[sizes.axis + number] // factor
            return x(*place)

        return te.compute(shape, element, name="resized")

    return builder.call_te(compute, call.args[0], primfunc_name_hint="resize2d")


def _nearest_elements(
    builder: relax.BlockBuilder,
    x: relax.Expr,
    axis: int,
    extents: Sequence[int],
    tables: Sequence[NDArray[np.int32]],
) -> relax.Expr:
    """One element of the input for every element of the result."""
    outputs = [len(table) for table in tables]
    factors = [max(m // n, 1) for n, m in zip(extents, outputs, strict=True)]
    # Every element some times over is a division of the position, better than any table.
    divided = [
        np.array_equal(table[:, 0], np.arange(len(table)) // factor)
        for table, factor in zip(tables, factors, strict=True)
    ]
    given = [relax.const(table) for table, plain in zip(tables, divided, strict=True) if not plain]

    def compute(x: te.Tensor, *given: te.Tensor) -> te.Tensor:
        left = iter(given)
        sources = [None if plain else next(left) for plain in divided]

        def element(*at: tirx.Var) -> tirx.Expr:
            place: list[tirx.Expr] = list(at)
            for number, (source, factor) in enumerate(zip(sources, factors, strict=True)):
                own = at[axis + number]
                place[axis + number] = own // factor if source is None else source[own, 0]
            return x(*place)

        shape: list[tirx.Expr | int] = [*x.shape[:axis], *outputs, *x.shape[axis + 2 :]]
        return te.compute(shape, element, name="resized")

    return builder.call_te(compute, x, *given, primfunc_name_hint="resize2d")


def _summed(x: te.Tensor, axis: int, along: _Axis, name: str) -> te.Tensor:
    """Weighted sums of elements along one axis."""
    shape = [*x.shape[:axis], along.outputs, *x.shape[axis + 1 :]]

    def element(*at: tirx.Var) -> tirx.Expr:
        parts = [
            x(*at[:axis], along.index(tap, at[axis]), *at[axis + 1 :]) * along.weight(tap, at[axis])
            for tap in range(along.taps)
        ]
        return functools.reduce(operator.add, parts)

    return te.compute(shape, element, name=name)


def _summed_at_once(x: te.Tensor, axis: int, rows: _Axis, columns: _Axis) -> te.Tensor:
    """Weighted sums of elements along two axes."""
    shape = [*x.shape[:axis], rows.outputs, columns.outputs, *x.shape[axis + 2 :]]

    def element(*at: tirx.Var) -> tirx.Expr:
        h, w = at[axis], at[axis + 1]
        parts = [
            x(*at[:axis], rows.index(row, h), columns.index(column, w), *at[axis + 2 :])
            * (rows.weight(row, h) * columns.weight(column, w))
            for row, column in itertools.product(range(rows.taps), range(columns.taps))
        ]
        return functools.reduce(operator.add, parts)

    return te.compute(shape, element, name="resized")


def _taps(call: relax.Call, extent: int, outputs: int) -> Taps | None:
    """What every output along an axis is made of; None if the attributes are not known here."""
    places = _places(str(call.attrs.coordinate_transformation_mode), extent, outputs)
    if places is None:
        return None
    method = str(call.attrs.method)
    if method == "nearest_neighbor":
        nearest = _nearest(places, str(call.attrs.rounding_method))
        if nearest is None:
            return None
        return _inside(nearest[:, None], extent), np.ones((outputs, 1), np.float32)
    low = np.floor(places)
    part = places - low
    if method == "linear":
        steps, weights = np.arange(2), np.stack([1 - part, part], 1)
    elif method == "cubic" and not int(call.attrs.cubic_exclude):
        steps, weights = np.arange(-1, 3), np.stack(_cubic(part, float(call.attrs.cubic_alpha)), 1)
    else:
        return None
    return _inside(low[:, None] + steps, extent), weights.astype(np.float32)


def _inside(index: NDArray[Any], extent: int) -> NDArray[np.int32]:
    """Places beyond the borders are those at the borders."""
    return np.clip(index.astype(np.int64), 0, extent - 1).astype(np.int32)


def _places(coordinates: str, extent: int, outputs: int) -> NDArray[np.float32] | None:
    """Where every output lies between the elements, in f32 as TVM and ONNX Runtime compute it."""
    x = np.arange(outputs, dtype=np.float32)
    scale = np.float32(extent) / np.float32(outputs)
    if coordinates == "pytorch_half_pixel":
        return _PLACES["half_pixel"](x, scale) if outputs > 1 else x * 0
    if coordinates == "align_corners":
        return x * (np.float32(extent - 1) / np.float32(max(outputs - 1, 1)))
    return _PLACES[coordinates](x, scale) if coordinates in _PLACES else None


def _nearest(places: NDArray[np.float32], rounding: str) -> NDArray[np.float32] | None:
    half, slack = np.float32(0.5), np.float32(1e-5)
    if rounding == "floor":
        return np.floor(places + slack)
    if rounding == "ceil":
        return np.ceil(places - slack)
    if rounding == "round_prefer_floor":
        return np.ceil(places - half)
    if rounding == "round_prefer_ceil":
        return np.floor(places + half)
    return None


def _cubic(part: Any, alpha: float) -> list[Any]:
    """Weights of the four elements around a place, `part` beyond the second: arrays, or
    expressions."""
    square, cube = part * part, part * part * part
    return [
        alpha * (cube - 2 * square + part),
        (alpha + 2) * cube - (3 + alpha) * square + 1,
        -(alpha + 2) * cube + (3 + 2 * alpha) * square - alpha * part,
        -alpha * cube + alpha * square,
    ]


LEAST_CHANNELS = 4
"""Channels that are worth two reorders of the image."""


@dataclass(frozen=True)
class _ChannelsFirst:
    """Pixels [N, *extents, C] as TVM's operator reads them: [N, C, *extents]."""

    pixels: te.Tensor

    @property
    def dtype(self) -> str:
        return str(self.pixels.dtype)

    @property
    def shape(self) -> list[tirx.Expr]:
        batch, *extents, channels = self.pixels.shape
        return [batch, channels, *extents]

    def __getitem__(self, at: tuple[tirx.Expr, ...]) -> tirx.Expr:
        image, channel, *place = at
        return self.pixels(image, *place, channel)


def grid_sample(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalises R.image.grid_sample in generic code, with channels last while it samples.

    Before

        lv = R.image.grid_sample(x, grid)                    # x: [N, C, H, W]

    After

        lv = R.call_tir(transpose, (x,))                     # [N, H, W, C]
        lv1 = R.call_tir(grid_sample, (lv, grid))            # [N, OH, OW, C]
        lv2 = R.call_tir(transpose1, (lv1,))                 # [N, C, OH, OW]

    The channels of a pixel are then vectors, and places and weights are computed once for all of
    them. Otherwise each element is gathered by itself. Few channels fill no vector: TVM legalises
    them, and those whose number is dynamic.

    Samples of an image with channels last, if they are worth it.
    """
    data, grid = call.args
    shape = data.ty.shape
    channels = const_int(shape.values[1]) if isinstance(shape, relax.ShapeExpr) else None
    if channels is None or channels < LEAST_CHANNELS:
        return legalize_by_tvm(builder, call)
    attrs = call.attrs

    def compute(pixels: te.Tensor, grid: te.Tensor) -> te.Tensor:
        sampled = topi.image.grid_sample(
            _ChannelsFirst(pixels), grid, str(attrs.method), str(attrs.layout),
            str(attrs.padding_mode), bool(attrs.align_corners),
        )  # fmt: skip
        own = sampled.op
        assert isinstance(own, te.ComputeOp)
        image, channel, *place = (axis.var for axis in own.axis)

        def element(*at: tirx.Var) -> tirx.Expr:
            values = dict(zip([image, *place, channel], at, strict=True))
            return substitute(own.body[0], values)

        batch, _, *outputs = sampled.shape
        return te.compute([batch, *outputs, channels], element, name="grid_sample")

    rank = len(shape.values)
    pixels = _permuted(builder, data, [0, *range(2, rank), 1])
    sampled = builder.emit(builder.call_te(compute, pixels, grid, primfunc_name_hint="grid_sample"))
    return builder.call_te(topi.transpose, sampled, axes=[0, rank - 1, *range(1, rank - 1)])


def _permuted(builder: relax.BlockBuilder, value: relax.Expr, axes: Sequence[int]) -> relax.Expr:
    return builder.emit(builder.call_te(topi.transpose, value, axes=list(axes)))


LEGALIZATIONS: dict[str, Legalize] = {
    "relax.image.resize2d": resize2d,
    "relax.image.grid_sample": grid_sample,
}
