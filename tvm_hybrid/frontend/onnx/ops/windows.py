"""Windows that slide over an image: their padding, pools and convolutions.

`auto_pad` becomes explicit padding as ONNX defines it: the output has ceil(input / stride)
elements, and SAME_UPPER puts an odd element of padding at the end.

    Conv(x, W, auto_pad=SAME_UPPER, strides=[2, 2])       pads=[0, 0, 1, 1]
    MaxPool(x[n], auto_pad=SAME_UPPER, kernel_shape=[2], strides=[2])       ceil_mode=1
    Conv(x[n], W, auto_pad=SAME_UPPER, strides=[3])       Conv of Pad(x, ...)

If an extent is dynamic, windows of two elements lack at most one element, at the end: that is
ceil_mode. For other windows the padding follows from the extent, and a Pad adds it.

`ceil_mode` becomes more padding at the end. The last window may exceed the padding, but must begin
before the padding at the end. With extent n, span k, stride s and pads p and q there are

    min(ceil((n + p + q - k) / s), floor((n + p - 1) / s)) + 1

windows, as in ONNX Runtime; ONNX infers more. If n decides which of the two is smaller, the pool
computes the larger number, and a slice drops the last window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from tvm import relax, te, tirx

from ... import expressions as ex
from ...expressions import OUTPUTS, Attrs, Expr
from ..graph.requests import check_equal, requested_sizes
from ..graph.sizes import dims_of, index, plain_dims, simplified, vector_of
from ..operators import apply, check_result, operator
from .pooling import max_pool_places, window_count, window_form

_SAME = ("SAME_UPPER", "SAME_LOWER")
_FIX = "give shapes that fix it, or write the padding as a Pad before it"


class Axis(NamedTuple):
    """The windows along one axis of an image."""

    extent: int | Expr
    size: int
    stride: int
    dilation: int

    @property
    def span(self) -> int:
        """Number of elements from the first to the last of a window."""
        return (self.size - 1) * self.dilation + 1


def axes_of(x: Expr, kernel: Sequence[int], attrs: Attrs) -> list[Axis]:
    """The spatial axes of an image; ValueError unless the kernel has as many axes."""
    extents, form = plain_dims(x)[2:], window_form(attrs, len(kernel))
    if len(extents) != len(kernel):
        raise ValueError(f"a window of {len(kernel)} axes over an image of {len(extents)}")
    axes = zip(extents, kernel, form["strides"], form["dilations"], strict=True)
    return [Axis(*each) for each in axes]


def kernel_of(weight: Expr, attrs: Attrs) -> Sequence[int]:
    """The extents of a convolution's window; numbers if `auto_pad` needs them."""
    if attrs.get("kernel_shape"):
        return list(attrs["kernel_shape"])
    known = attrs.get("auto_pad", "NOTSET") in _SAME
    return ex.known_dims(weight)[2:] if known else [0] * (ex.rank_of(weight) - 2)


def check_channels(x: Expr, weight: Expr, attrs: Attrs, is_transposed: bool = False) -> None:
    """Makes the program check that the channels match the weight, in whole groups."""
    first, second = dims_of(weight)[:2]
    group, misfit = index(attrs.get("group", 1)), "the channels are not those of the weight"
    wanted = first if is_transposed else simplified(second * group)
    check_equal(dims_of(x)[1], wanted, misfit)
    check_equal(tirx.floormod(first, group), index(0), misfit)


def with_pads(name: str, x: Expr, kernel: Sequence[int], attrs: Attrs) -> tuple[Expr, Attrs]:
    """An image, and attributes with explicit pads in place of `auto_pad`.

    Raises
    ------
    ValueError
        A Pad would change the result: of means, and of integers with a zero point.
    """
    mode, rank = attrs.get("auto_pad", "NOTSET"), len(kernel)
    pads = attrs.get("pads") or [0] * (2 * rank)
    if mode not in _SAME:
        return x, {**attrs, "pads": [0] * (2 * rank) if mode == "VALID" else list(pads)}
    totals, dynamic, ceil = [], {}, attrs.get("ceil_mode", 0)
    for place, axis in enumerate(axes_of(x, kernel, attrs), 2):
        extent, span = axis.extent, axis.span
        if not isinstance(extent, int) and axis.stride > 1:
            if name == "MaxPool" and span <= 2 and mode == "SAME_UPPER":
                ceil = 1
            else:
                dynamic[place] = axis
            extent, span = axis.stride, min(span, axis.stride)  # values that need no padding
        extent = extent if isinstance(extent, int) else 1  # any value gives equal pads at stride 1
        outputs = -(-extent // axis.stride)
        totals.append(max(0, (outputs - 1) * axis.stride + span - extent))
    if dynamic and name not in ("Conv", "MaxPool"):
        raise ValueError(f"its padding depends on an extent that is not known; {_FIX}")
    if dynamic:
        x = _padded(x, dynamic, mode == "SAME_UPPER", name == "MaxPool")
    pads = shared_pads(totals, mode == "SAME_UPPER")
    return x, {**attrs, "auto_pad": "NOTSET", "pads": pads, "ceil_mode": ceil}


def shared_pads(totals: Sequence[int], upper: bool) -> list[int]:
    """Pads before and after all axes; an odd element goes after if `upper`, else before."""
    small, large = [each // 2 for each in totals], [each - each // 2 for each in totals]
    return [*small, *large] if upper else [*large, *small]


def _padded(x: Expr, axes: dict[int, Axis], upper: bool, of_maxima: bool) -> Expr:
    """Pads an image with the elements that windows lack along axes of dynamic extents."""
    rank = ex.rank_of(x)
    amounts: list[Expr] = [index(0)] * (2 * rank)
    for place, axis in axes.items():
        whole = simplified(tirx.floordiv(axis.extent + (axis.stride - 1), axis.stride))
        reach = simplified(whole * axis.stride + (axis.span - axis.stride))
        total = simplified(reach - axis.extent)
        # Windows without gaps never lack a negative number. TVM cannot prove that, but only divides
        # what is not negative; the sum of both amounts, and so the size, has no maximum in it.
        positive = simplified(te.max(total, index(0)))
        total = positive if axis.span < axis.stride else total
        small = simplified(tirx.floordiv(positive, 2))
        large = simplified(total - small)
        amounts[place], amounts[rank + place] = (small, large) if upper else (large, small)
    dtype = np.dtype(ex.dtype_of(x))
    least = -np.inf if np.issubdtype(dtype, np.floating) else np.iinfo(dtype).min
    margin = ex.literal(np.array(least if of_maxima else 0, dtype))
    return apply("Pad", x, vector_of(*amounts), margin)


class _Pool(NamedTuple):
    """A pool's image and attributes, and the number of valid results along some axes."""

    x: Expr
    attrs: Attrs
    counts: dict[int, Expr]

    def of(self, kind: str, x: Expr, is_part: bool = True) -> Expr:
        """Applies the pool, "max" or "avg", to an image.

        The program checks the sizes if `is_part`, that is, if this is not the final result.
        """
        names = ("kernel_shape", "strides", "pads", "dilations")
        flags = (bool(self.attrs[name]) for name in ("ceil_mode", "count_include_pad"))
        pool = getattr(relax.op.nn, f"{kind}_pool{len(self.attrs['kernel_shape'])}d")
        made = ex.normalize(pool(x, *(self.attrs[name] for name in names), *flags))
        if is_part:
            check_result([x], made, True)
        return made

    def counted(self, value: Expr) -> Expr:
        """Cuts off results that do not count."""
        if not self.counts:
            return value
        axes, ends = list(self.counts), list(self.counts.values())
        return relax.op.strided_slice(value, axes, [0] * len(axes), ends, assume_inbound=True)


def _pool_of(name: str, x: Expr, attrs: Attrs) -> _Pool:
    """The pool of a node, with explicit padding."""
    kernel = attrs["kernel_shape"]
    if len(kernel) not in CONVOLUTIONS:
        raise ValueError(f"{len(kernel)} spatial axes, where 1 to 3 are supported")
    x, attrs = with_pads(name, x, kernel, window_form(attrs))
    axes, pads = axes_of(x, kernel, attrs), list(attrs["pads"])
    around = list(zip(pads[: len(kernel)], pads[len(kernel) :], strict=True))
    counts: dict[int, Expr] = {}
    known = all(isinstance(axis.extent, int) for axis in axes)
    if attrs["ceil_mode"] and name == "AveragePool" and attrs["count_include_pad"] and known:
        return _Pool(x, attrs, {})  # TVM's form of this case is correct
    for place, (axis, amounts) in enumerate(zip(axes, around, strict=True), len(kernel)):
        extent, size, stride, dilation = axis
        if not attrs["ceil_mode"]:
            # ONNX's inference and ONNX Runtime round (extent - window) / stride toward zero: if
            # less than a stride is missing, there is one window over the existing elements.
            missing = axis.span - (extent + sum(amounts)) if isinstance(extent, int) else 0
            pads[place] += missing if extent != 0 and 0 < missing < stride else 0
        # In ceil_mode the padding at the end makes room for the last window.
        elif isinstance(extent, int):
            count = window_count(extent, amounts, size, stride, dilation, True)
            if count < 1:
                return _Pool(x, attrs, {})
            pads[place] = max(0, (count - 1) * stride + axis.span - extent - amounts[0])
        elif amounts[1] >= axis.span - 1:
            pads[place] = axis.span - 1
        else:
            pads[place] += stride - 1
            if amounts[1] > axis.span - stride:
                over = tirx.floordiv(extent + (sum(amounts) + stride - axis.span - 1), stride)
                inside = tirx.floordiv(extent + (amounts[0] - 1), stride)
                counts[place - len(kernel) + 2] = simplified(te.min(over, inside) + 1)
    return _Pool(x, {**attrs, "ceil_mode": 0, "pads": pads}, counts)


@operator("MaxPool")
def _max_pool(x: Expr, **attrs: Any) -> Expr:
    """MaxPool; a separate kernel finds the indices, so the kernel for the maxima, with all that is
    fused into it, does not change."""
    pool = _pool_of("MaxPool", x, attrs)
    y = pool.counted(pool.of("max", pool.x, bool(pool.counts)))
    if len(attrs[OUTPUTS]) == 1:
        return y
    if pool.counts or pool.x is not x:
        raise ValueError(
            f"indices of the maxima are not supported if pads depend on a dynamic extent; {_FIX}"
        )
    return relax.Tuple([ex.normalize(y), max_pool_places(x, pool.attrs)])


@operator("AveragePool")
def _average_pool(x: Expr, **attrs: Any) -> Expr:
    """AveragePool; in ceil_mode, an average that counts the padding must not count elements beyond
    it, so it is divided by the average of ones."""
    pool = _pool_of("AveragePool", x, attrs)
    longer = attrs.get("ceil_mode", 0) and not pool.attrs["ceil_mode"]
    counts_padding = bool(longer and attrs.get("count_include_pad", 0))
    y = pool.of("avg", pool.x, bool(pool.counts) or counts_padding)
    if counts_padding:
        _, plain = with_pads("AveragePool", x, attrs["kernel_shape"], attrs)
        rank = len(attrs["kernel_shape"])
        before, after = plain["pads"][:rank], plain["pads"][rank:]
        most = pool.attrs["pads"][rank:]
        counted = [min(each) for each in zip(most, after, strict=True)]
        around = zip(dims_of(pool.x)[2:], before, counted, strict=True)
        sizes = [index(1), index(1), *(size + (first + last) for size, first, last in around)]
        ones = relax.op.broadcast_to(ex.number(pool.x, 1), relax.ShapeExpr(sizes))
        beyond = [each - own for each, own in zip(most, counted, strict=True)]
        form = {**pool.attrs, "pads": [*[0] * rank, *beyond]}
        shares = pool._replace(attrs=form).of("avg", ex.normalize(ones))
        y = ex.normalize(y / shares)
    return pool.counted(y)


@operator("LpPool")
def _lp_pool(x: Expr, *, p: int = 2, **attrs: Any) -> Expr:
    """LpPool as the root of a sum of powers, which is the mean times the number of elements."""
    pool = _pool_of("LpPool", x, {**attrs, "count_include_pad": 1})
    mean = pool.of("avg", ex.emit(relax.op.abs(pool.x) ** ex.number(x, p)))
    total = mean * ex.number(x, math.prod(attrs["kernel_shape"]))
    return pool.counted(ex.normalize(total ** ex.number(x, 1.0 / p)))


@operator("GlobalLpPool")
def _global_lp_pool(x: Expr, *, p: int = 2) -> Expr:
    axes = list(range(2, ex.rank_of(x)))
    if p in (1, 2) and axes:
        return apply(f"ReduceL{p}", x, axes=axes)
    total = relax.op.sum(relax.op.abs(x) ** ex.number(x, p), axes, True)
    return total ** ex.number(x, 1.0 / p)


@operator("CenterCropPad")
def _center_crop_pad(x: Expr, shape: Expr, *, axes: Sequence[int] | None = None) -> Expr:
    """CenterCropPad as one Pad with negative amounts.

    CenterCropPad(x: [n, 3], [5], axes=[0])
        ->  Pad(x, [max(5 - n, 0) // 2 - max(n - 5, 0) // 2, the difference], axes=[0]): [5, 3]
    """
    dims, asked = dims_of(x), requested_sizes(shape)
    places = [axis % len(dims) for axis in (range(len(dims)) if axes is None else axes)]
    before, after = [], []
    for place, size in zip(places, asked, strict=True):
        most = te.max(dims[place], size)
        missing, too_many = (simplified(most - each) for each in (dims[place], size))
        first = tirx.floordiv(missing, 2) - tirx.floordiv(too_many, 2)
        before.append(simplified(first))
        after.append(simplified(size - dims[place] - first))
    return apply("Pad", x, vector_of(*before, *after), None, vector_of(*places))


# Convolutions and transposed convolutions of one to three spatial axes, with a bias.


CONVOLUTIONS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}


def arguments_of(attrs: Attrs) -> dict[str, Any]:
    """The arguments of a convolution from its attributes, none of which may be missing."""
    names = {"strides": "strides", "padding": "pads", "dilation": "dilations", "groups": "group"}
    return {name: attrs[own] for name, own in names.items()}


def _convolution(x: Expr, weight: Expr, bias: Expr, *, is_transposed: bool, **attrs: Any) -> Expr:
    axes = ex.rank_of(x) - 2
    if axes not in CONVOLUTIONS:
        raise ValueError(f"{axes} spatial axes, where 1 to 3 are supported")
    check_channels(x, weight, attrs, is_transposed)
    attrs = window_form(attrs, axes)
    automatic = attrs.get("auto_pad", "NOTSET")
    if is_transposed and (attrs.get("output_shape") or automatic in _SAME):
        # Computes pads from `output_shape`. If the result is too large, it is cropped on both
        # sides, an odd element at the beginning unless auto_pad is SAME_UPPER. If it is too small,
        # it is padded at its end, as in ONNX Runtime. Without `output_shape`, SAME means `stride`
        # results for each element.
        asked, added, totals = attrs.get("output_shape"), [*attrs["output_padding"]], []
        for axis, size in enumerate(attrs.get("kernel_shape") or ex.known_dims(weight)[2:]):
            stride, span = attrs["strides"][axis], (size - 1) * attrs["dilations"][axis] + 1
            over = span + added[axis] - stride
            if asked:
                over += stride * ex.known_dims(x)[2:][axis] - asked[-axes:][axis]
                added[axis] += max(0, -over)
            totals.append(max(0, over))
        attrs["pads"] = shared_pads(totals, automatic == "SAME_UPPER")
        attrs["output_padding"] = added
    else:
        x, attrs = with_pads("Conv", x, kernel_of(weight, attrs), attrs)
    form, names = arguments_of(attrs), "DHW"[-axes:]
    form["data_layout"], form["kernel_layout"] = f"NC{names}", f"OI{names}"
    convolve = CONVOLUTIONS[axes]
    if is_transposed:
        form |= {"kernel_layout": f"IO{names}", "output_padding": attrs["output_padding"]}
        convolve = getattr(relax.op.nn, f"conv{axes}d_transpose")
    result = convolve(x, weight, **form)
    return result if bias is None else ex.emit(result) + ex.reshaped(bias, (1, -1, *[1] * axes))


operator("Conv")(partial(_convolution, is_transposed=False))
operator("ConvTranspose")(partial(_convolution, is_transposed=True))
