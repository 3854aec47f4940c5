"""Writes convolutions along one axis with channels last, so that a window is contiguous memory.

Before

    lv = R.nn.conv2d(x, const_w)                    # [1, 256, 512, 1] * [512, 256, 5, 1]

After

    lv = R.reshape(x, [1, 256, 512])
    lv1 = R.permute_dims(lv, [0, 2, 1])
    lv2 = R.nn.conv1d(lv1, const_w', data_layout="NWC", kernel_layout="WIO")
    lv3 = R.permute_dims(lv2, [0, 2, 1])
    lv4 = R.reshape(lv3, [1, 512, 508, 1])

Likewise nn.conv1d in NCW. Only convolutions that the template "matmul" builds are rewritten: a
constant f32 weight, one group, no dilation, no padding along the axis. `sink_permutes` moves the
permutations on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import ir, relax

from relay_passes.ir.graph import DataflowGraph, known_tensor, op_name, static_tensor
from relay_passes.ir.rewrite import Bindings, value_pass


@dataclass(frozen=True)
class _Conv:
    """A convolution along one axis: x [N, C, L], weight [OC, C, taps]."""

    x: relax.Expr
    shape: tuple[int, int, int]
    weight: np.ndarray
    stride: int
    output: tuple[int, ...]


def conv1d_channels_last() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return value_pass("tvm_hybrid.conv1d_channels_last", _channels_last)


def _channels_last(_graph: DataflowGraph, block: Bindings, call: relax.Expr) -> relax.Expr | None:
    """A convolution along one axis with channels last; None for anything else."""
    conv = _match(call)
    if conv is None:
        return None
    batch, channels, length = conv.shape
    x = _reshape(block, conv.x, (batch, channels, length))
    weight = relax.const(np.ascontiguousarray(conv.weight.transpose(2, 1, 0)))
    result = block.emit(
        relax.op.nn.conv1d(
            _swap(block, x),
            weight,
            strides=[conv.stride],
            data_layout="NWC",
            kernel_layout="WIO",
            out_layout="NWC",
        )
    )
    swapped = _swap(block, result)
    return _reshape(block, swapped, conv.output)


def _swap(block: Bindings, expr: relax.Expr) -> relax.Expr:
    """[N, A, B] -> [N, B, A]; a reshape if nothing moves."""
    tensor = known_tensor(expr)
    batch, first, second = tensor.shape
    if 1 in (first, second):
        return _reshape(block, expr, (batch, second, first))
    return block.emit(relax.op.permute_dims(expr, [0, 2, 1]))


def _reshape(block: Bindings, expr: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    tensor = known_tensor(expr)
    return expr if tensor.shape == shape else block.emit(relax.op.reshape(expr, shape))


def _match(call: relax.Expr) -> _Conv | None:
    """The convolution that a call is; None if it is none, or needs more than the template has."""
    layouts = {"relax.nn.conv1d": ("NCW", "OIW"), "relax.nn.conv2d": ("NCHW", "OIHW")}
    data, kernel = layouts.get(op_name(call), ("", ""))
    if not data or not isinstance(call.args[1], ir.GenericConst):
        return None
    x, w, output = static_tensor(call.args[0]), static_tensor(call.args[1]), static_tensor(call)
    attrs = call.attrs
    if x is None or w is None or output is None or {x.dtype, w.dtype, output.dtype} != {"float32"}:
        return None
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != (data, kernel, data):
        return None
    spatial = len(data) - 2
    strides = [int(stride) for stride in attrs.strides]
    plain = int(attrs.groups) == 1 and not any(int(pad) for pad in attrs.padding)
    if not plain or any(int(dilation) != 1 for dilation in attrs.dilation) or 0 in output.shape:
        return None
    along = [i for i in range(spatial) if (x.shape[2 + i], w.shape[2 + i]) != (1, 1)]
    if len(along) != 1:  # with a single position there is no layout to gain
        return None
    (axis,) = along
    return _Conv(
        x=call.args[0],
        shape=(x.shape[0], x.shape[1], x.shape[2 + axis]),
        weight=call.args[1].value.numpy().reshape(w.shape[0], w.shape[1], w.shape[2 + axis]),
        stride=strides[axis],
        output=output.shape,
    )
