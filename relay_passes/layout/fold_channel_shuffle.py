"""Folds channel shuffles into the weights of a convolution before or after them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from tvm import ir, relax

from relay_passes.ir import traits
from relay_passes.ir.axes import reduced_axes
from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import DataflowGraph, op_name, region_tensor, reshaped, static_tensor
from relay_passes.ir.quantization import read_dequantize
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import RuleGraph, rule
from relay_passes.ir.strided_view import StridedView, match_regroup
from tir_schedules.core.size import is_dynamic


@rule("relax.reshape")
def fold_channel_shuffle(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """A shuffle vanishes if all operators that it moves past can work in its order of channels.

    Before

        lv = R.reshape(x, [1, 14, 14, 4, 68])
        lv1 = R.permute_dims(lv, [0, 1, 2, 4, 3])
        lv2 = R.reshape(lv1, [1, 14, 14, 272])
        lv3 = R.nn.conv2d(lv2, const_w, padding=[1, 1, 1, 1], groups=272)          # depthwise
        lv4 = R.nn.conv2d(lv3, const_v, groups=4)                                  # [1, 1, 68, 272]

    After

        lv3 = R.nn.conv2d(x, const_w', padding=[1, 1, 1, 1], groups=272)
        lv4 = R.reshape(lv3, [1, 14, 14 * 4, 68])
        lv5 = R.nn.conv2d(lv4, const_v', strides=[1, 4], groups=4)                 # [1, 4, 17, 272]

    A shuffle moves past operators that treat every channel separately; their constants are
    reordered. It ends at a convolution or product that sums over all channels: going down it
    reorders the weight's input channels, going up the output channels. The weight of a grouped
    convolution cannot be reordered across groups. But if each group has a part of every factor of
    the shuffle, the factors become pixels and the parts become taps along a row. Channels are last:
    the rule must run after `propagate_layout`.
    """
    shuffle = match_shuffle(graph, graph.position[block.var])
    if shuffle is None or not isinstance(block.var, relax.DataflowVar):
        return None
    for succeeds in (_Move.up, _Move.down):
        move = _Move(graph, block, shuffle)
        if succeeds(move):
            for position, value in move.changed.items():
                block.bind(graph.bindings[position].var, value)
            return shuffle.source
    return None


@dataclass
class _Move:
    """Moves a shuffle past other operators.

    Attributes
    ----------
    graph, block, shuffle
        The block, its new bindings, and the shuffle.
    changed : dict
        Position -> the new value there, once the shuffle's source replaces its result.
    """

    graph: RuleGraph
    block: Bindings
    shuffle: Shuffle
    changed: dict[int, relax.Call] = field(default_factory=dict)

    def up(self) -> bool:
        """Moves the shuffle up; returns whether it ends in a convolution or product."""
        index, steps, expr = self.shuffle.permutation, self.shuffle.steps, self.shuffle.source
        readers = [self.graph.position[step] for step in steps]
        # Another reader of an intermediate value would read channels that are already moved.
        if [self.graph.only_user(step) for step in steps[:-1]] != readers[1:]:
            return False
        reader = readers[0]
        while True:
            position = self.graph.position.get(expr)
            if position is None or self.graph.only_user(expr) != reader:
                return False
            call = self.graph.value(position)
            if sums_all_channels(call):
                return self.reweighted(position, -1, index)
            operands = [arg for arg in getattr(call, "args", ()) if isinstance(arg, relax.Var)]
            varying = [arg for arg in operands if self.taken(arg, -1, index) is None]
            if len(varying) != 1 or not self.passed(position, index, varying):
                return False
            reader, expr = position, varying[0]

    def down(self) -> bool:
        """Moves the shuffle down to all readers; returns whether it ends in products everywhere."""
        index = np.argsort(self.shuffle.permutation)
        moved: list[relax.Expr] = [self.shuffle.steps[-1]]
        for each in moved:  # the list grows; a user of two moved values is tried for each of them
            for user in self.graph.users_of(each):
                if user in self.changed or self._ends(user, index, moved):
                    continue
                if self.passed(user, index, moved):
                    moved.append(self.graph.bindings[user].var)
        readers = {user for each in moved for user in self.graph.users_of(each)}
        return readers <= self.changed.keys()

    def passed(self, position: int, index: np.ndarray, moved: Sequence[relax.Expr]) -> bool:
        """Plans an operator that treats every channel separately, with its constants reordered by
        `index`; returns whether it is such an operator."""
        var, call = self.graph.bindings[position].var, self.graph.value(position)
        name, result, channels = op_name(call), region_tensor(var), len(index)
        if result is None or not result.shape or result.shape[-1] != channels:
            return False
        if not isinstance(var, relax.DataflowVar):
            return False
        if name in traits.ELEMENTWISE:
            count = traits.ELEMENTWISE[name]
        elif channels_last_conv(call) and int(call.attrs.groups) == channels:
            weight = static_tensor(call.args[1])
            if weight is None or weight.shape[-2:] != (1, channels):
                return False
            count = 2
        elif by_channel(call, channels):
            count = 1
        else:
            return False
        operands = [self._operand(arg, index, moved) for arg in call.args[:count]]
        known = [each for each in operands if each is not None]
        if len(known) == len(operands):
            self.changed[position] = with_args(call, [*known, *call.args[count:]], call.ty)
        return len(known) == len(operands)

    def reweighted(self, position: int, axis: int, index: np.ndarray) -> bool:
        """Plans a product with its weight reordered; returns whether that is possible."""
        call = self.graph.value(position)
        weight = self.taken(call.args[1], axis, index)
        if weight is not None:
            self.changed[position] = with_args(call, [call.args[0], weight], call.ty)
        return weight is not None

    def _operand(
        self, expr: relax.Expr, index: np.ndarray, moved: Sequence[relax.Expr]
    ) -> relax.Expr | None:
        """An operand with its channels reordered; None if it cannot be reordered."""
        tensor = static_tensor(expr)
        if expr in moved:
            return expr
        if tensor is None:
            return None
        if not tensor.shape or (tensor.shape[-1] == 1 and isinstance(expr, ir.GenericConst)):
            return expr
        return self.taken(expr, -1, index)

    def _ends(self, position: int, index: np.ndarray, moved: Sequence[relax.Expr]) -> bool:
        """Plans an operator in which the shuffle ends; returns whether it can end there."""
        call = self.graph.value(position)
        if op_name(call) not in (*traits.CONVOLUTIONS, "relax.matmul") or call.args[0] not in moved:
            return False
        if sums_all_channels(call):
            return self.reweighted(position, -2, index)
        return self._grouped(position, call)

    def _grouped(self, position: int, call: relax.Call) -> bool:
        """Plans a grouped convolution of one column whose groups have a part of every factor."""
        weight, x = static_tensor(call.args[1]), region_tensor(call.args[0])
        if not channels_last_conv(call) or weight is None or x is None:
            return False
        if self.shuffle.order != (1, 0) or not isinstance(call.args[1], ir.GenericConst):
            return False
        rank = len(x.shape) - 2
        attrs, (parts, run) = call.attrs, self.shuffle.factors
        padding = [int(each) for each in attrs.padding]
        per_group = weight.shape[-2]
        if weight.shape[rank - 1] != 1 or padding[rank - 1] or padding[-1] or per_group % parts:
            return False
        array = call.args[1].value.numpy()
        split = (*weight.shape[: rank - 1], per_group // parts, parts, weight.shape[-1])
        taps = np.ascontiguousarray(np.moveaxis(array.reshape(split), -2, -3))
        strides = [int(each) for each in attrs.strides]
        strides[-1] *= parts
        dilation = [*map(int, attrs.dilation[:-1]), 1]
        pixels = self.block.emit(
            reshaped(call.args[0], (*x.shape[:rank], x.shape[rank] * parts, run))
        )
        taken = [pixels, relax.const(taps, weight.dtype)]
        self.changed[position] = with_args(call, taken, call.ty, strides=strides, dilation=dilation)
        return True

    def taken(self, expr: relax.Expr, axis: int, index: np.ndarray) -> relax.Expr | None:
        """A constant, perhaps dequantised, with an axis reordered; None for any other value."""
        tensor = static_tensor(expr)
        if tensor is None or len(tensor.shape) < -axis or tensor.shape[axis] != len(index):
            return None
        if isinstance(expr, ir.GenericConst):
            array = np.ascontiguousarray(np.take(expr.value.numpy(), index, axis))
            return relax.const(array, tensor.dtype)
        call = self.graph.definition(expr)
        read = None if call is None else read_dequantize(call)
        if not isinstance(call, relax.Call) or read is None:
            return None
        along = read.quantization.axis == len(tensor.shape) + axis
        data, *numbers = call.args
        args = [self.taken(data, axis, index)]
        args += [
            self.taken(arg, -1, index) if along and int(arg.ty.ndim) == 1 else arg
            for arg in numbers
        ]
        known = [arg for arg in args if arg is not None]
        return self.block.emit(with_args(call, known)) if len(known) == len(args) else None


def channels_last_conv(call: relax.Expr) -> bool:
    """Whether an expression is a convolution with channels last in all its tensors."""
    if op_name(call) not in traits.CONVOLUTIONS:
        return False
    attrs = call.attrs
    data, kernel = str(attrs.data_layout), str(attrs.kernel_layout)
    return data.endswith("C") and kernel.endswith("IO") and str(attrs.out_layout) == data


def sums_all_channels(call: relax.Expr) -> bool:
    """Whether an expression is a convolution of one group, or a product with a matrix."""
    if op_name(call) == "relax.matmul":
        return int(call.args[1].ty.ndim) == 2
    return channels_last_conv(call) and int(call.attrs.groups) == 1


def by_channel(call: relax.Expr, channels: int) -> bool:
    """Whether an expression, such as a pool, treats channels separately."""
    name = op_name(call)
    if name in (*traits.POOLS, *traits.RESIZES):
        return str(call.attrs.layout).endswith("C")
    tensor = region_tensor(call.args[0]) if name else None
    if tensor is None or not isinstance(call, relax.Call):
        return False
    rank = len(tensor.shape)
    if name in traits.REDUCTIONS:
        return rank - 1 not in reduced_axes(call)
    if name in traits.RESHAPES:
        return tensor.shape[-1:] == (channels,)
    if name == "relax.nn.pad":
        return not any(int(width) for width in call.attrs.pad_width[-2:])
    return name in traits.QUANTIZING and not any(int(arg.ty.ndim) for arg in call.args[1:])


# Channel shuffles: a permutation of the last axis, written as three operators.
#
# lv = R.reshape(x, [N, H, W, 4, 28])                 # x: [N, H, W, 112]
# lv1 = R.permute_dims(lv, [0, 1, 2, 4, 3])
# lv2 = R.reshape(lv1, [N, H, W, 112])                # channel 4 * i + j of it is 28 * j + i of x


@dataclass(frozen=True)
class Shuffle:
    """A permutation of the last axis.

    Attributes
    ----------
    source : relax.Expr
        The tensor that is permuted.
    factors : tuple of int
        The extents into which its channels are split.
    order : tuple of int
        For each factor of the result, the number of the source's factor.
    steps : tuple of relax.Expr
        The results of the three operators.
    """

    source: relax.Expr
    factors: tuple[int, ...]
    order: tuple[int, ...]
    steps: tuple[relax.Expr, ...]

    @property
    def permutation(self) -> np.ndarray:
        """The channel of the source for each channel of the result."""
        channels = np.arange(int(np.prod(self.factors))).reshape(self.factors)
        return channels.transpose(self.order).reshape(-1)


def match_shuffle(graph: DataflowGraph, position: int) -> Shuffle | None:
    """The shuffle whose final operator is at a position; None if there is none."""
    regroup = match_regroup(graph, position)
    if regroup is None:
        return None
    whole, result = region_tensor(regroup.source), region_tensor(graph.bindings[position].var)
    if whole is None or result is None or whole.shape != result.shape or not whole.shape:
        return None
    if is_dynamic(whole.shape[-1:]):
        return None
    axes = range(len(whole.shape))
    view, plain = regroup.between(axes, axes), StridedView.contiguous(whole.shape)
    if view is None or view.dims[:-1] != plain.dims[:-1] or len(view.dims[-1]) < 2:
        return None
    parts = sorted(view.dims[-1], key=lambda digit: digit[1], reverse=True)
    order = tuple(map(parts.index, view.dims[-1]))
    return Shuffle(regroup.source, tuple(extent for extent, _ in parts), order, regroup.steps)
