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

`transposed_conv` says which taps contribute to which results. There are two forms;
it takes the cheaper one. Either each phase is a convolution (a product if windows do
not overlap), and R.concat joins them along the channels; `concat_in_place` later removes the copy.
Or all phases are channels of one convolution, and another pass interleaves its result. Elementwise
operators that follow move before the interleaving, and so does a transposed convolution whose
windows do not overlap. One, two or three axes, any groups, dilation, padding and output padding. A
weight that is no constant is put together by operators (`transposed_weight`), and numbers for each
channel are repeated by them. Weights that are dequantised have a constant zero point. Products of
8-bit integers, summed in int32, have a constant weight; they are moved before they are widened, so
that they are found. Other calls stay. A weight may get zeros between its taps; adding x times 0
changes nothing unless x is infinite or NaN.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from tvm import ir, relax

from relay_passes.ir.axes import widened_bytes
from relay_passes.ir.graph import (
    DataflowGraph,
    known_tensor,
    relax_shape,
    reshaped,
    static_tensor,
    variables,
)
from relay_passes.ir.quantization import read_dequantize
from relay_passes.ir.rewrite import Bindings, block_rewrite
from relay_passes.ir.traits import read_elementwise
from tir_schedules.core.size import is_open

from .transposed_conv import LANES, OPERATORS, TransposedConv, Window, read_conv_transpose, repeated


@dataclass(frozen=True)
class Interleaved:
    """Results of transposed convolutions before their phases are interleaved.

    A value stands for a tensor [N, *outputs, C] that is not interleaved yet. Its elements are
    channels of one tensor (with a level of factors for each transposed convolution), or one tensor
    for each phase. Operators that treat all elements alike, or all elements of a channel, run
    before the interleaving.

    A tensor in pieces.

    Attributes
    ----------
    parts : tuple of relax.Expr
        [N, *counts, ...]: one tensor with all phases and channels behind, or one for each phase
        but those of the last axis that are still together, the last axis' next to each other.
    factors : tuple of (tuple of int)
        For each level, how many phases each axis has; a single level if there are several parts.
    pieces : tuple of int
        For each axis, how many parts it has.
    groups : int
        Groups that the channels of a part are in, each with all phases.
    first, outputs : tuple of int
        For each axis, how many results there are too many at the beginning, and the extent.
    channels : int
        C.
    """

    parts: tuple[relax.Expr, ...]
    factors: tuple[tuple[int, ...], ...]
    pieces: tuple[int, ...]
    groups: int
    first: tuple[int, ...]
    outputs: tuple[int, ...]
    channels: int

    @property
    def plain(self) -> bool:
        """Whether it is one tensor, nothing of which is cut off, in one group."""
        whole = self._extents == self.outputs and not any(self.first)
        return len(self.parts) == 1 and self.groups == 1 and whole

    @property
    def _shape(self) -> tuple[int, ...]:
        return known_tensor(self.parts[0]).shape

    @property
    def _extents(self) -> tuple[int, ...]:
        """How many results each axis has before some are cut off."""
        counts = enumerate(self._shape[1 : 1 + len(self.outputs)])
        return tuple(n * math.prod(level[axis] for level in self.factors) for axis, n in counts)

    @property
    def phases(self) -> int:
        """Of each group, among the channels of a part."""
        return self._shape[-1] // self.channels

    def whole(self, block: Bindings) -> relax.Expr:
        """[N, *outputs, C]; the last operator is not bound yet."""
        together = self._from_phases(block) if len(self.parts) > 1 else self._from_channels(block)
        if self._extents == self.outputs:
            return together
        rank = len(self.outputs)
        ends = [size + start for start, size in zip(self.first, self.outputs, strict=True)]
        whole = block.emit(together)
        return relax.op.strided_slice(
            whole,
            list(range(1, 1 + rank)),
            list(self.first),
            relax_shape(ends, whole, *self.parts),
            assume_inbound=is_open(ends),  # else TVM does not see what is left of open extents
        )

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
        """Axis by axis from the last one: phases side by side, then as more of their axis."""
        rank = len(self.outputs)
        batch, *counts = self._shape[: 1 + rank]
        parts, row = list(self.parts), self._shape[-1]
        # Phases of known extents have an axis: by it a reader of the result knows them. Of open
        # extents, rows side by side are joined by a simpler kernel.
        own = () if is_open(counts) else (1,)
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


@block_rewrite
def decompose_conv_transpose(graph: DataflowGraph) -> list[relax.Binding] | None:
    """The pass; it needs A-normal form."""
    return _Block(graph).rewritten()


class _Block(Bindings):
    """A block under construction, in which interleaving waits until somebody needs it.

    Attributes
    ----------
    graph : DataflowGraph
        The original block.
    waiting : dict
        Variables of the original block -> pieces, and whether their channels are to come last.
    """

    def __init__(self, graph: DataflowGraph) -> None:
        super().__init__()
        self.graph = graph
        self.waiting: dict[relax.Expr, tuple[Interleaved, bool]] = {}
        self._bound: set[relax.Expr] = set()

    def rewritten(self) -> list[relax.Binding] | None:
        """The new bindings; None if nothing waits."""
        for binding in self.graph.bindings:
            self.at(binding.var)
            conv = read_conv_transpose(self.graph, binding.value)
            made = self.elementwise(binding.value)
            if conv is not None:
                made = self.convolved(conv, binding.var), conv.last
            if made is None:
                for var in variables(binding.value):
                    self.need(var)
                self.bindings.append(binding)
                continue
            self.waiting[binding.var] = made
            if not isinstance(binding.var, relax.DataflowVar):
                self.need(binding.var)
        return self.bindings if self.waiting else None

    def need(self, var: relax.Expr) -> None:
        """Binds an expression, its pieces interleaved, if it is a variable that waits."""
        if not isinstance(var, relax.Var) or var not in self.waiting or var in self._bound:
            return
        self._bound.add(var)
        self.at(var)
        pieces, last = self.waiting[var]
        whole = pieces.whole(self)
        if not last:  # [N, *extents, C] -> [N, C, *extents]
            rank = len(pieces.outputs)
            whole = relax.op.permute_dims(self.emit(whole), [0, 1 + rank, *range(1, 1 + rank)])
        self.bind(var, whole)

    def elementwise(self, value: relax.Expr) -> tuple[Interleaved, bool] | None:
        """An operator on tensors that wait, element by element."""
        found = read_elementwise(value, self.waiting, self.is_small)
        if found is None:
            return None
        first, last = self.waiting[found.tensors[0]]
        others = [self.waiting[expr] for expr in found.tensors[1:]]
        for other, where in others:  # their elements have to lie at the same places
            alike = replace(other, parts=()) == replace(first, parts=())
            if not alike or len(other.parts) != len(first.parts) or last != where:
                return None
        constants: list[relax.Expr] = []
        for expr in found.constants:
            constant = self.per_channel(expr, first, last)
            if constant is None:
                return None
            constants.append(constant)
        parts = zip(first.parts, *(other.parts for other, _ in others), strict=True)
        made = tuple(self.emit(found.call(each, constants)) for each in parts)
        return replace(first, parts=made), last

    def is_small(self, expr: relax.Expr) -> bool:
        """Whether a value is a constant, dequantised from one, or at most one axis long."""
        quantized = read_dequantize(self.graph.definition(expr))
        if quantized is None:
            tensor = static_tensor(expr)
            vector = tensor is not None and tensor.size == max(tensor.shape, default=1)
            return isinstance(expr, ir.GenericConst) or vector
        quantization = quantized.quantization
        known = (quantized.data, quantization.scale, quantization.zero_point)
        return all(isinstance(each, ir.GenericConst) for each in known)

    def per_channel(self, expr: relax.Expr, pieces: Interleaved, last: bool) -> relax.Expr | None:
        """A constant for the parts of a tensor; None if it differs along another axis."""
        quantized = read_dequantize(self.graph.definition(expr))
        if quantized is not None:
            scale, zero_point = quantized.quantization.scale, quantized.quantization.zero_point
            data = self.per_channel(quantized.data, pieces, last)
            sizes = {known_tensor(each).size for each in (scale, zero_point)}
            if data is None or not sizes <= {1, pieces.channels}:
                return None
            scale = repeated(self, scale, pieces.groups, pieces.phases)
            zero_point = repeated(self, zero_point, pieces.groups, pieces.phases)
            return self.emit(relax.op.dequantize(data, scale, zero_point, -1, quantized.dtype))
        tensor, rank = known_tensor(expr), len(pieces.outputs) + 2
        if tensor.size == 1 and len(tensor.shape) <= rank:
            if isinstance(expr, ir.GenericConst):
                return relax.const(expr.value.numpy().reshape(()), str(expr.ty.dtype))
            return self.emit(relax.op.reshape(expr, ()))
        wanted = [1] * rank
        wanted[rank - 1 if last else 1] = pieces.channels
        if [*(1 for _ in range(rank - len(tensor.shape))), *tensor.shape] != wanted:
            return None
        return repeated(self, expr, pieces.groups, pieces.phases)

    def convolved(self, conv: TransposedConv, var: relax.Var) -> Interleaved:
        """A transposed convolution as what is to be interleaved."""
        pieces = self.waiting[conv.x][0] if conv.x in self.waiting else None
        if conv.product and pieces is not None and pieces.plain:
            # All phases of what comes in by one row of few channels.
            few = pieces.phases * math.prod(conv.strides) * conv.channels <= LANES
            repeats = pieces.phases if conv.is_constant and few else 1
            rows = pieces.parts[0]
            if repeats == 1:  # a row of C channels for each phase, [N, *counts, phases, C]
                shape = (*known_tensor(rows).shape[:-1], pieces.phases, pieces.channels)
                rows = self.emit(reshaped(rows, shape))
            matrix = conv.weight(self, conv.together, matrix=True, repeats=repeats)
            return replace(
                pieces,
                parts=(self.emit(relax.op.matmul(rows, matrix)),),
                factors=(*pieces.factors, conv.strides),
                outputs=conv.outputs,
                channels=conv.channels,
            )
        self.need(conv.x)
        x = conv.x if conv.last else self.channels_last(conv.x)
        form = conv.all_together() if self.feeds_product(var) else conv.form()
        return Interleaved(
            parts=tuple(self.emit(self.part(conv, x, windows)) for windows in form.parts),
            factors=(conv.strides,),
            pieces=form.pieces,
            groups=conv.groups if len(form.parts) == 1 else 1,
            first=form.first,
            outputs=conv.outputs,
            channels=conv.channels,
        )

    def feeds_product(self, var: relax.Var) -> bool:
        """Whether only a transposed convolution that is a product needs a value, perhaps after
        elementwise operators: it takes the phases together."""
        while len(users := self.graph.users.get(var, [])) == 1:
            value = self.graph.value(users[0])
            conv = read_conv_transpose(self.graph, value)
            if conv is not None:
                return conv.product
            if read_elementwise(value, {var}, self.is_small) is None:
                return False
            var = self.graph.bindings[users[0]].var
        return False

    def channels_last(self, x: relax.Expr) -> relax.Expr:
        """[N, C, *extents] -> [N, *extents, C]"""
        rank = len(x.ty.shape.values)
        order = [0, *range(2, rank), 1]
        narrow = widened_bytes(self.graph, x)
        if narrow is None:
            return self.emit(relax.op.permute_dims(x, order))
        source, zero_point = narrow
        wide = self.emit(relax.op.astype(self.emit(relax.op.permute_dims(source, order)), "int32"))
        return wide if zero_point is None else self.emit(relax.op.subtract(wide, zero_point))

    def part(self, conv: TransposedConv, x: relax.Expr, windows: tuple[Window, ...]) -> relax.Expr:
        """One ordinary convolution, or product; not bound yet."""
        if conv.groups == 1 and all(window.pointwise for window in windows):
            return relax.op.matmul(x, conv.weight(self, windows, matrix=True))
        axes = range(1, 1 + len(windows))
        starts = [max(0, -window.before) for window in windows]
        left_out = [max(0, -window.after) for window in windows]
        if any((*starts, *left_out)):  # of extents that are known
            ends = [axis.extent - n for axis, n in zip(conv.axes, left_out, strict=True)]
            x = self.emit(relax.op.strided_slice(x, list(axes), starts, ends))
        _, spatial, operator = OPERATORS[conv.operator]
        margins = [*(w.before for w in windows), *(w.after for w in windows)]
        return operator(
            x,
            conv.weight(self, windows),
            padding=[max(0, margin) for margin in margins],
            dilation=[window.dilation for window in windows],
            groups=conv.groups,
            data_layout=f"N{spatial}C",
            kernel_layout=f"{spatial}IO",
            out_layout=f"N{spatial}C",
            out_dtype=conv.dtype,
        )
