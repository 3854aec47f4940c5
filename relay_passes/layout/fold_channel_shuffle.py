"""Folds channel shuffles into the weights of a convolution before or after them.

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

A shuffle moves past operators that treat every channel by itself; their constants are reordered. It
ends at a convolution or product that sums over all channels: going down it reorders the weight's
input channels, going up the output channels. The weight of a grouped convolution cannot be
reordered across groups. But if each group has a part of every factor of the shuffle, the factors
become pixels and the parts become taps along a row. Channels are last; this runs after
`propagate_layout`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from tvm import ir, relax

from relay_passes.ir import traits
from relay_passes.ir.axes import reduced_axes
from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import DataflowGraph, op_name, region_tensor, relax_shape, static_tensor
from relay_passes.ir.quantization import read_dequantize
from relay_passes.ir.rewrite import Bindings, block_rewrite
from relay_passes.ir.strided_view import StridedView, match_regroup
from tir_schedules.core.size import is_open

_Taken = Callable[[Bindings], relax.Expr]


@block_rewrite
def fold_channel_shuffle(graph: DataflowGraph) -> list[relax.Binding] | None:
    """The pass; it needs A-normal form."""
    changed = False
    while rewrites := _apart(graph):
        graph, changed = DataflowGraph(relax.DataflowBlock(_written(graph, rewrites))), True
    return list(graph.bindings) if changed else None


def _apart(graph: DataflowGraph) -> list[_Rewrite]:
    """Shuffles that can be moved, no two of them past the same operator."""
    found: list[_Rewrite] = []
    taken: set[int] = set()
    for position, binding in enumerate(graph.bindings):
        shuffle = match_shuffle(graph, position)
        if shuffle is not None and isinstance(binding.var, relax.DataflowVar):
            tried = (_Upward(graph, position, shuffle), _Downward(graph, position, shuffle))
            rewrite = next((each for each in tried if each.succeeds()), None)
            if rewrite is not None and taken.isdisjoint(rewrite.members):
                found.append(rewrite)
                taken |= rewrite.members
    return found


def _written(graph: DataflowGraph, rewrites: list[_Rewrite]) -> list[relax.Binding]:
    """The block with everything changed that was planned."""
    block = Bindings()
    unused = {position for each in rewrites for position in each.unused()}
    changed = {position: value for each in rewrites for position, value in each.changed.items()}
    for position, binding in enumerate(graph.bindings):
        if position in unused:
            continue
        if position in changed:
            block.bind(binding.var, changed[position](block))
        else:
            block.bindings.append(binding)
    return block.bindings


@dataclass
class _Rewrite:
    """A shuffle moved past other operators.

    Attributes
    ----------
    graph, position, shuffle
        The block, where the shuffle ends, and what it is.
    changed : dict
        Position -> the expression to bind there instead.
    """

    graph: DataflowGraph
    position: int
    shuffle: Shuffle
    changed: dict[int, _Taken] = field(default_factory=dict)

    @property
    def var(self) -> relax.Var:
        """The shuffled tensor."""
        return self.graph.bindings[self.position].var

    @property
    def channels(self) -> int:
        """How many channels it has."""
        return int(np.prod(self.shuffle.factors))

    @property
    def members(self) -> set[int]:
        """Positions of the shuffle, and of what it is moved past."""
        return {self.position, *self.shuffle.positions, *self.changed}

    def unused(self) -> set[int]:
        """Positions of the shuffle that nothing else needs."""
        unused = {self.position}
        for position in reversed(self.shuffle.positions):
            if not self.graph.escapes(self.graph.bindings[position].var, unused):
                unused.add(position)
        return unused

    def passed(self, position: int, index: np.ndarray, moved: set[relax.Expr]) -> bool:
        """Plans an operator that treats every channel by itself, its constants reordered by `index`
        and reading `moved`; whether it is one."""
        call, name = self.graph.value(position), op_name(self.graph.value(position))
        result = region_tensor(self.graph.bindings[position].var)
        if result is None or not result.shape or result.shape[-1] != self.channels:
            return False
        if not isinstance(self.graph.bindings[position].var, relax.DataflowVar):
            return False
        rest: list[relax.Expr] = []
        if name in traits.ELEMENTWISE:
            operands, rest = (
                call.args[: traits.ELEMENTWISE[name]],
                list(call.args[traits.ELEMENTWISE[name] :]),
            )
        elif channels_last_conv(call) and int(call.attrs.groups) == self.channels:
            weight = static_tensor(call.args[1])
            if weight is None or weight.shape[-2:] != (1, self.channels):
                return False
            operands = call.args
        elif self._by_channel(call):
            operands, rest = call.args[:1], list(call.args[1:])
        else:
            return False
        taken = [self._operand(arg, index, moved) for arg in operands]
        if any(each is None for each in taken):
            return False
        self.changed[position] = lambda block: with_args(
            call, [*(each(block) for each in taken if each is not None), *rest], call.ty
        )
        return True

    def reweighted(self, position: int, axis: int, index: np.ndarray) -> bool:
        """Plans a product with its weight reordered along an axis; whether it is a constant."""
        call = self.graph.value(position)
        weight = take(self.graph, call.args[1], axis, index)
        if weight is not None:
            self.changed[position] = lambda block: with_args(
                call, [self.source_of(call.args[0]), weight(block)], call.ty
            )
        return weight is not None

    def source_of(self, expr: relax.Expr) -> relax.Expr:
        """What stands for a value from now on."""
        return self.shuffle.source if expr.same_as(self.var) else expr

    def _operand(
        self, expr: relax.Expr, index: np.ndarray, moved: set[relax.Expr]
    ) -> _Taken | None:
        """An operand with its channels reordered; None if that cannot be."""
        if expr in moved:
            return lambda _: self.source_of(expr)
        tensor = static_tensor(expr)
        if tensor is None:
            return None
        if not tensor.shape or (tensor.shape[-1] == 1 and isinstance(expr, ir.GenericConst)):
            return lambda _: expr
        return take(self.graph, expr, -1, index)

    def _by_channel(self, call: relax.Expr) -> bool:
        """Pools and the like, and sums over pixels."""
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
            return tensor.shape[-1:] == (self.channels,)
        if name == "relax.nn.pad":
            return not any(int(width) for width in call.attrs.pad_width[-2:])
        return name in traits.QUANTIZING and not any(int(arg.ty.ndim) for arg in call.args[1:])


class _Upward(_Rewrite):
    """The shuffle moved up, to what computes its source."""

    def succeeds(self) -> bool:
        """Whether it ends in a convolution or product; everything is planned then."""
        index, expr = self.shuffle.permutation, self.shuffle.source
        reader = self.shuffle.positions[0]
        # Another reader of a value on the way would find the source's channels moved already.
        members = {*self.shuffle.positions, self.position}
        between = (self.graph.bindings[position].var for position in self.shuffle.positions)
        if any(self.graph.escapes(var, members) for var in between):
            return False
        while True:
            position = self.graph.position.get(expr) if isinstance(expr, relax.Var) else None
            if position is None or not isinstance(expr, relax.DataflowVar):
                return False
            if self.graph.users[expr] != [reader]:
                return False
            call = self.graph.value(position)
            if sums_all_channels(call):
                self.changed[self.position] = lambda _: self.shuffle.source
                return self.reweighted(position, -1, index)
            operands = [arg for arg in getattr(call, "args", ()) if isinstance(arg, relax.Var)]
            varying = [arg for arg in operands if take(self.graph, arg, -1, index) is None]
            if len(varying) != 1 or not self.passed(position, index, set(varying)):
                return False
            reader, expr = position, varying[0]

    def unused(self) -> set[int]:
        """The same without the last, whose variable stands for the source now."""
        return super().unused() - {self.position}


class _Downward(_Rewrite):
    """The shuffle moved down, to all that reads its result."""

    def succeeds(self) -> bool:
        """Whether it ends in convolutions and products only; everything is planned then."""
        index = np.argsort(self.shuffle.permutation)
        moved: set[relax.Expr] = {self.var}
        waiting = list(self.graph.users.get(self.var, ()))
        heapq.heapify(waiting)
        while waiting:
            position = heapq.heappop(waiting)
            if position in self.changed or self._ends(position, index, moved):
                continue
            if not self.passed(position, index, moved):
                return False
            var = self.graph.bindings[position].var
            moved.add(var)
            for user in self.graph.users.get(var, ()):
                heapq.heappush(waiting, user)
        return bool(self.changed)

    def _ends(self, position: int, index: np.ndarray, moved: set[relax.Expr]) -> bool:
        """Plans an operator that takes the shuffle in; whether it does."""
        call = self.graph.value(position)
        if op_name(call) not in (*traits.CONVOLUTIONS, "relax.matmul") or call.args[0] not in moved:
            return False
        if sums_all_channels(call):
            return self.reweighted(position, -2, index)
        return self._grouped(position, call)

    def _grouped(self, position: int, call: relax.Call) -> bool:
        """A grouped convolution of one column, each group of which has a part of every factor."""
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
        shape = (*x.shape[:rank], x.shape[rank] * parts, run)

        def build(block: Bindings) -> relax.Expr:
            source = self.source_of(call.args[0])
            pixels = block.emit(relax.op.reshape(source, relax_shape(shape, call.args[0])))
            taken = [pixels, relax.const(taps, weight.dtype)]
            return with_args(call, taken, call.ty, strides=strides, dilation=dilation)

        self.changed[position] = build
        return True


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


def take(graph: DataflowGraph, expr: relax.Expr, axis: int, index: np.ndarray) -> _Taken | None:
    """A constant, dequantised or not, with an axis reordered; None if it is none."""
    tensor = static_tensor(expr)
    if tensor is None or len(tensor.shape) < -axis or tensor.shape[axis] != len(index):
        return None
    if isinstance(expr, ir.GenericConst):
        array = np.ascontiguousarray(np.take(expr.value.numpy(), index, axis))
        return lambda _: relax.const(array, tensor.dtype)
    call = graph.definition(expr)
    read = None if call is None else read_dequantize(call)
    if not isinstance(call, relax.Call) or read is None:
        return None
    along = read.quantization.axis == len(tensor.shape) + axis
    args = [
        take(graph, arg, axis if i == 0 else -1, index)
        if i == 0 or (along and int(arg.ty.ndim) == 1)
        else (lambda _, kept=arg: kept)
        for i, arg in enumerate(call.args)
    ]
    if any(arg is None for arg in args):
        return None
    return lambda block: block.emit(
        with_args(call, [arg(block) for arg in args if arg is not None])
    )


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
        What is permuted.
    factors : tuple of int
        What its channels are split into.
    order : tuple of int
        The factor for each factor of the result.
    positions : tuple of int
        Bindings between the source and the result.
    """

    source: relax.Expr
    factors: tuple[int, ...]
    order: tuple[int, ...]
    positions: tuple[int, ...]

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
    if is_open(whole.shape[-1:]):
        return None
    axes = range(len(whole.shape))
    view, plain = regroup.between(axes, axes), StridedView.contiguous(whole.shape)
    if view is None or view.dims[:-1] != plain.dims[:-1] or len(view.dims[-1]) < 2:
        return None
    parts = sorted(view.dims[-1], key=lambda digit: digit[1], reverse=True)
    order = tuple(map(parts.index, view.dims[-1]))
    return Shuffle(regroup.source, tuple(extent for extent, _ in parts), order, regroup.positions)
