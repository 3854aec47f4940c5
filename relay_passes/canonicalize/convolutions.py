"""Convolutions in the form that templates build: channels last, no padding before them, one tap."""

from __future__ import annotations

import math
from typing import Any

from tvm import ir, relax

from relay_passes.ir import traits
from relay_passes.ir.axes import view_axes
from relay_passes.ir.constants import array_of, constant_of
from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import (
    DataflowGraph,
    is_call,
    known_tensor,
    op_name,
    region_tensor,
    relax_shape,
    reshaped,
    same_shape,
    static_tensor,
)
from relay_passes.ir.quantization import with_axes
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import RuleGraph, rule


@rule(*traits.CHANNELS_LAST)
def pointwise_conv(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Writes convolutions of one tap as products of pixels and a matrix.

    Before

        lv = R.nn.conv2d(x, const_w, data_layout="NHWC", kernel_layout="HWIO")     # [1, 1, C, OC]
        lv1 = R.nn.conv2d(y, const_v, data_layout="NCHW", kernel_layout="OIHW")    # [OC, C, 1, 1]
        lv2 = R.add(lv1, const_b)                                                  # [1, OC, 1, 1]

    After

        lv = R.matmul(x, const_w')                                                 # [C, OC]
        planes = R.reshape(y, [N, C, H * W])
        lv1 = R.matmul(const_v', planes)                                           # [OC, C]
        flat = R.add(lv1, const_b')                                                # [OC, 1]
        lv2 = R.reshape(flat, [N, OC, H, W])

    Only with stride 1, no padding and one group; along one, two or three axes. With channels first,
    the weight must be constant. A permutation to channels first directly before the convolution
    stays directly before the product, which reads through it.
    """
    if traits.layouts_of(call) == traits.CHANNELS_LAST[op_name(call)]:
        known = region_tensor(call.args[0]) is not None and static_tensor(call.args[1])
        if not known or not traits.has_one_tap(call):
            return None
        rank = int(call.args[1].ty.ndim)
        weight = with_axes(graph, call.args[1], (rank - 2, rank - 1), block)
        return relax.op.matmul(call.args[0], weight, call.attrs.out_dtype or None)
    if (
        not traits.runs_on_planes(call)
        or traits.layouts_of(call) != traits.CHANNELS_FIRST[op_name(call)]
    ):
        return None
    weight = with_axes(graph, call.args[1], (0, 1), block)
    planes = relax.op.matmul(weight, _flat(graph, block, call.args[0]))
    return _flat_result(graph, block, planes, (2, int(call.ty.ndim) - 1))


@rule("relax.nn.conv2d")
def line_conv(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Writes convolutions along one axis of an image as convolutions of lines, with contiguous
    windows.

    Before

        lv = R.nn.conv2d(x, const_w, data_layout="NHWC", kernel_layout="HWIO")
                                                        # [1, 512, 1, 256] * [5, 1, 256, 512]
        lv1 = R.add(lv, const_b)

    After

        lines = R.reshape(x, [1, 512, 256])
        lv = R.nn.conv1d(lines, const_w', data_layout="NWC", kernel_layout="WIO")
        lines1 = R.add(lv, const_b)
        lv1 = R.reshape(lines1, [1, 508, 1, 512])

    Only convolutions that the template "matmul" builds: channels last, a constant f32 weight, one
    group, no dilation, no padding.
    """
    x, w, output = map(static_tensor, (*call.args, call))
    attrs, last = call.attrs, traits.CHANNELS_LAST
    if x is None or w is None or output is None or {x.dtype, w.dtype, output.dtype} != {"float32"}:
        return None
    if traits.layouts_of(call) != last["relax.nn.conv2d"] or traits.has_one_tap(call):
        return None
    plain = int(attrs.groups) == 1 and not any(int(pad) for pad in attrs.padding) and w.constant
    if not plain or any(int(dilation) != 1 for dilation in attrs.dilation) or 0 in output.shape:
        return None
    along = [axis for axis in (1, 2) if (x.shape[axis], w.shape[axis - 1]) != (1, 1)]
    if len(along) != 1:
        return None
    taps = array_of(call.args[1].value).reshape(w.shape[along[0] - 1], *w.shape[2:])
    data, kernel, result = last["relax.nn.conv1d"]
    conv = relax.op.nn.conv1d(
        block.emit(reshaped(call.args[0], (x.shape[0], x.shape[along[0]], x.shape[3]))),
        constant_of(taps),
        strides=[int(attrs.strides[along[0] - 1])],
        data_layout=data,
        kernel_layout=kernel,
        out_layout=result,
    )
    return _flat_result(graph, block, conv, (1, 2))


_Joined = tuple[int, int]  # first and last of the axes that a flat form joins into one


def _flat_result(
    graph: RuleGraph, block: Bindings, flat: relax.Expr, joined: _Joined
) -> relax.Expr:
    """Binds and notes the flat form of a value; returns the value as its reshape."""
    flat = block.emit(flat, "flat")
    graph.note(block.var, (flat, joined))
    return relax.op.reshape(flat, relax_shape(known_tensor(block.var).shape, block.var))


def _flat(graph: RuleGraph, block: Bindings, expr: relax.Expr) -> relax.Expr:
    """A tensor [N, C, H, W] as [N, C, H * W]."""
    call = graph.definition(expr)
    batch, channels, *extents = known_tensor(expr).shape
    pixels, rank = math.prod(extents), 2 + len(extents)
    last_first = (0, rank - 1, *range(1, rank - 1))
    if is_call(call, "relax.permute_dims") and view_axes(call) == last_first:
        lines = block.emit(reshaped(call.args[0], (batch, pixels, channels)))
        return block.emit(relax.op.permute_dims(lines, [0, 2, 1]))
    return block.emit(reshaped(expr, (batch, channels, pixels)))


@rule(*traits.ELEMENTWISE, "relax.reshape")
def elementwise_flat(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Applies elementwise operators after a product of pixels or a convolution of lines to its flat
    result.

    Before

        lv = R.reshape(planes, R.shape([n, c, h, w]))       # planes: [n, c, h * w]
        lv1 = R.nn.relu(lv)

    After

        flat = R.nn.relu(planes)
        lv1 = R.reshape(flat, R.shape([n, c, h, w]))

    A reshape of such a result to its flat form is replaced by the flat form.
    """
    operands, result = call.args[: traits.ELEMENTWISE.get(op_name(call), 1)], region_tensor(call)
    known = next((fact for arg in operands if (fact := graph.known(arg)) is not None), None)
    if result is None or known is None:
        return None
    whole, (first, last) = known
    if is_call(call, "relax.reshape"):
        return whole if same_shape(whole, call) else None
    shapes = []  # in which the operands broadcast to a flat result
    for tensor in map(region_tensor, operands):
        if tensor is None:
            return None
        shape = (1,) * (len(result.shape) - len(tensor.shape)) + tensor.shape
        extents = shape[first : last + 1]
        if extents != result.shape[first : last + 1] and any(extent != 1 for extent in extents):
            return None
        shapes.append((*shape[:first], math.prod(extents), *shape[last + 1 :]))

    def flat(expr: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
        if not isinstance(expr, ir.GenericConst):
            return block.emit(reshaped(expr, shape))
        array = expr.value.numpy()
        while len(shape) > 1 and shape[0] == 1:
            shape = shape[1:]
        return relax.const(array.reshape(shape) if array.ndim else array, expr.ty.dtype)

    read = list(map(flat, operands, shapes))
    made = with_args(call, [*read, *call.args[len(operands) :]])
    return _flat_result(graph, block, made, (first, last))


_AVERAGES = tuple(f"relax.nn.avg_pool{count}d" for count in (1, 2, 3))
_NOT_NEGATIVE = (
    *("relax.nn.relu", "relax.nn.relu6", "relax.sigmoid", "relax.abs", "relax.exp"),
    *("relax.sqrt", "relax.nn.softplus", "relax.nn.softmax"),
)


@rule(*traits.CONVOLUTIONS, *traits.MAX_POOLS, *_AVERAGES)
def fold_padding(graph: RuleGraph, _block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Folds padding before a convolution or a pool into the operator's own padding.

    Before

        lv = R.nn.pad(x, [0, 0, 0, 0, 0, 1, 0, 1])      # NCHW: a line below, a column on the right
        gv = R.nn.conv2d(lv, w, strides=[2, 2])

    After

        gv = R.nn.conv2d(x, w, strides=[2, 2], padding=[0, 0, 1, 1])

    Exporters write such a pad for uneven padding (TensorFlow's SAME with a stride). It must add
    zeros. A max pool ignores its own padding: there the pad must add -inf, or zeros to non-negative
    values if every window has one of these. An average pool then counts padding. Transposed
    convolutions and pools that round their sizes up keep their pad.
    """
    pad = graph.definition(call.args[0])
    if not is_call(pad, "relax.nn.pad"):
        return None
    pools = not traits.is_convolution(call)
    layout = str(call.attrs.layout if pools else call.attrs.data_layout)
    amounts = [int(amount) for amount in pad.attrs.pad_width]
    if str(pad.attrs.pad_mode) != "constant" or len(amounts) != 2 * len(layout):
        return None
    image = [axis for axis, letter in enumerate(layout) if letter in "DHW"]
    added = [*(amounts[2 * axis] for axis in image), *(amounts[2 * axis + 1] for axis in image)]
    if min(amounts) < 0 or sum(added) != sum(amounts):
        return None
    largest, value = is_call(call, *traits.MAX_POOLS), float(pad.attrs.pad_value)
    zeros = value == 0.0 and not (largest and _is_negative(graph, pad.args[0]))
    if not (zeros or (largest and value == -math.inf)):
        return None
    own = [int(amount) for amount in call.attrs.padding]
    padding = [a + b for a, b in zip(own, added, strict=True)]
    changed: dict[str, Any] = {"padding": padding}
    if pools:  # every window must have an element that is not padding
        sizes = [int(size) for size in call.attrs.pool_size] * 2
        if any(amount >= size for amount, size in zip(padding, sizes, strict=True)):
            return None
        if bool(call.attrs.ceil_mode) or any(int(step) != 1 for step in call.attrs.dilation):
            return None
    if is_call(call, *_AVERAGES):
        if any(own) and not bool(call.attrs.count_include_pad):
            return None
        changed["count_include_pad"] = True
    return with_args(call, [pad.args[0], *call.args[1:]], **changed)


def _is_negative(graph: DataflowGraph, expr: relax.Expr) -> bool:
    """Whether a tensor may have elements below zero."""
    call = graph.definition(expr)
    if is_call(call, "relax.clip"):
        return not float(call.args[1].value) >= 0
    return op_name(call) not in _NOT_NEGATIVE
