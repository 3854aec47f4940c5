"""Anchors of convolutions: channels last.

    lv = R.nn.conv2d(x, const_w, data_layout="NHWC", kernel_layout="HWIO", out_layout="NHWC")

A weight that is no constant is packed by operators on it (`pack_open_weights`). For 8-bit integers
and 16-bit floats, `integer_anchor` finds the tensors that x and the weight come from.
"""

from __future__ import annotations

from tvm import ir, relax

from relay_passes.ir.convolution import CHANNELS_LAST, layouts_of
from relay_passes.ir.graph import DataflowGraph, op_name, region_tensor
from tir_schedules.core.attributes import Attribute

from .anchor import Anchor
from .integer_anchor import Operand, integer_operand, quantized_on_the_way, rounded_on_the_way

_PACKED_AT_RUN_TIME = ("float32", "bfloat16", "int8")


def match_conv(graph: DataflowGraph, position: int, call: relax.Call) -> Anchor | str | None:
    """The anchor of a convolution; a str says why there is none."""
    attrs = call.attrs
    layouts = layouts_of(call)
    if layouts != CHANNELS_LAST[op_name(call)]:
        return f"the layouts {', '.join(layouts)}"
    output = region_tensor(graph.bindings[position].var)
    x, w = Operand(call.args[0]), Operand(call.args[1])
    if output is not None and output.dtype == "int32":
        found = [integer_operand(graph, n, a) for n, a in zip("ab", call.args, strict=True)]
        if found[0] is None or found[1] is None:
            return "a zero point or integer type that no kernel has"
        x, w = found[0], found[1]
    weight = region_tensor(w.source)
    if output is None or weight is None or region_tensor(x.source) is None:
        return "a shape is not known at compile time"
    is_open = not isinstance(w.source, ir.GenericConst)
    if is_open and (weight.dtype not in _PACKED_AT_RUN_TIME or 0 in weight.shape):
        return "a weight that is no constant"
    groups = int(attrs.groups)
    described: dict[str, Attribute] = {
        "strides": tuple(map(int, attrs.strides)),
        "padding": tuple(map(int, attrs.padding)),
        "dilation": tuple(map(int, attrs.dilation)),
        "groups": groups,
    }
    op, otherwise = op_name(call).rpartition(".")[2], ""
    *_, per_group, channels = weight.shape
    if 1 == per_group < groups == channels and op != "conv3d":
        op, otherwise = "depthwise_conv2d", op
    if output.dtype == "int32":
        quantized_on_the_way(graph, x)
    elif weight.dtype in ("bfloat16", "float16"):
        rounded_on_the_way(graph, x)
    inputs = (x.source, w.source, *(x.inputs[n] for n in ("range", "a") if n in x.inputs))
    absorbed = tuple(sorted({*x.absorbed, *w.absorbed}))
    attributes = {**x.attrs, **w.attrs, **described}
    open_weight = 1 if is_open else None
    return Anchor(position, op, inputs, output, attributes, absorbed, otherwise, open_weight)
