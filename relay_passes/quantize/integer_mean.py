"""Integer means: the mean of a dequantised tensor becomes an integer sum, scaled afterwards.

The sum is exact in any order; s / (H * W) is rounded to f32 once. ONNX Runtime's QLinearAveragePool
and QLinearGlobalAveragePool sum integers as well.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from microkernels.base.arrays import RANGES
from relay_passes.ir.axes import reduced_axes
from relay_passes.ir.graph import known_tensor, op_name, region_tensor
from relay_passes.ir.quantization import LIMIT, Quantized, largest, read_dequantize
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import RuleGraph, rule
from tir_schedules.core.size import is_dynamic

from .integer_product import integers_of

_GLOBAL = {f"relax.nn.adaptive_avg_pool{rank}d" for rank in (1, 2, 3)}
_POOLS = {
    "relax.nn.avg_pool1d": relax.op.nn.conv1d,
    "relax.nn.avg_pool2d": relax.op.nn.conv2d,
    "relax.nn.avg_pool3d": relax.op.nn.conv3d,
}


def _averaged(graph: RuleGraph, call: relax.Call) -> Quantized | None:
    """The averaged tensor if dequantised with one constant scale and zero point; else None."""
    q = read_dequantize(graph.definition(call.args[0]))
    if q is None or q.quantization.known is None or q.quantization.axis is not None:
        return None
    shapes_known = region_tensor(call) is not None and region_tensor(q.data) is not None
    return q if shapes_known and q.dtype == "float32" and q.data_dtype in RANGES else None


@rule("relax.mean", *_GLOBAL)
def integer_mean(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Computes means over whole axes in integers; also adaptive pools to one position.

    Before

        lv = R.dequantize(q, s, z)                          # q: uint8 [N, H, W, C]
        lv1 = R.mean(lv, axis=[1, 2], keepdims=True)

    After

        lv = R.sum(R.astype(q, "int32"), axis=[1, 2], keepdims=True)
        lv1 = R.subtract(lv, H * W * z)                     # omitted if z is 0
        lv2 = R.multiply(R.astype(lv1, "float32"), s / (H * W))
    """
    q = _averaged(graph, call)
    if q is None or q.quantization.known is None:
        return None
    if op_name(call) in _GLOBAL:
        if any(int(each) != 1 for each in call.attrs.output_size):
            return None
        axes = [axis for axis, letter in enumerate(str(call.attrs.layout)) if letter in "DHW"]
    else:
        axes = reduced_axes(call)
    extents = [known_tensor(q.data).shape[axis] for axis in axes]
    count, zero_point = math.prod(extents), int(q.quantization.known[1].reshape(()))
    if is_dynamic(extents) or count == 0 or count * (largest(q) + abs(zero_point)) >= LIMIT:
        return None
    keepdims = op_name(call) in _GLOBAL or bool(call.attrs.keepdims)
    total = block.emit(relax.op.sum(block.emit(relax.op.astype(q.data, "int32")), axes, keepdims))
    if zero_point:
        offset = relax.const(np.int32(count * zero_point))
        total = block.emit(relax.op.subtract(total, offset))
    return _scaled(block, total, q, np.float32(count))


@rule(*_POOLS)
def integer_pool(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Computes means of windows by a depthwise convolution with ones, which has integer kernels.

    Before

        lv = R.dequantize(q, s, z)                          # q: uint8 [N, H, W, C]
        lv1 = R.nn.avg_pool2d(lv, pool_size=[3, 3])

    After

        lv = R.subtract(R.astype(q, "int32"), z)
        lv1 = R.nn.conv2d(lv, const_ones, groups=C)         # [3, 3, 1, C]
        lv2 = R.multiply(R.astype(lv1, "float32"), s / 9)

    Convolutions are fast with channels last: the rule must run before layouts are chosen. If
    padding is not counted, the divisor differs from pixel to pixel; the factors are then a constant
    tensor.
    """
    q = _averaged(graph, call)
    if q is None:
        return None
    attrs, layout = call.attrs, str(call.attrs.layout)
    tensor, result = known_tensor(q.data), known_tensor(call)
    window = [int(extent) for extent in attrs.pool_size]
    if bool(attrs.ceil_mode) or str(attrs.out_layout) != layout:
        return None
    if math.prod(window) * largest(q) >= LIMIT or layout[0] != "N":
        return None
    channels, spatial = tensor.shape[layout.index("C")], layout.replace("N", "").replace("C", "")
    ones = np.ones((*window, 1, channels), np.int8)
    total = block.emit(
        _POOLS[op_name(call)](
            integers_of(block, q),
            block.emit(relax.op.astype(relax.const(ones), "int32")),
            strides=attrs.strides,
            padding=attrs.padding,
            dilation=attrs.dilation,
            groups=channels,
            data_layout=layout,
            kernel_layout=f"{spatial}IO",
            out_layout=layout,
            out_dtype="int32",
        )
    )
    padded = any(int(margin) for margin in attrs.padding)
    if bool(attrs.count_include_pad) or not padded:
        return _scaled(block, total, q, np.float32(math.prod(window)))
    extents = [tensor.shape[layout.index(letter)] for letter in spatial]
    outputs = [result.shape[layout.index(letter)] for letter in spatial]
    if is_dynamic((*extents, *outputs)):
        return None
    counts: np.ndarray = np.ones((), np.int64)  # elements of each window inside the tensor
    for axis, (size, extent, count) in enumerate(zip(window, extents, outputs, strict=True)):
        stride, step = int(attrs.strides[axis]), int(attrs.dilation[axis])
        first = np.arange(count)[:, None] * stride - int(attrs.padding[axis])
        at = first + np.arange(size) * step
        counts = np.multiply.outer(counts, ((at >= 0) & (at < extent)).sum(axis=1))
    if not counts.all():  # a window without elements has no mean
        return None
    shape = [1 if letter in "NC" else result.shape[axis] for axis, letter in enumerate(layout)]
    return _scaled(block, total, q, counts.reshape(shape).astype(np.float32))


def _scaled(
    block: Bindings, total: relax.Expr, q: Quantized, count: np.float32 | np.ndarray
) -> relax.Expr:
    """The mean of `count` elements from their integer sum."""
    known = q.quantization.known
    assert known is not None
    factor = np.asarray(known[0].reshape(()) / count, np.float32)
    return relax.op.multiply(block.emit(relax.op.astype(total, "float32")), relax.const(factor))
