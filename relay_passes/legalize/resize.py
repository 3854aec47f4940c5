"""Legalises R.image.resize2d in generic code, as weighted sums along one axis after the other.

Before

    lv = R.image.resize2d(x, (160, 160), layout="NHWC", method="linear")

After

    lv = R.call_tir(resize2d, (x, rows, row_weights, columns, column_weights))

    t[h, w, c] = row_weights[h, 0] * x[rows[h, 0], w, c] + row_weights[h, 1] * x[rows[h, 1], w, c]
    y[h, w, c] = column_weights[w, 0] * t[h, columns[w, 0], c] + ...

TVM's own legalisation computes indices and weights again for every element, and reads four elements
(linear) or sixteen (cubic) for each. Here indices and weights are constants, and each interpolated
row is computed once. For dynamic extents either one kernel computes all four tables, or the
resizing kernel computes indices and weights once per pixel, for all of its channels. TVM legalises
crops and types other than f32. Cubic weights are those of R. Keys, "Cubic Convolution Interpolation
for Digital Image Processing" (IEEE Trans. ASSP, 1981).
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tvm import relax, te, tirx, topi
from tvm.sym import Analyzer

from microkernels.base.tvm_compat import relax as tvm_compat
from tir_schedules.generic.expressions import const_int, substitute

MOST_TIMES = 16  # largest integer factor of a dynamic image
TAPS = {"linear": 2, "cubic": 4}  # of the methods with weights
MANY_CHANNELS = 64  # pixels with this many channels compute their own taps

_PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "half_pixel": lambda x, scale: (x + 0.5) * scale - 0.5,
    "asymmetric": lambda x, scale: x * scale,
    "tf_half_pixel_for_nn": lambda x, scale: (x + 0.5) * scale,
}
"""Position of an output between the input elements, for arrays or float32 expressions."""

_ROUNDED: dict[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "floor": lambda places: np.floor(places + np.float32(1e-5)),
    "ceil": lambda places: np.ceil(places - np.float32(1e-5)),
    "round_prefer_floor": lambda places: np.ceil(places - np.float32(0.5)),
    "round_prefer_ceil": lambda places: np.floor(places + np.float32(0.5)),
}

Taps = tuple[NDArray[np.int32], NDArray[np.float32]]
"""Indices and weights, [outputs, taps], of the elements of every output along an axis."""

_Tap = int | tirx.Var


@dataclass(frozen=True)
class _Sizes:
    """Rows and columns of an image and of the resized image; `axis` is the axis of rows."""

    axis: int
    extents: Sequence[tirx.Expr]
    outputs: Sequence[tirx.Expr]

    @property
    def static(self) -> tuple[list[int], list[int]] | None:
        """The sizes as numbers; None if one is dynamic."""
        found = [const_int(size) for size in (*self.extents, *self.outputs)]
        known = [size for size in found if size is not None]
        return (known[:2], known[2:]) if len(known) == len(found) else None


def resize2d(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Resizing by taps, which are constants for static extents; otherwise TVM's legalisation."""
    sizes, found = _sizes(call), None
    nearest = str(call.attrs.method) == "nearest_neighbor"
    how = str(call.attrs.coordinate_transformation_mode), str(call.attrs.rounding_method)
    if sizes is None:
        return tvm_compat.legalize_by_tvm(builder, call)
    if sizes.static is not None:
        pairs = list(zip(*sizes.static, strict=True))  # of extents and outputs
        taps = [_taps(call, n, m) for n, m in pairs]
        known = [each for each in taps if each is not None]
        if len(known) == 2 and nearest:
            along = [_nearest(n, m, table) for (n, m), (table, _) in zip(pairs, known, strict=True)]
            found = _elements(builder, call.args[0], sizes.axis, along)
        elif len(known) == 2:
            tables = [
                relax.const(np.ascontiguousarray(table.T)) for pair in known for table in pair
            ]
            # For a much smaller result, most of each interpolated row would be unused.
            n, m = pairs[1]
            found = _weighted_sums(builder, call, tables, _at_once(call) or 2 * m < n)
    elif not nearest:
        found = _dynamic_sums(builder, call, sizes)
    elif how == ("asymmetric", "floor"):
        factors = list(map(_factor, sizes.extents, sizes.outputs))
        along = [_Nearest(factor) for factor in factors if factor is not None]
        if len(along) == 2:
            found = _elements(builder, call.args[0], sizes.axis, along)
    return tvm_compat.legalize_by_tvm(builder, call) if found is None else found


def _sizes(call: relax.Call) -> _Sizes | None:
    """The sizes of a call; None if its layout or type is left to TVM."""
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


@dataclass(frozen=True)
class _Axis:
    """The taps of every output along an axis, as expressions of the output's place.

    Attributes
    ----------
    outputs : PrimExpr
        Number of outputs.
    taps : int
        Elements per output.
    index, weight : callable
        (tap, output) -> the element's index; its weight.
    """

    outputs: tirx.Expr
    taps: int
    index: Callable[[_Tap, tirx.Expr], tirx.Expr]
    weight: Callable[[_Tap, tirx.Expr], tirx.Expr]


def _weighted_sums(
    builder: relax.BlockBuilder, call: relax.Call, tables: Sequence[relax.Expr], at_once: bool
) -> relax.Expr:
    """Sums by tables [taps, outputs]: indices and weights of rows, then of columns."""
    first = str(call.attrs.layout).index("H")

    def compute(x: te.Tensor, *given: te.Tensor) -> te.Tensor:
        rows, columns = (
            _Axis(index.shape[1], int(index.shape[0]), index, weight)
            for index, weight in zip(given[::2], given[1::2], strict=True)
        )
        if at_once:
            return _summed(x, first, [rows, columns], "resized")
        return _summed(_summed(x, first, [rows], "rows"), first + 1, [columns], "resized")

    names: dict[str, Any] = {"primfunc_name_hint": "resize2d"}
    if not at_once:
        pattern = tvm_compat.OUT_ELEMENTWISE_FUSABLE
        names["primfunc_attrs"] = {tvm_compat.OP_PATTERN: pattern}
    return builder.call_te(compute, call.args[0], *tables, **names)


def _at_once(call: relax.Call) -> bool:
    """Whether interpolated rows cost more to store than to compute twice."""
    # Vector lanes along a row compute it quickly.
    return str(call.attrs.method) == "linear" and str(call.attrs.layout) == "NHWC"


def _dynamic_sums(
    builder: relax.BlockBuilder, call: relax.Call, sizes: _Sizes
) -> relax.Expr | None:
    """Sums for an image of dynamic extents; None if TVM must legalise it."""
    coordinates = str(call.attrs.coordinate_transformation_mode)
    if coordinates not in _PLACES or int(call.attrs.cubic_exclude):
        return None
    first = sizes.axis
    channels = const_int(call.args[0].ty.shape.values[str(call.attrs.layout).index("C")])

    # A pixel of many channels computes its own taps: on Zen 4, pixels of 64 to 512 channels take 1%
    # to 9% less time without tables, pixels of 3 to 32 channels 1% to 16% more.
    if _at_once(call) and channels is not None and channels >= MANY_CHANNELS:

        def sums(x: te.Tensor, *outputs: tirx.Expr) -> te.Tensor:
            axes = map(functools.partial(_placed, call), x.shape[first : first + 2], outputs)
            return _summed(x, first, list(axes), "resized")

        return builder.call_te(sums, call.args[0], *sizes.outputs, primfunc_name_hint="resize2d")

    def tables(*given: tirx.Expr) -> list[te.Tensor]:
        axes = map(functools.partial(_placed, call), given[:2], given[2:])
        return [
            te.compute((axis.taps, axis.outputs), element, name="taps")
            for axis in axes
            for element in (axis.index, axis.weight)
        ]

    # A separate kernel computes all tables: fused with its reader, a table would be computed for
    # every element.
    extents = (*sizes.extents, *sizes.outputs)
    made = builder.emit(builder.call_te(tables, *extents, primfunc_name_hint="resize_taps"))
    read = [builder.emit(relax.TupleGetItem(made, number)) for number in range(4)]
    return _weighted_sums(builder, call, read, _at_once(call))


def _placed(call: relax.Call, extent: tirx.Expr, outputs: tirx.Expr) -> _Axis:
    """An axis of dynamic extent, with the taps of the call."""
    taps = TAPS[str(call.attrs.method)]
    scale = extent.astype("float32") / outputs.astype("float32")

    def place(at: tirx.Expr) -> tirx.Expr:
        return _PLACES[str(call.attrs.coordinate_transformation_mode)](at.astype("float32"), scale)

    def index(tap: _Tap, at: tirx.Expr) -> tirx.Expr:
        low = te.floor(place(at)).astype("int64")
        return te.max(te.min(low + tap - (taps // 2 - 1), extent - 1), 0)

    def weight(tap: _Tap, at: tirx.Expr) -> tirx.Expr:
        part = place(at)
        found = _weights(call, part - te.floor(part))
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
        if const_int(analyzer.simplify(after - before * factor)) == 0:
            return factor
    return None


class _Nearest(NamedTuple):
    """The source index along an axis for every element of the result.

    Attributes
    ----------
    factor : int
        How often each element is repeated, if there is no table.
    outputs : int or None
        Number of outputs; None for the number of elements times the factor.
    table : array or None
        Source indices, [outputs, 1]; None if the factor determines them.
    """

    factor: int
    outputs: int | None = None
    table: NDArray[np.int32] | None = None


def _nearest(extent: int, outputs: int, table: NDArray[np.int32]) -> _Nearest:
    """Repeated elements need a division of the position only, which is faster than a table."""
    factor = max(outputs // extent, 1)
    divided = np.array_equal(table[:, 0], np.arange(outputs) // factor)
    return _Nearest(factor, outputs, None if divided else table)


def _elements(
    builder: relax.BlockBuilder, x: relax.Expr, axis: int, along: Sequence[_Nearest]
) -> relax.Expr:
    """A kernel that copies one input element for every element of the result."""

    def compute(x: te.Tensor, *given: te.Tensor) -> te.Tensor:
        left = iter(given)
        shape: list[tirx.Expr | int] = list(x.shape)
        tables = [None if each.table is None else next(left) for each in along]
        for number, each in enumerate(along, axis):
            shape[number] = shape[number] * each.factor if each.outputs is None else each.outputs

        def element(*at: tirx.Var) -> tirx.Expr:
            place: list[tirx.Expr] = list(at)
            for number, (each, table) in enumerate(zip(along, tables, strict=True), axis):
                place[number] = at[number] // each.factor if table is None else table[at[number], 0]
            return x(*place)

        return te.compute(shape, element, name="resized")

    given = [relax.const(each.table) for each in along if each.table is not None]
    return builder.call_te(compute, x, *given, primfunc_name_hint="resize2d")


def _summed(x: te.Tensor, axis: int, along: Sequence[_Axis], name: str) -> te.Tensor:
    """Weighted sums of elements along some axes."""
    behind = axis + len(along)
    shape = [*x.shape[:axis], *(each.outputs for each in along), *x.shape[behind:]]

    def element(*at: tirx.Var) -> tirx.Expr:
        parts = []
        for taps in itertools.product(*(range(each.taps) for each in along)):
            own = list(zip(along, taps, at[axis:behind], strict=True))
            places = (each.index(tap, place) for each, tap, place in own)
            weights = (each.weight(tap, place) for each, tap, place in own)
            weight = functools.reduce(operator.mul, weights)
            parts.append(x(*at[:axis], *places, *at[behind:]) * weight)
        return functools.reduce(operator.add, parts)

    return te.compute(shape, element, name=name)


def _taps(call: relax.Call, extent: int, outputs: int) -> Taps | None:
    """Indices and weights of every output along an axis; None if the attributes are unsupported."""
    places = _places(str(call.attrs.coordinate_transformation_mode), extent, outputs)
    if places is None:
        return None
    method = str(call.attrs.method)
    if method == "nearest_neighbor":
        rounded = _ROUNDED.get(str(call.attrs.rounding_method))
        if rounded is None:
            return None
        return _inside(rounded(places)[:, None], extent), np.ones((outputs, 1), np.float32)
    if method == "cubic" and int(call.attrs.cubic_exclude):
        return None
    low = np.floor(places)
    steps = np.arange(TAPS[method]) - (TAPS[method] // 2 - 1)
    weights = np.stack(_weights(call, places - low), 1)
    return _inside(low[:, None] + steps, extent), weights.astype(np.float32)


def _inside(index: NDArray[Any], extent: int) -> NDArray[np.int32]:
    """Indices clipped to the borders."""
    return np.clip(index.astype(np.int64), 0, extent - 1).astype(np.int32)


def _places(coordinates: str, extent: int, outputs: int) -> NDArray[np.float32] | None:
    """Position of every output between the elements, in f32 as TVM and ONNX Runtime compute it."""
    x = np.arange(outputs, dtype=np.float32)
    scale = np.float32(extent) / np.float32(outputs)
    if coordinates == "pytorch_half_pixel":
        return _PLACES["half_pixel"](x, scale) if outputs > 1 else x * 0
    if coordinates == "align_corners":
        return x * (np.float32(extent - 1) / np.float32(max(outputs - 1, 1)))
    return _PLACES[coordinates](x, scale) if coordinates in _PLACES else None


def _weights(call: relax.Call, part: Any) -> list[Any]:
    """Weights of the two or four elements around a place; `part` is its distance from the element
    before it, as an array or expression."""
    if str(call.attrs.method) == "linear":
        return [1 - part, part]
    alpha = float(call.attrs.cubic_alpha)
    square, cube = part * part, part * part * part
    return [
        alpha * (cube - 2 * square + part),
        (alpha + 2) * cube - (3 + alpha) * square + 1,
        -(alpha + 2) * cube + (3 + 2 * alpha) * square - alpha * part,
        -alpha * cube + alpha * square,
    ]


LEAST_CHANNELS = 4
"""The fewest channels for which two reorders of the image pay."""


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
    """Legalises R.image.grid_sample in generic code, with channels last during sampling.

    Before

        lv = R.image.grid_sample(x, grid)                    # x: [N, C, H, W]

    After

        lv = R.call_tir(transpose, (x,))                     # [N, H, W, C]
        lv1 = R.call_tir(grid_sample, (lv, grid))            # [N, OH, OW, C]
        lv2 = R.call_tir(transpose1, (lv1,))                 # [N, C, OH, OW]

    Vectors then hold the channels of a pixel, and places and weights are computed once for all
    channels. Otherwise each element is gathered separately. Few channels fill no vector: TVM
    legalises those, and a dynamic number of channels.
    """
    data, grid = call.args
    shape = data.ty.shape
    channels = const_int(shape.values[1]) if isinstance(shape, relax.ShapeExpr) else None
    if channels is None or channels < LEAST_CHANNELS:
        return tvm_compat.legalize_by_tvm(builder, call)
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
    last = builder.call_te(topi.transpose, data, axes=[0, *range(2, rank), 1])
    made = builder.call_te(compute, builder.emit(last), grid, primfunc_name_hint="grid_sample")
    sampled = builder.emit(made)
    return builder.call_te(topi.transpose, sampled, axes=[0, rank - 1, *range(1, rank - 1)])


LEGALIZATIONS: dict[str, tvm_compat.Legalize] = {
    "relax.image.resize2d": resize2d,
    "relax.image.grid_sample": grid_sample,
}
