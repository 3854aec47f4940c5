"""Transposed convolutions become ordinary ones of stride 1, whose results are interleaved."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import partial

from tvm import ir, relax

from relay_passes.ir.axes import widened_bytes
from relay_passes.ir.graph import (
    DataflowGraph,
    known_tensor,
    op_name,
    relax_shape,
    reshaped,
    static_tensor,
    variables,
)
from relay_passes.ir.quantization import read_dequantize
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import RuleGraph, rule
from relay_passes.ir.traits import MOVABLE, QUANTIZING, read_elementwise
from tir_schedules.core.size import is_dynamic

from .transposed_conv import LANES, OPERATORS, TransposedConv, read_conv_transpose, repeated


@dataclass(frozen=True)
class Interleaved:
    """Results of transposed convolutions before their phases are interleaved.

    This is a tensor [N, *outputs, C] in pieces. Its elements are channels of one tensor (with a
    level of factors for each transposed convolution), or one tensor for each phase. Operators that
    treat all elements alike, or all elements of a channel, run before the interleaving.

    Attributes
    ----------
    parts : tuple of relax.Expr
        [N, *counts, ...]: one tensor with all phases and channels in the last axis, or one tensor
        for each phase, in order with the last axis innermost; phases of the last axis may still
        share a tensor.
    factors : tuple of (tuple of int)
        For each level, the number of phases of each axis; one level if there are several parts.
    pieces : tuple of int
        For each axis, the number of parts.
    groups : int
        Groups of a part's channels, each with all phases.
    first, outputs : tuple of int
        For each axis, the number of surplus results at the beginning, and the wanted extent.
    channels : int
        C.
    last : bool
        Whether the interleaved tensor has its channels last.
    """

    parts: tuple[relax.Expr, ...]
    factors: tuple[tuple[int, ...], ...]
    pieces: tuple[int, ...]
    groups: int
    first: tuple[int, ...]
    outputs: tuple[int, ...]
    channels: int
    last: bool

    @property
    def plain(self) -> bool:
        """Whether it is one tensor in one group, with no surplus results."""
        whole = self._extents == self.outputs and not any(self.first)
        return len(self.parts) == 1 and self.groups == 1 and whole

    @property
    def _shape(self) -> tuple[int, ...]:
        return known_tensor(self.parts[0]).shape

    @property
    def _extents(self) -> tuple[int, ...]:
        """Results of each axis, including surplus ones."""
        counts = enumerate(self._shape[1 : 1 + len(self.outputs)])
        return tuple(n * math.prod(level[axis] for level in self.factors) for axis, n in counts)

    @property
    def phases(self) -> int:
        """Phases in the channels of a part, per group."""
        return self._shape[-1] // self.channels

    def whole(self, block: Bindings) -> relax.Expr:
        """The interleaved tensor; the last operator is not bound yet."""
        whole = self._from_phases(block) if len(self.parts) > 1 else self._from_channels(block)
        rank = len(self.outputs)
        if self._extents != self.outputs:
            ends = [size + start for start, size in zip(self.first, self.outputs, strict=True)]
            together = block.emit(whole)
            whole = relax.op.strided_slice(
                together,
                list(range(1, 1 + rank)),
                list(self.first),
                relax_shape(ends, together, *self.parts),
                assume_inbound=is_dynamic(ends),  # else TVM cannot infer dynamic extents
            )
        if self.last:
            return whole
        # [N, *extents, C] -> [N, C, *extents]
        return relax.op.permute_dims(block.emit(whole), [0, 1 + rank, *range(1, 1 + rank)])

    def _from_channels(self, block: Bindings) -> relax.Expr:
        """[N, Q, P, s, t, C] -> [N, Q, s, P, t, C] -> [N, Q * s, P * t, C]"""
        rank, levels = len(self.outputs), len(self.factors)
        whole = (self._shape[0], *self._extents, self.channels)
        outer = [level[axis] for level in self.factors for axis in range(rank - 1)]
        if self.groups == 1 and set(outer) <= {1}:
            return reshaped(self.parts[0], whole)
        grouped = () if self.groups == 1 else (self.groups,)
        own = self.channels // self.groups
        split = (*self._shape[: 1 + rank], *grouped, *itertools.chain(*self.factors), own)
        start = 1 + rank + len(grouped)
        order = [0]
        for axis in range(rank):
            order += [1 + axis, *(start + level * rank + axis for level in range(levels))]
        order += [*range(1 + rank, start), len(split) - 1]
        apart = block.emit(reshaped(self.parts[0], split))
        return reshaped(block.emit(relax.op.permute_dims(apart, order)), whole)

    def _from_phases(self, block: Bindings) -> relax.Expr:
        """From the last axis on: joins phases side by side, then merges them into their axis."""
        rank = len(self.outputs)
        batch, *counts = self._shape[: 1 + rank]
        parts, row = list(self.parts), self._shape[-1]
        # Static phases get an axis, by which a reader of the result recognises them. With dynamic
        # extents, joining rows side by side needs a simpler kernel.
        own = () if is_dynamic(counts) else (1,)
        for axis in reversed(range(rank)):
            size, at_axis = self.pieces[axis], -1 if axis == rank - 1 else -1 - len(own)
            joined = [
                block.emit(relax.op.concat(parts[at : at + size], axis=at_axis))
                if size > 1
                else part
                for at, part in list(enumerate(parts))[::size]
            ]
            row *= counts[axis] * size
            shape = (batch, *counts[:axis], *own, row)
            parts = [block.emit(reshaped(part, shape)) for part in joined]
        return reshaped(parts[0], (batch, *self._extents, self.channels))


_ELEMENTWISE = (*MOVABLE, *QUANTIZING)


@rule(*OPERATORS, *_ELEMENTWISE)
def decompose_conv_transpose(
    graph: RuleGraph, block: Bindings, call: relax.Call
) -> relax.Expr | None:
    """Transposed convolutions become ordinary ones of stride 1, whose results are interleaved.

    Before

        lv = R.nn.conv2d_transpose(x, const_w, strides=[2, 2])      # [1, 8, 5, 5] * [8, 3, 2, 2]
        lv1 = R.add(lv, const_b)                                    # [1, 3, 1, 1]
        gv = R.nn.relu(lv1)

    After

        lv = R.permute_dims(x, [0, 2, 3, 1])
        lv1 = R.nn.relu(R.add(R.matmul(lv, const_w0), const_b'))    # upper taps: [1, 5, 5, 2 * 3]
        lv2 = R.nn.relu(R.add(R.matmul(lv, const_w1), const_b'))    # lower ones
        lv3 = R.concat((R.reshape(lv1, [1, 5, 1, 30]), R.reshape(lv2, [1, 5, 1, 30])), axis=-2)
        lv4 = R.reshape(lv3, [1, 10, 10, 3])
        gv = R.permute_dims(lv4, [0, 3, 1, 2])

    `transposed_conv` computes which taps contribute to which results. There are two forms; the
    cheaper one is taken. Either each phase is a convolution (a product if windows do not overlap),
    and R.concat joins them along the channels; `concat_in_place` later removes the copy. Or all
    phases are channels of one convolution, and another pass interleaves its result. Elementwise
    operators that follow move before the interleaving, and so does a transposed convolution whose
    windows do not overlap. One, two or three axes, any groups, dilation, padding and output
    padding. Operators rearrange a weight that is no constant (`TransposedConv.weight`), and repeat
    per-channel numbers. Dequantised weights must have a constant zero point. Products of 8-bit
    integers, summed in int32, must have a constant weight; they are moved before they are widened,
    so that later passes recognise them. Other calls stay. A weight may get zeros between its taps;
    adding x times 0 changes nothing unless x is infinite or NaN.

    The pieces are noted for the operators that read the result. An operator that takes the pieces
    does not need the interleaved tensor, which vanishes if nothing else reads it.
    """
    conv = read_conv_transpose(graph, call)
    if conv is None:
        pieces = _elementwise(graph, block, call)
    else:
        pieces = None if _waits(graph, block, conv.x) else _convolved(graph, block, conv)
    if pieces is None:
        return None
    graph.note(block.var, pieces)
    return pieces.whole(block)


def _waits(graph: RuleGraph, block: Bindings, x: relax.Expr) -> bool:
    """Whether a value will be in pieces, because the rule applies to one of its sources."""
    found = [x]
    for each in found:  # the list grows
        value = graph.definition(each)
        if graph.known(each) is None and isinstance(value, relax.Call):
            if read_conv_transpose(graph, value) or _elementwise(graph, block, value):
                return True
            if op_name(value) in _ELEMENTWISE:
                found += [arg for arg in variables(value) if arg not in found]
    return False


def _elementwise(graph: RuleGraph, block: Bindings, call: relax.Call) -> Interleaved | None:
    """An elementwise operator on tensors in pieces; None if it cannot run on pieces."""
    known = {arg: graph.known(arg) for arg in call.args}
    found = read_elementwise(
        call, [arg for arg in known if known[arg] is not None], partial(_is_small, graph)
    )
    if found is None:
        return None
    first, *others = (known[expr] for expr in found.tensors)
    for other in others:  # their pieces must have equal places
        alike = replace(other, parts=()) == replace(first, parts=())
        if not alike or len(other.parts) != len(first.parts):
            return None
    numbers = [_per_channel(graph, block, expr, first) for expr in found.constants]
    constants = [each for each in numbers if each is not None]
    if len(constants) < len(numbers):
        return None
    parts = zip(first.parts, *(other.parts for other in others), strict=True)
    return replace(first, parts=tuple(block.emit(found.call(each, constants)) for each in parts))


def _is_small(graph: DataflowGraph, expr: relax.Expr) -> bool:
    """Whether a value is a constant, dequantised from constants, or at most one axis long."""
    quantized = read_dequantize(graph.definition(expr))
    if quantized is None:
        tensor = static_tensor(expr)
        vector = tensor is not None and tensor.size == max(tensor.shape, default=1)
        return isinstance(expr, ir.GenericConst) or vector
    quantization = quantized.quantization
    known = (quantized.data, quantization.scale, quantization.zero_point)
    return all(isinstance(each, ir.GenericConst) for each in known)


def _per_channel(
    graph: DataflowGraph, block: Bindings, expr: relax.Expr, pieces: Interleaved
) -> relax.Expr | None:
    """A constant for the parts of a tensor; None if it differs along another axis."""
    quantized = read_dequantize(graph.definition(expr))
    if quantized is not None:
        scale, zero_point = quantized.quantization.scale, quantized.quantization.zero_point
        data = _per_channel(graph, block, quantized.data, pieces)
        sizes = {known_tensor(each).size for each in (scale, zero_point)}
        if data is None or not sizes <= {1, pieces.channels}:
            return None
        scale = repeated(block, scale, pieces.groups, pieces.phases)
        zero_point = repeated(block, zero_point, pieces.groups, pieces.phases)
        return block.emit(relax.op.dequantize(data, scale, zero_point, -1, quantized.dtype))
    tensor, rank = known_tensor(expr), len(pieces.outputs) + 2
    if tensor.size == 1 and len(tensor.shape) <= rank:
        if isinstance(expr, ir.GenericConst):
            return relax.const(expr.value.numpy().reshape(()), str(expr.ty.dtype))
        return block.emit(relax.op.reshape(expr, ()))
    wanted = [1] * rank
    wanted[rank - 1 if pieces.last else 1] = pieces.channels
    if [*(1 for _ in range(rank - len(tensor.shape))), *tensor.shape] != wanted:
        return None
    return repeated(block, expr, pieces.groups, pieces.phases)


def _convolved(graph: RuleGraph, block: Bindings, conv: TransposedConv) -> Interleaved:
    """A transposed convolution as pieces to interleave."""
    pieces = graph.known(conv.x)
    if conv.product and pieces is not None and pieces.plain:
        # Multiplies all phases of the operand by one row if they have few channels.
        few = pieces.phases * math.prod(conv.strides) * conv.channels <= LANES
        repeats = pieces.phases if conv.is_constant and few else 1
        rows = pieces.parts[0]
        if repeats == 1:  # a row of C channels for each phase, [N, *counts, phases, C]
            shape = (*known_tensor(rows).shape[:-1], pieces.phases, pieces.channels)
            rows = block.emit(reshaped(rows, shape))
        matrix = conv.weight(block, conv.together, matrix=True, repeats=repeats)
        return replace(
            pieces,
            parts=(block.emit(relax.op.matmul(rows, matrix)),),
            factors=(*pieces.factors, conv.strides),
            outputs=conv.outputs,
            channels=conv.channels,
            last=conv.last,
        )
    x = conv.x if conv.last else _channels_last(graph, block, conv.x)
    form = conv.all_together() if _feeds_product(graph, block.var) else conv.form()
    return Interleaved(
        parts=tuple(block.emit(conv.part(block, x, windows)) for windows in form.parts),
        factors=(conv.strides,),
        pieces=form.pieces,
        groups=conv.groups if len(form.parts) == 1 else 1,
        first=form.first,
        outputs=conv.outputs,
        channels=conv.channels,
        last=conv.last,
    )


def _feeds_product(graph: DataflowGraph, var: relax.Var) -> bool:
    """Whether the only reader of a value, perhaps after elementwise operators, is a transposed
    convolution that is a product: it takes the phases together."""
    while len(users := graph.users_of(var)) == 1:
        value = graph.value(users[0])
        conv = read_conv_transpose(graph, value)
        if conv is not None:
            return conv.product
        if read_elementwise(value, {var}, partial(_is_small, graph)) is None:
            return False
        var = graph.bindings[users[0]].var
    return False


def _channels_last(graph: DataflowGraph, block: Bindings, x: relax.Expr) -> relax.Expr:
    """[N, C, *extents] -> [N, *extents, C]"""
    rank = len(x.ty.shape.values)
    order = [0, *range(2, rank), 1]
    narrow = widened_bytes(graph, x)
    if narrow is None:
        return block.emit(relax.op.permute_dims(x, order))
    source, zero_point = narrow
    wide = block.emit(relax.op.astype(block.emit(relax.op.permute_dims(source, order)), "int32"))
    return wide if zero_point is None else block.emit(relax.op.subtract(wide, zero_point))
