"""Transposed convolutions become ordinary ones of stride 1, whose results are interleaved.

Before

    lv = R.nn.conv2d_transpose(x, const_w, strides=[2, 2])      # [1, 8, 5, 5] * [8, 3, 2, 2]
    lv1 = R.add(lv, const_b)                                    # [1, 3, 1, 1]
    gv = R.nn.relu(lv1)

After

    lv = R.permute_dims(x, [0, 2, 3, 1])
    lv1 = R.matmul(lv, const_w')                                # [8, 2 * 2 * 3]
    lv2 = R.add(lv1, const_b')
    lv3 = R.nn.relu(lv2)
    lv4 = R.reshape(lv3, [1, 5, 5, 2, 2, 3])
    lv5 = R.permute_dims(lv4, [0, 1, 3, 2, 4, 5])
    lv6 = R.reshape(lv5, [1, 10, 10, 3])
    gv = R.permute_dims(lv6, [0, 3, 1, 2])

`transposed_taps` says which taps meet which results: without waste all phases are more channels of
one convolution (a product if the windows do not overlap), otherwise each is a convolution of its
own, and they are put together by R.concat along the channels. Elementwise operators that follow go
before the interleaving, and so does a transposed convolution whose windows do not overlap.
One, two or three axes, any groups, dilation, padding and output padding; the weight is a constant
or dequantised from one. Others stay.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax

from .elementwise_calls import ElementwiseCall, read_elementwise
from .graph import DataflowGraph, op_name, static_tensor, variables
from .interleaved import Interleaved
from .quantization import Quantized, read_dequantize
from .rewrite_blocks import Bindings, block_pass
from .transposed_taps import TransposedAxis, Window

OPERATORS = {
    f"relax.nn.conv{rank}d_transpose": (rank, spatial, getattr(relax.op.nn, f"conv{rank}d"))
    for rank, spatial in ((1, "W"), (2, "HW"), (3, "DHW"))
}
LANES = 16  # that channels are rounded up to, for the choice between both forms
INTERLEAVE = 8  # vector instructions of a pass over the result that it costs for each vector
MOST_APART = 16  # convolutions


def decompose_conv_transpose() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return block_pass("tvm_hybrid.decompose_conv_transpose", _rewrite)


@dataclass(frozen=True)
class _Conv:
    """A transposed convolution, of x with channels first or `last`.

    The weight is [IC, OC / groups, *kernel].
    """

    x: relax.Expr
    weight: np.ndarray
    quantized: Quantized | None
    axes: tuple[TransposedAxis, ...]
    groups: int
    dtype: str
    last: bool
    operator: str

    @property
    def channels(self) -> int:
        """Of the result."""
        return self.weight.shape[1] * self.groups

    @property
    def outputs(self) -> tuple[int, ...]:
        """Extents of the result."""
        return tuple(axis.output for axis in self.axes)

    @property
    def strides(self) -> tuple[int, ...]:
        """Phases of each axis."""
        return tuple(axis.stride for axis in self.axes)

    @property
    def together(self) -> tuple[Window, ...]:
        """All phases in one."""
        return tuple(axis.together() for axis in self.axes)

    def apart(self) -> list[tuple[Window, ...]] | None:
        """The phases one by one, the last axis' next to each other; None for all at once."""
        phases = math.prod(self.strides)
        found = [axis.apart() for axis in self.axes]
        if phases == 1 or phases > MOST_APART or any(each is None for each in found):
            return None
        windows = list(itertools.product(*(each for each in found if each is not None)))
        depth = self.weight.shape[0] // self.groups
        vectors = math.ceil(self.channels * phases / LANES)
        together = math.prod(window.size for window in self.together) * depth * vectors
        if any(axis.cut for axis in self.axes):
            together += INTERLEAVE * vectors
        taps = sum(math.prod(window.size for window in each) for each in windows)
        alone = taps * depth * math.ceil(self.channels / LANES)
        return windows if self.groups > 1 or alone < together else None


def _rewrite(graph: DataflowGraph) -> list[relax.Binding] | None:
    block = _Block(graph)
    for position in range(len(graph.bindings)):
        block.binding(position)
    return block.bindings if block.found else None


class _Block(Bindings):
    """A block under construction, in which interleaving waits until somebody needs it."""

    def __init__(self, graph: DataflowGraph) -> None:
        super().__init__()
        self.graph = graph
        self.found = False
        self.waiting: dict[relax.Expr, tuple[Interleaved, bool]] = {}
        self.bound: set[relax.Expr] = set()

    def binding(self, position: int) -> None:
        """Adds one binding, or lets it wait."""
        binding, value = self.graph.bindings[position], self.graph.value(position)
        conv = _match(self.graph, value)
        made = self.elementwise(value) if conv is None else (self.convolved(conv), conv.last)
        if made is None:
            for var in variables(value):
                self.interleave(var)
            self.bindings.append(binding)
            return
        self.found = True
        self.waiting[binding.var] = made
        if not isinstance(binding.var, relax.DataflowVar):
            self.interleave(binding.var)

    def interleave(self, var: relax.Var) -> None:
        """Binds a variable that waits."""
        if var not in self.waiting or var in self.bound:
            return
        self.bound.add(var)
        pieces, last = self.waiting[var]
        whole = pieces.whole(self)
        self.bind(var, whole if last else self.channels_first(whole))

    def channels_first(self, whole: relax.Expr) -> relax.Expr:
        """[N, *extents, C] -> [N, C, *extents]; the last operator is not bound yet."""
        bound = self.emit(whole)
        rank = len(bound.ty.shape.values)
        return relax.op.permute_dims(bound, [0, rank - 1, *range(1, rank - 1)])

    def elementwise(self, value: relax.Expr) -> tuple[Interleaved, bool] | None:
        """An operator on tensors that wait, element by element."""
        found = read_elementwise(value, self.waiting)
        if found is None:
            return None
        first, last = self.waiting[found.tensors[0]]
        others = [self.waiting[expr] for expr in found.tensors[1:]]
        if any(not first.matches(other) or last != where for other, where in others):
            return None
        constants = _channel_constants(found, first, last)
        if constants is None:
            return None
        return first.map(
            self, lambda *parts: found.call(parts, constants), [o for o, _ in others]
        ), last

    def convolved(self, conv: _Conv) -> Interleaved:
        """A transposed convolution as what is to be interleaved."""
        pieces = self.waiting[conv.x][0] if conv.x in self.waiting else None
        windows = conv.together
        product = conv.groups == 1 and all(window.pointwise for window in windows)
        if product and pieces is not None and pieces.plain:
            rows = self.emit(pieces.rows)
            made = self.emit(relax.op.matmul(rows, self.weight(conv, windows, matrix=True)))
            factors = (*pieces.factors, conv.strides)
            return Interleaved(
                (made,), factors, 1, (0,) * len(conv.axes), conv.outputs, conv.channels
            )
        self.interleave(conv.x)
        x = conv.x if conv.last else self.channels_last(conv.x)
        if product:
            parts = [relax.op.matmul(x, self.weight(conv, windows, matrix=True))]
            groups, first = 1, tuple(axis.first for axis in conv.axes)
        elif (apart := conv.apart()) is not None:
            parts = [self.part(conv, x, each) for each in apart]
            groups, first = 1, (0,) * len(conv.axes)
        else:
            parts = [self.part(conv, x, windows)]
            groups, first = conv.groups, tuple(axis.first for axis in conv.axes)
        bound = tuple(self.emit(part) for part in parts)
        return Interleaved(bound, (conv.strides,), groups, first, conv.outputs, conv.channels)

    def channels_last(self, x: relax.Expr) -> relax.Expr:
        """[N, C, *extents] -> [N, *extents, C]"""
        rank = len(x.ty.shape.values)
        return self.emit(relax.op.permute_dims(x, [0, *range(2, rank), 1]))

    def part(self, conv: _Conv, x: relax.Expr, windows: tuple[Window, ...]) -> relax.Expr:
        """One ordinary convolution; not bound yet."""
        axes = range(1, 1 + len(windows))
        starts = [max(0, -window.before) for window in windows]
        extents = [axis.extent for axis in conv.axes]
        ends = [
            extent - max(0, -window.after) for extent, window in zip(extents, windows, strict=True)
        ]
        if (starts, ends) != ([0] * len(starts), extents):
            x = self.emit(relax.op.strided_slice(x, list(axes), starts, ends))
        _, spatial, operator = OPERATORS[conv.operator]
        return operator(
            x,
            self.weight(conv, windows),
            padding=[
                *(max(0, window.before) for window in windows),
                *(max(0, window.after) for window in windows),
            ],
            dilation=[window.dilation for window in windows],
            groups=conv.groups,
            data_layout=f"N{spatial}C",
            kernel_layout=f"{spatial}IO",
            out_layout=f"N{spatial}C",
            out_dtype=conv.dtype,
        )

    def weight(self, conv: _Conv, windows: tuple[Window, ...], matrix: bool = False) -> relax.Expr:
        """The weight of an ordinary convolution, dequantised if conv's is."""
        phases = math.prod(len(window.taps) for window in windows)
        own = conv.channels // conv.groups

        def of_channels(values: np.ndarray) -> np.ndarray:
            """Numbers for one channel of every group each, for the channels of all phases."""
            return np.tile(values.reshape(-1), conv.groups * phases)

        quantized = conv.quantized
        fill = np.zeros(1, conv.weight.dtype)
        if quantized is not None:
            fill = quantized.quantization.zero_point.value.numpy().reshape(-1)
        array = _taps(conv, windows, fill, own)
        if matrix:
            array = array.reshape(array.shape[-2:])
        constant = relax.const(np.ascontiguousarray(array))
        if quantized is None:
            return constant
        numbers = [
            relax.const(of_channels(e.value.numpy()), str(e.ty.dtype))
            if e.value.numpy().size > 1
            else e
            for e in (quantized.quantization.scale, quantized.quantization.zero_point)
        ]
        return self.emit(
            relax.op.dequantize(constant, *numbers, axis=array.ndim - 1, out_dtype=quantized.dtype)
        )


def _taps(conv: _Conv, windows: tuple[Window, ...], fill: np.ndarray, own: int) -> np.ndarray:
    """[*sizes, IC / G, G * phases * own]: the taps where they meet x, `fill` elsewhere."""
    weight = conv.weight.reshape(conv.groups, -1, *conv.weight.shape[1:])
    sizes = [window.size for window in windows]
    phases = [len(window.taps) for window in windows]
    depth = weight.shape[1]
    array = np.empty((*sizes, *phases, depth, conv.groups, own), weight.dtype)
    array[...] = fill
    for at in itertools.product(*map(range, sizes)):
        for phase in itertools.product(*map(range, phases)):
            met = [w.taps[p][u] for w, p, u in zip(windows, phase, at, strict=True)]
            if None not in met:
                tap = weight
                for number in met:
                    tap = tap[:, :, :, number]
                array[(*at, *phase)] = tap.transpose(1, 0, 2)
    rank = len(sizes)
    order = [*range(rank), 2 * rank, 2 * rank + 1, *range(rank, 2 * rank), 2 * rank + 2]
    return array.transpose(order).reshape(*sizes, depth, -1)


def _channel_constants(
    found: ElementwiseCall, pieces: Interleaved, last: bool
) -> list[relax.Expr] | None:
    """An operator's constants for the parts of a tensor; None if they differ along another axis."""
    constants = []
    rank = len(pieces.outputs) + 2
    for constant in found.constants:
        array = constant.value.numpy()
        if array.size == 1 and array.ndim <= rank:
            constants.append(relax.const(array.reshape(()), str(constant.ty.dtype)))
            continue
        aligned = (1,) * (rank - array.ndim) + array.shape
        wanted = [1] * rank
        wanted[rank - 1 if last else 1] = pieces.channels
        if list(aligned) != wanted:
            return None
        values = pieces.per_channel(array.reshape(-1))
        constants.append(relax.const(values, str(constant.ty.dtype)))
    return constants


def _match(graph: DataflowGraph, call: relax.Expr) -> _Conv | None:
    """The transposed convolution that a call is; None if it is none or its weight not constant."""
    name = op_name(call)
    if name not in OPERATORS:
        return None
    rank, spatial, _ = OPERATORS[name]
    attrs = call.attrs
    layout = str(attrs.data_layout)
    last = layout == f"N{spatial}C"
    if layout not in (f"N{spatial}C", f"NC{spatial}") or attrs.kernel_layout != f"IO{spatial}":
        return None
    x, output = static_tensor(call.args[0]), static_tensor(call)
    if x is None or output is None or attrs.out_layout != layout or 0 in (*x.shape, *output.shape):
        return None
    found = _constant_weight(graph, call.args[1])
    if found is None:
        return None
    weight, quantized = found
    first = 1 if last else 2
    axes = tuple(
        TransposedAxis(
            extent=x.shape[first + axis],
            kernel=weight.shape[2 + axis],
            stride=int(attrs.strides[axis]),
            dilation=int(attrs.dilation[axis]),
            before=int(attrs.padding[axis]),
            output=output.shape[first + axis],
        )
        for axis in range(rank)
    )
    conv = _Conv(
        x=call.args[0],
        weight=weight,
        quantized=quantized,
        axes=axes,
        groups=int(attrs.groups),
        dtype=output.dtype,
        last=last,
        operator=name,
    )
    windows = [*(conv.apart() or []), conv.together]
    reached = all(
        axis.extent + min(0, window.before) + min(0, window.after) > 0
        for each in windows
        for axis, window in zip(axes, each, strict=True)
    )
    return conv if reached else None


def _constant_weight(
    graph: DataflowGraph, expr: relax.Expr
) -> tuple[np.ndarray, Quantized | None] | None:
    """A weight's numbers, and what they stand for if they are dequantised."""
    if isinstance(expr, ir.GenericConst):
        array = expr.value.numpy()
        return None if str(expr.ty.dtype) not in ("float32", "float16") else (array, None)
    quantized = read_dequantize(graph.definition(expr))
    if quantized is None or not isinstance(quantized.data, ir.GenericConst):
        return None
    quantization = quantized.quantization
    numbers = (quantization.scale, quantization.zero_point)
    if quantization.axis not in (None, 1) or not all(
        isinstance(number, ir.GenericConst) for number in numbers
    ):
        return None
    return quantized.data.value.numpy(), quantized
