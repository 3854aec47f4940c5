"""Convolutions in the form that templates build: channels last, no padding in front, one tap."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, relax

from relay_passes.ir.axes import view_axes
from relay_passes.ir.convolution import (
    CHANNELS_FIRST,
    CHANNELS_LAST,
    has_one_tap,
    is_convolution,
    layouts_of,
    runs_on_planes,
)
from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import (
    DataflowGraph,
    is_call,
    known_tensor,
    op_name,
    region_tensor,
    relax_shape,
    static_tensor,
)
from relay_passes.ir.quantization import with_axes
from relay_passes.ir.rewrite import Bindings, block_pass
from relay_passes.ir.rules import RuleGraph, rule
from relay_passes.ir.traits import CONVOLUTIONS, ELEMENTWISE, MAX_POOLS


def pointwise_conv() -> ir.transform.Pass:
    """Writes convolutions of one tap as products of pixels and a matrix.

    Before

        lv = R.nn.conv2d(x, const_w, data_layout="NHWC", kernel_layout="HWIO")     # [1, 1, C, OC]
        lv1 = R.nn.conv2d(y, const_v, data_layout="NCHW", kernel_layout="OIHW")    # [OC, C, 1, 1]
        lv2 = R.add(lv1, const_b)                                                  # [1, OC, 1, 1]

    After

        lv = R.matmul(x, const_w')                                                 # [C, OC]
        planes = R.reshape(y, [N, C, H * W])
        lv1 = R.matmul(const_v', planes)                                           # [OC, C]
        planes1 = R.add(lv1, const_b')                                             # [OC, 1]
        lv2 = R.reshape(planes1, [N, OC, H, W])

    Stride 1, no padding, one group; along one, two or three axes. With channels first, the weight
    is a constant. A permutation to channels first directly before stays directly before the
    product, which reads through it.

    The pass; it needs A-normal form.
    """
    return block_pass("tvm_hybrid.pointwise_conv", _rewrite)


def _rewrite(graph: DataflowGraph) -> list[relax.Binding] | None:
    """The block with such convolutions written as products; None if there are none."""
    writer = _Writer(graph)
    for position in range(len(graph.bindings)):
        writer.write(position)
    return writer.block.bindings if writer.changes else None


def is_pointwise(graph: DataflowGraph, call: relax.Expr) -> bool:
    """Whether an expression is a convolution, channels last, that computes every pixel from one
    alone."""
    if not is_call(call, *CHANNELS_LAST) or layouts_of(call) != CHANNELS_LAST[op_name(call)]:
        return False
    if region_tensor(call.args[0]) is None:
        return False
    return has_one_tap(call) and static_tensor(call.args[1]) is not None


class _Writer:
    """The block as it is written anew.

    Attributes
    ----------
    block : Bindings
        What has been written.
    changes : bool
        Whether a convolution was found.
    """

    def __init__(self, graph: DataflowGraph) -> None:
        self.graph = graph
        self.block = Bindings()
        self.changes = False
        self._planes: dict[relax.Expr, relax.Var] = {}  # [N, C, H, W] -> the same, [N, C, H * W]

    def write(self, position: int) -> None:
        """Writes one binding."""
        binding, call = self.graph.bindings[position], self.graph.value(position)
        if is_pointwise(self.graph, call):
            self.changes = True
            rank = int(call.args[1].ty.ndim)
            weight = with_axes(self.graph, call.args[1], (rank - 2, rank - 1), self.block)
            product = relax.op.matmul(call.args[0], weight, call.attrs.out_dtype or None)
            self.block.bind(binding.var, product)
            return
        planes = None
        if runs_on_planes(call) and layouts_of(call) == CHANNELS_FIRST[op_name(call)]:
            self.changes = True
            weight = with_axes(self.graph, call.args[1], (0, 1), self.block)
            planes = relax.op.matmul(weight, self._flat(call.args[0]))
        elif op_name(call) in ELEMENTWISE:
            planes = self._elementwise(binding.var, call)
        if planes is None:
            self.block.bindings.append(binding)
            return
        tensor = known_tensor(binding.var)
        var = self.block.emit(planes, "planes")
        self._planes[binding.var] = var
        shape = relax_shape(tensor.shape, binding.var)
        self.block.bind(binding.var, relax.op.reshape(var, shape))

    def _flat(self, expr: relax.Expr) -> relax.Expr:
        """A tensor [N, C, H, W] as [N, C, H * W]."""
        if expr in self._planes:
            return self._planes[expr]
        tensor, call = region_tensor(expr), self.graph.definition(expr)
        assert tensor is not None
        batch, channels, *extents = tensor.shape
        pixels, rank = math.prod(extents), len(tensor.shape)
        last_first = (0, rank - 1, *range(1, rank - 1))
        if is_call(call, "relax.permute_dims") and view_axes(call) == last_first:
            shape = relax_shape((batch, pixels, channels), expr)
            lines = self.block.emit(relax.op.reshape(call.args[0], shape))
            return self.block.emit(relax.op.permute_dims(lines, [0, 2, 1]))
        planes = relax_shape((batch, channels, pixels), expr)
        return self.block.emit(relax.op.reshape(expr, planes))

    def _elementwise(self, var: relax.Var, call: relax.Call) -> relax.Expr | None:
        """An operator on the result of a product, or on what was made of it, as it is flat."""
        arity, result = ELEMENTWISE[op_name(call)], region_tensor(var)
        if result is None or not any(arg in self._planes for arg in call.args[:arity]):
            return None
        shapes = [self._flat_shape(arg, result.shape) for arg in call.args[:arity]]
        operands = [
            self._planes[arg] if arg in self._planes else self._reshaped(arg, shape)
            for arg, shape in zip(call.args[:arity], shapes, strict=True)
            if shape is not None
        ]
        if len(operands) < arity:
            return None
        return with_args(call, [*operands, *call.args[arity:]])

    def _flat_shape(self, expr: relax.Expr, result: tuple[int, ...]) -> tuple[int, ...] | None:
        """The shape in which an operand broadcasts to a flat result; None if there is none."""
        tensor = region_tensor(expr)
        if tensor is None:
            return None
        rank = len(result)
        shape = (1,) * (rank - len(tensor.shape)) + tensor.shape
        if all(extent == 1 for extent in shape[2:]):
            return (*shape[:2], 1)
        return (*shape[:2], math.prod(shape[2:])) if shape[2:] == result[2:] else None

    def _reshaped(self, expr: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
        if isinstance(expr, ir.GenericConst):
            flat = shape[1:] if shape[0] == 1 else shape
            array = expr.value.numpy()
            return relax.const(array.reshape(flat) if array.ndim else array, expr.ty.dtype)
        return self.block.emit(relax.op.reshape(expr, relax_shape(shape, expr)))


@dataclass(frozen=True)
class _Conv:
    """A convolution along one axis: x [N, C, L], weight [OC, C, taps]."""

    x: relax.Expr
    shape: tuple[int, int, int]
    weight: np.ndarray
    stride: int
    output: tuple[int, ...]


@rule("relax.nn.conv1d", "relax.nn.conv2d")
def conv1d_channels_last(_graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
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
    constant f32 weight, one group, no dilation, no padding along the axis. `sink_permutes` moves
    the permutations on.
    """
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


_AVERAGES = tuple(f"relax.nn.avg_pool{count}d" for count in (1, 2, 3))
_NOT_NEGATIVE = (
    *("relax.nn.relu", "relax.nn.relu6", "relax.sigmoid", "relax.abs", "relax.exp"),
    *("relax.sqrt", "relax.nn.softplus", "relax.nn.softmax"),
)


@rule(*CONVOLUTIONS, *MAX_POOLS, *_AVERAGES)
def fold_padding(graph: RuleGraph, _block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Folds padding in front of a convolution or a pool into its own.

    Before

        lv = R.nn.pad(x, [0, 0, 0, 0, 0, 1, 0, 1])      # NCHW: a line below, a column on the right
        gv = R.nn.conv2d(lv, w, strides=[2, 2])

    After

        gv = R.nn.conv2d(x, w, strides=[2, 2], padding=[0, 0, 1, 1])

    Exporters write such a pad where the padding is uneven (TensorFlow's SAME with a stride). It has
    to add zeros. A max pool ignores what it pads itself: the pad has to add -inf, or zeros to
    values that are not negative where every window has one of them. An average counts what was
    padded. Transposed convolutions and pools that round their sizes up keep their pad.
    """
    pad = graph.definition(call.args[0])
    if not is_call(pad, "relax.nn.pad"):
        return None
    pools = not is_convolution(call)
    layout = str(call.attrs.layout if pools else call.attrs.data_layout)
    added = _added(pad, layout)
    if added is None or not _is_neutral(graph, pad, call):
        return None
    own = [int(amount) for amount in call.attrs.padding]
    changed: dict[str, Any] = {"padding": [a + b for a, b in zip(own, added, strict=True)]}
    if pools and not _reaches_all(call, changed["padding"]):
        return None
    if is_call(call, *_AVERAGES):
        if any(own) and not bool(call.attrs.count_include_pad):
            return None
        changed["count_include_pad"] = True
    return with_args(call, [pad.args[0], *call.args[1:]], **changed)


def _added(pad: relax.Call, layout: str) -> list[int] | None:
    """What a pad adds before every axis of an image, then after; None if it does anything else."""
    attrs = pad.attrs
    amounts = [int(amount) for amount in attrs.pad_width]
    if str(attrs.pad_mode) != "constant" or len(amounts) != 2 * len(layout) or min(amounts) < 0:
        return None
    before, after = amounts[::2], amounts[1::2]
    image = [axis for axis, letter in enumerate(layout) if letter in "DHW"]
    others = set(range(len(layout))) - {*image}
    if any(before[axis] or after[axis] for axis in others):
        return None
    return [*(before[axis] for axis in image), *(after[axis] for axis in image)]


def _is_neutral(graph: DataflowGraph, pad: relax.Call, call: relax.Call) -> bool:
    """Whether what a pad adds is what an operator takes its own padding for."""
    value = float(pad.attrs.pad_value)
    if not is_call(call, *MAX_POOLS):
        return value == 0.0
    return value == -math.inf or (value == 0.0 and not _is_negative(graph, pad.args[0]))


def _is_negative(graph: DataflowGraph, expr: relax.Expr) -> bool:
    """Whether some element of a tensor may be below zero."""
    call = graph.definition(expr)
    if is_call(call, "relax.clip"):
        return not float(call.args[1].value) >= 0
    return op_name(call) not in _NOT_NEGATIVE


def _reaches_all(pool: relax.Call, padding: list[int]) -> bool:
    """Whether every window of a pool has an element that is not padded."""
    attrs = pool.attrs
    sizes = [int(size) for size in attrs.pool_size]
    whole = all(amount < size for amount, size in zip(padding, sizes * 2, strict=True))
    return whole and not bool(attrs.ceil_mode) and all(int(step) == 1 for step in attrs.dilation)
