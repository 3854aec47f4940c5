"""Replaces auto_pad by explicit padding.

Conv(x, W, auto_pad=SAME_UPPER, strides=[2, 2])    ->    Conv(x, W, pads=[0, 0, 1, 1], ...)

The amounts are those of the ONNX operators: the output
has ceil(input / stride) elements, and SAME_UPPER puts an odd one at the end.

MaxPool(x[n], auto_pad=SAME_UPPER, kernel_shape=[2], strides=[2])    ->    MaxPool(x, ceil_mode=1)

Where an extent is dynamic, windows of two elements lack one at most, at the end: that is ceil_mode.

Conv(x[n], W, auto_pad=SAME_UPPER, strides=[3])    ->    Conv(Pad(x, ...), W, strides=[3])

Of other windows the amounts follow from the extent, and a Pad adds them.
Pools without auto_pad are as `ceil_mode` has them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from ..graph.graph import OWN_DOMAIN, Graph, describe
from ..graph.node_builder import (
    Extent,
    NodeBuilder,
    attributes_of,
    extents_of,
    known_shape,
    optional_input,
    with_attributes,
)
from ..ops.pooling import window_count
from .expand_function import expand_missing
from .integer_matmul import factor_of, requantize
from .quantized import (
    MICROSOFT,
    Quantized,
    channels_first,
    check_per_tensor,
    quantized_input,
    quantized_type,
)
from .registry import rewrites

_POOLS = ("AveragePool", "LpPool", "MaxPool")


class _Axis(NamedTuple):
    """An axis of x whose padding follows from its dynamic extent."""

    place: int
    span: int
    stride: int


@rewrites("Conv", "AveragePool", "LpPool")
def auto_pad(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Replaces the attribute, if there is one and the pads follow from what is known of shapes."""
    attributes = attributes_of(node)
    mode = attributes.get("auto_pad", "NOTSET")
    if mode in ("NOTSET", "VALID") and node.op_type in _POOLS:
        by_ceil = attributes.get("ceil_mode", 0)
        return ceil_mode(node, graph) if by_ceil else wide_windows(node, graph)
    shape = graph.dims(node.input[0])
    weight = graph.shape(node.input[1]) if node.op_type in ("Conv", "ConvInteger") else None
    kernel = attributes.get("kernel_shape") or (weight or ())[2:]
    if mode not in ("SAME_UPPER", "SAME_LOWER") or shape is None or len(kernel) != len(shape) - 2:
        return None
    strides = attributes.get("strides") or [1] * len(kernel)
    dilations = attributes.get("dilations") or [1] * len(kernel)
    changed: dict[str, Any] = {"auto_pad": None}
    before, after, dynamic = [], [], []
    axes = zip(shape[2:], kernel, strides, dilations, strict=True)
    for place, (extent, size, stride, dilation) in enumerate(axes, 2):
        span = (size - 1) * dilation + 1
        if extent is None and stride > 1:
            if node.op_type == "MaxPool" and span <= 2 and mode == "SAME_UPPER":
                changed["ceil_mode"] = 1
            else:
                dynamic.append(_Axis(place, span, stride))
            extent, span = stride, min(span, stride)  # which needs no padding
        extent = 1 if extent is None else extent  # any, where windows begin at every place
        outputs = -(-extent // stride)
        total = max(0, (outputs - 1) * stride + span - extent)
        small, large = total // 2, total - total // 2
        before.append(small if mode == "SAME_UPPER" else large)
        after.append(large if mode == "SAME_UPPER" else small)
    single = with_attributes(node, pads=[*before, *after], **changed)
    return _padded(single, dynamic, mode == "SAME_UPPER", graph) if dynamic else [single]


def _padded(
    node: onnx.NodeProto, axes: list[_Axis], upper: bool, graph: Graph
) -> list[onnx.NodeProto]:
    """The node behind a Pad of dynamic extents.

    Raises
    ------
    UnsupportedOperatorError
        Elements that are added would count: of means, and of integers with a zero point.
    """
    if node.op_type not in ("Conv", "MaxPool"):
        raise UnsupportedOperatorError(
            f"{describe(node)}: its padding depends on an extent that is not known; give shapes "
            "that fix it, or write the padding as a Pad before it"
        )
    build, x = NodeBuilder(graph, node), node.input[0]
    shape, rank = build.add("Shape", x), len(graph.dims(x) or ())
    amounts = [build.constant([0], np.int64)] * (2 * rank)
    for place, span, stride in axes:
        extent = build.add("Gather", shape, build.constant([place], np.int64))
        more = build.add("Add", extent, build.constant([stride - 1], np.int64))
        step = build.constant([stride], np.int64)
        whole = build.add("Mul", build.add("Div", more, step), step)
        reach = build.add("Add", whole, build.constant([span - stride], np.int64))
        total = build.add("Sub", reach, extent)
        # Windows without gaps never lack fewer than none. TVM cannot prove that, but divides only
        # what is not negative; the sum of both amounts, and so the size, is free of the maximum.
        positive = build.add("Max", total, build.constant([0], np.int64))
        total = positive if span < stride else total
        small = build.add("Div", positive, build.constant([2], np.int64))
        large = build.add("Sub", total, small)
        amounts[place], amounts[rank + place] = (small, large) if upper else (large, small)
    dtype = helper.tensor_dtype_to_np_dtype(graph.elem_type(x))
    least = -np.inf if np.issubdtype(dtype, np.floating) else np.iinfo(dtype).min
    number = build.constant(np.array(least if node.op_type == "MaxPool" else 0, dtype))
    margin = build.add("Concat", *amounts, axis=0)
    single = with_attributes(node)
    single.input[0] = build.add("Pad", x, margin, number)
    return [*build.nodes, single]


@rewrites("ConvInteger")
def conv_integer(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Refuses zero points that do not fit their operand."""
    for position in (0, 1):
        elem_type, name = graph.elem_type(node.input[position]), optional_input(node, 2 + position)
        if elem_type not in (0, TensorProto.UINT8, TensorProto.INT8):
            raise ModelError(f"{describe(node)}: {node.input[position]!r} is not uint8 or int8")
        if name and elem_type and graph.elem_type(name) not in (0, elem_type):
            raise ModelError(
                f"{describe(node)}: the zero point {name!r} has another type than the operand "
                f"{node.input[position]!r}"
            )
    check_per_tensor(node, graph, optional_input(node, 2))
    check_channels(node, graph, node.input[1], optional_input(node, 3))
    if attributes_of(node).get("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER"):
        return auto_pad(node, graph)
    return None


def check_channels(node: onnx.NodeProto, graph: Graph, weight: str, *names: str) -> None:
    """Refuses a scale or zero point that is not one number, or one for each output channel."""
    shape = graph.shape(weight)
    for name in filter(None, names):
        found = graph.shape(name)
        if shape is None or found is None or math.prod(found) == 1 or found == (shape[0],):
            continue
        raise ModelError(
            f"{describe(node)}: {name!r} has the shape {found}; the convolution has "
            f"{shape[0]} output channels"
        )


@rewrites("ConvTranspose")
def conv_transpose(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Replaces output_shape of a transposed convolution by explicit padding.

    ConvTranspose(x, W, output_shape=[10, 12], ...)    ->    ConvTranspose(x, W, pads=[1, 1, 0, 0],
    ...)

    The amounts are those of the ONNX operator: if the result
    is too large, it is cropped on both sides, an odd element at the beginning unless auto_pad is
    SAME_UPPER. If it is too small, it is padded at its end, as ONNX Runtime does.

    Replaces the attribute, if there is one and the shapes are known.
    """
    attributes = attributes_of(node)
    wanted = attributes.get("output_shape")
    shape, weight = graph.shape(node.input[0]), graph.shape(node.input[1])
    if not wanted or shape is None or weight is None:
        return None
    rank = len(shape) - 2
    strides = attributes.get("strides") or [1] * rank
    dilations = attributes.get("dilations") or [1] * rank
    added = list(attributes.get("output_padding") or [0] * rank)
    before, after = [], []
    for axis, extent in enumerate(wanted[-rank:]):
        span = (weight[2 + axis] - 1) * dilations[axis] + 1
        natural = strides[axis] * (shape[2 + axis] - 1) + added[axis] + span
        total = max(0, natural - extent)
        small, large = total // 2, total - total // 2
        upper = attributes.get("auto_pad") == "SAME_UPPER"
        before.append(small if upper else large)
        after.append(large if upper else small)
        added[axis] += max(0, extent - natural)
    pads = [*before, *after]
    dropped = {"auto_pad": None, "output_shape": None}
    return [with_attributes(node, pads=pads, output_padding=added, **dropped)]


@rewrites("CenterCropPad")
def center_crop_pad(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """CenterCropPad of open sizes as one Pad, whose amounts below 0 crop.

    CenterCropPad(x: [n, 3], [5], axes=[0])
        ->  Pad(x, [max(5 - n, 0) // 2 - max(n - 5, 0) // 2, what is left], axes=[0]): [5, 3]

    Known sizes go by ONNX's definition, a Pad and a Slice, of which TVM would not find the 5.

    To a shape that is known or follows from other sizes.
    """
    x, wanted = node.input
    dims = graph.dims(x)
    if dims is None or (graph.shape(x) is not None and wanted in graph.constants):
        return expand_missing(node, graph)
    build = NodeBuilder(graph, node)
    places = attributes_of(node).get("axes", range(len(dims)))
    axes = build.constant([axis % len(dims) for axis in places], np.int64)
    wanted = build.add("Cast", wanted, to=onnx.TensorProto.INT64)
    sizes = build.add("Gather", build.add("Shape", x), axes, axis=0)
    most, two = build.add("Max", sizes, wanted), build.constant([2], np.int64)
    missing, too_many = (build.add("Sub", most, each) for each in (sizes, wanted))
    halves = [build.add("Div", each, two) for each in (missing, too_many)]
    before = build.add("Sub", *halves)
    after = build.add("Sub", build.add("Sub", wanted, sizes), before)
    amounts = build.add("Concat", before, after, axis=0)
    build.add("Pad", x, amounts, "", axes, output=node.output[0])
    return build.nodes


@rewrites("MaxPool")
def max_pool(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """MaxPool: explicit padding, and the places of the maxima as a node of its own.

    y, places = MaxPool(x, ...)    ->    y = MaxPool(x, ...)
                                         places = MaxPoolPlaces(x, ...)

    What computes the maxima stays the same, with all that is fused with it. The padding is that of
    `auto_pad`; the places are apart, if they are asked for.
    """
    if not any(node.output[1:]):
        return auto_pad(node, graph)
    same = attributes_of(node).get("auto_pad", "NOTSET").startswith("SAME")
    padded, *behind = auto_pad(node, graph) or [node]
    attributes = attributes_of(padded)
    if behind and not same:
        raise UnsupportedOperatorError(
            f"{describe(node)}: with ceil_mode and places, windows of a dynamic extent are not "
            "counted; give shapes that fix it, or leave out ceil_mode"
        )
    if same and (behind or attributes.get("auto_pad", "NOTSET").startswith("SAME")):
        raise UnsupportedOperatorError(
            f"{describe(node)}: the padding of an open extent is not known where places are asked "
            "for; give shapes that fix it, or write the padding as a Pad before it"
        )
    kernel = attributes["kernel_shape"]
    ones, none = [1] * len(kernel), [0, 0] * len(kernel)
    pads, ceil = attributes.get("pads") or none, attributes.get("ceil_mode", 0)
    strides, dilations = attributes.get("strides") or ones, attributes.get("dilations") or ones
    build = NodeBuilder(graph, node)
    single = with_attributes(padded)
    del single.output[1:]
    build.nodes.append(single)
    build.add(
        "MaxPoolPlaces",
        node.input[0],
        output=node.output[1],
        domain=OWN_DOMAIN,
        kernel_shape=kernel,
        pads=pads,
        strides=strides,
        dilations=dilations,
        ceil_mode=ceil,
        storage_order=attributes.get("storage_order", 0),
    )
    dims = graph.dims(node.input[0])
    if dims is not None:
        around = zip(pads[: len(kernel)], pads[len(kernel) :], strict=True)
        axes = zip(dims[2:], around, kernel, strides, dilations, strict=True)
        sizes = [None if axis[0] is None else window_count(*axis, bool(ceil)) for axis in axes]
        graph.declare(node.output[1], TensorProto.INT64, (*dims[:2], *sizes))
    return build.nodes


def wide_windows(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Pads pools whose window is wider than the image, as ONNX Runtime computes them.

    AveragePool(x[3], kernel_shape=[7], strides=[7])    ->    AveragePool(x, pads=[0, 4], ...)

    ONNX's shape inference and ONNX Runtime round (extent - window) / stride toward zero. So where
    less than a stride is missing there is one window, over what there is; rounded down there would
    be none.

    A pool with what its windows lack as padding at the end; None if they lack nothing.

    Sizes that are open stay so: their windows are to fit.
    """
    attributes = attributes_of(node)
    shape, kernel = graph.dims(node.input[0]), attributes.get("kernel_shape") or ()
    if shape is None or len(kernel) != len(shape) - 2:
        return None
    rank = len(kernel)
    strides = attributes.get("strides") or [1] * rank
    dilations = attributes.get("dilations") or [1] * rank
    pads = list(attributes.get("pads") or [0] * (2 * rank))
    lacks = False
    for axis, extent in enumerate(shape[2:]):
        if not extent:
            continue
        span = (kernel[axis] - 1) * dilations[axis] + 1
        missing = span - (extent + pads[axis] + pads[rank + axis])
        if 0 < missing < strides[axis]:
            pads[rank + axis] += missing
            lacks = True
    return [with_attributes(node, auto_pad=None, pads=pads)] if lacks else None


# Pools with ceil_mode, as pools with more padding at the end.
#
# MaxPool(x[5], kernel_shape=[2], strides=[2], ceil_mode=1)      ->    MaxPool(x, pads=[0, 1], ...)
# MaxPool(x[n], kernel_shape=[3], strides=[2], ceil_mode=1)      ->    MaxPool(x, pads=[0, 1], ...)
# AveragePool(x[n], count_include_pad=1, ceil_mode=1, ...)       ->    y = AveragePool(x, pads, ...)
#                                                                      Div(y, AveragePool(ones,
#                                                                      ...))
#
# The last window may reach beyond the padding, but has to begin before the padding at the end. With
# extent n, span k, stride s and pads p and q there are
#
#     min(ceil((n + p + q - k) / s), floor((n + p - 1) / s)) + 1
#
# windows, as in ONNX Runtime; ONNX infers more. Where it depends on n which of both is smaller, the
# pool makes the larger number, and a Slice drops the last window. An average that counts the
# padding does not count what lies beyond it: it is divided by the same average of ones.


def ceil_mode(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """The pool without the attribute; None if TVM's form of it is right."""
    attributes = attributes_of(node)
    dims, kernel = graph.dims(node.input[0]), attributes.get("kernel_shape") or ()
    if dims is None or len(kernel) != len(dims) - 2:
        return None
    counts_padding = node.op_type == "AveragePool" and attributes.get("count_include_pad", 0)
    if counts_padding and None not in dims[2:]:
        return None
    rank, ones = len(kernel), [1] * len(kernel)
    strides, dilations = (attributes.get(name) or ones for name in ("strides", "dilations"))
    pads = list(attributes.get("pads") or [0] * (2 * rank))
    before, after = pads[:rank], pads[rank:]
    longer, cut = list(after), []
    for axis, extent in enumerate(dims[2:]):
        span, stride = (kernel[axis] - 1) * dilations[axis] + 1, strides[axis]
        around = before[axis], after[axis]
        if extent is not None:
            count = window_count(extent, around, kernel[axis], stride, dilations[axis], True)
            if count < 1:
                return None
            longer[axis] = max(0, (count - 1) * stride + span - extent - before[axis])
        elif after[axis] >= span - 1:
            longer[axis] = span - 1
        else:
            longer[axis] = after[axis] + stride - 1
            if after[axis] > span - stride:
                cut.append(axis)
    build = NodeBuilder(graph, node)
    changed = ("auto_pad", "ceil_mode", "pads")
    rest = {name: value for name, value in attributes.items() if name not in changed}
    x, output = node.input[0], node.output[0]
    last = "" if counts_padding or cut else output
    pooled = build.add(node.op_type, x, output=last, pads=[*before, *longer], **rest)
    if counts_padding:
        counted = [min(each) for each in zip(longer, after, strict=True)]
        beyond = [most - own for most, own in zip(longer, counted, strict=True)]
        image = _ones(build, x, [p + q for p, q in zip(before, counted, strict=True)])
        shares = build.add(node.op_type, image, pads=[*([0] * rank), *beyond], **rest)
        pooled = build.add("Div", pooled, shares, output="" if cut else output)
    for axis in cut:
        span, stride = (kernel[axis] - 1) * dilations[axis] + 1, strides[axis]
        size = extents_of(build, x)[axis + 2]
        over = _plus(build, size, before[axis] + after[axis] - span + stride - 1)
        inside = _plus(build, size, before[axis] - 1)
        step = build.constant([stride], np.int64)
        last = build.add("Min", build.add("Div", over, step), build.add("Div", inside, step))
        start, along = build.constant([0], np.int64), build.constant([axis + 2], np.int64)
        name = output if axis == cut[-1] else ""
        pooled = build.add("Slice", pooled, start, _plus(build, last, 1), along, output=name)
    return build.nodes


def _ones(build: NodeBuilder, x: str, pads: list[int]) -> str:
    """An image of ones, as large as a padded one."""
    extents = extents_of(build, x)[2:]
    sizes = [_plus(build, *each) for each in zip(extents, pads, strict=True)]
    shape = build.add("Concat", build.constant([1, 1], np.int64), *sizes, axis=0)
    return build.add("Expand", build.number(x, 1.0), shape)


def _plus(build: NodeBuilder, extent: Extent, more: int) -> str:
    """A sum of sizes as a value int64[1]."""
    if isinstance(extent, int):
        return build.constant([extent + more], np.int64)
    return build.add("Add", extent, build.constant([more], np.int64))


@rewrites("QLinearConv")
@rewrites("QLinearConv", domain=MICROSOFT)
def qlinear_conv(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Quantised convolutions as integer convolutions, as ONNX Runtime computes them.

        QLinearConv(x, sx, zx, w, sw, zw, sy, zy, B)
            ->  QuantizeLinear(Cast(ConvInteger(x, w, zx, zw) + B) * (sx * sw / sy), 1, zy)

    The product of the scales is one float32 number for the tensor or for each output channel,
    computed in that order; where the scales are constant it is a constant.

    Integer convolution and sum, one multiplication, QuantizeLinear.
    """
    build, attributes = NodeBuilder(graph, node), attributes_of(node)
    x, w = quantized_input(node, 0), quantized_input(node, 3)
    scale, zero_point = node.input[6], optional_input(node, 7)
    check_per_tensor(node, graph, x.scale, x.zero_point, scale, zero_point)
    for q in (x, w):
        quantized_type(node, graph, q.value)
    shape = known_shape(graph, node, w.value)
    check_channels(node, graph, w.value, w.scale, w.zero_point)
    last = attributes.pop("channels_last", 0)
    rank = len(shape)

    def convolution(value: str) -> str:
        return _real_sums(build, Quantized(value, x.scale, x.zero_point), w, rank, attributes)

    scales = build.add("Mul", factor_of(build, x.scale), factor_of(build, w.scale))
    factor = build.add("Div", scales, factor_of(build, scale))
    if graph.shape(w.scale) == (shape[0],) and shape[0] > 1:
        factor = build.reshape(factor, [shape[0], *[1] * (rank - 2)])

    def scaled(value: str) -> str:
        return build.add("Mul", convolution(value), factor)

    real = channels_first(build, x.value, rank, scaled) if last else scaled(x.value)
    requantize(build, real, zero_point)
    return build.nodes


def _real_sums(
    build: NodeBuilder, x: Quantized, w: Quantized, rank: int, attributes: dict[str, Any]
) -> str:
    """The integer convolution with its bias, as float32."""
    node, graph = build.source, build.graph
    inputs = [x.value, w.value, x.zero_point, w.zero_point]
    while not inputs[-1]:
        inputs.pop()
    total = build.add("ConvInteger", *inputs, **attributes)
    bias = optional_input(node, 8)
    if bias:
        count = known_shape(graph, node, w.value)[0]
        total = build.add("Add", total, build.reshape(bias, [count, *[1] * (rank - 2)]))
    return build.add("Cast", total, to=TensorProto.FLOAT)
