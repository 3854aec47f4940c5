"""Reads a transposed convolution, and computes the weights of the ordinary ones that replace it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax

from relay_passes.ir.axes import known_integers, widened_bytes
from relay_passes.ir.graph import (
    DataflowGraph,
    known_tensor,
    op_name,
    region_tensor,
    static_tensor,
)
from relay_passes.ir.quantization import Quantized, read_dequantize
from relay_passes.ir.rewrite import Bindings
from tir_schedules.core.size import is_open

from .transposed_taps import TransposedAxis, Window, diagonal, emitted_taps, known_taps, tiled

OPERATORS = {
    f"relax.nn.conv{rank}d_transpose": (rank, spatial, getattr(relax.op.nn, f"conv{rank}d"))
    for rank, spatial in ((1, "W"), (2, "HW"), (3, "DHW"))
}
LANES = 16  # that channels are rounded up to, for the choice between both forms
INTERLEAVE = 16  # vector instructions of a pass over the result that it costs for each vector
MOST_APART = 16  # convolutions
READ = 0.125  # of a multiplication, that reading x once more costs


@dataclass(frozen=True)
class Form:
    """A transposed convolution as ordinary ones.

    Attributes
    ----------
    parts : tuple of (tuple of Window)
        The convolutions' windows, the last axis' phases next to each other.
    pieces : tuple of int
        How many of them there are for each axis.
    first : tuple of int
        For each axis, how many results there are too many at the beginning.
    moves : bool
        Whether a pass over the result is needed to put it together.
    """

    parts: tuple[tuple[Window, ...], ...]
    pieces: tuple[int, ...]
    first: tuple[int, ...]
    moves: bool


@dataclass(frozen=True)
class TransposedConv:
    """A transposed convolution, of x with channels first or `last`.

    The weight's `taps` are [IC, OC / groups, *kernel], a constant or not, and `quantized` says what
    they stand for if they are integers.
    """

    x: relax.Expr
    taps: relax.Expr
    quantized: Quantized | None
    axes: tuple[TransposedAxis, ...]
    groups: int
    dtype: str
    last: bool
    operator: str

    @property
    def channels(self) -> int:
        """Of the result."""
        return known_tensor(self.taps).shape[1] * self.groups

    @property
    def is_constant(self) -> bool:
        """Whether the weight is known at compile time."""
        return isinstance(self.taps, ir.GenericConst)

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

    @property
    def product(self) -> bool:
        """Whether it is a product with all phases as columns: windows do not overlap."""
        return self.groups == 1 and all(window.pointwise for window in self.together)

    def form(self) -> Form:
        """The cheapest form, in vectors of multiplications for each position of x."""
        return min(self._forms(), key=self._cost)

    def all_together(self) -> Form:
        """All phases as channels of one convolution."""
        first = tuple(axis.first for axis in self.axes)
        moves = any(axis.cut for axis in self.axes) or any(s > 1 for s in self.strides[:-1])
        return Form((self.together,), (1,) * len(self.axes), first, moves)

    def _forms(self) -> list[Form]:
        """The ways to compute it.

        Phases of the last axis may be channels: in the result they lie in memory like that. In
        groups they would be more results of a group, which costs kernels more than it saves.
        """
        outer = [axis.apart() for axis in self.axes[:-1]]
        last = self.axes[-1].apart()
        uneven = [axis.uneven for axis in self.axes]
        found = [self.all_together()]
        if math.prod(self.strides) > MOST_APART or any(each is None for each in outer):
            return found
        if self.groups == 1 and not self.axes[-1].cut:
            found.append(self._apart([*outer, [self.axes[-1].together()]], any(uneven[:-1])))
        if last is not None:
            found.append(self._apart([*outer, last], any(uneven)))
        return found if self.groups == 1 else found[-1:]

    def _apart(self, windows: Sequence[list[Window] | None], moves: bool) -> Form:
        axes = [each for each in windows if each is not None]
        parts = tuple(itertools.product(*axes))
        return Form(parts, tuple(map(len, axes)), (0,) * len(axes), moves)

    def _cost(self, form: Form) -> float:
        depth = known_tensor(self.taps).shape[0] // self.groups
        cost = 0.0
        for windows in form.parts:
            columns = self.channels * math.prod(len(window.taps) for window in windows)
            taps = math.prod(window.size for window in windows)
            cost += depth * (taps * math.ceil(columns / LANES) + READ)
        # `concat_in_place` saves the copy of parts of static extents.
        copied = len(form.parts) > 1 and is_open(self.outputs)
        if form.moves or copied:
            cost += INTERLEAVE * math.ceil(self.channels * math.prod(self.strides) / LANES)
        return cost

    def weight(
        self, block: Bindings, windows: tuple[Window, ...], matrix: bool = False, repeats: int = 1
    ) -> relax.Expr:
        """The weight of an ordinary convolution, dequantised if its own is.

        As a matrix, a constant one may stand several times along a diagonal.
        """
        phases = math.prod(len(window.taps) for window in windows)
        quantized = self.quantized
        fill = np.zeros(1, np.int32)
        if quantized is not None:
            fill = quantized.quantization.zero_point.value.numpy().reshape(-1)
        taps = self._taps(block, windows, matrix, repeats, fill)
        if quantized is None:
            return taps
        count = self.groups * phases * repeats
        quantization = quantized.quantization
        scale, zero_point = (
            _for_phases(block, each, count)
            for each in (quantization.scale, quantization.zero_point)
        )
        axis = len(known_tensor(taps).shape) - 1
        return block.emit(relax.op.dequantize(taps, scale, zero_point, axis, quantized.dtype))

    def _taps(
        self,
        block: Bindings,
        windows: tuple[Window, ...],
        matrix: bool,
        repeats: int,
        fill: np.ndarray,
    ) -> relax.Expr:
        """The weight as its elements are stored; as a matrix if wanted."""
        if self.is_constant:
            array = known_taps(self.taps.value.numpy(), self.groups, windows, fill)
            if matrix:
                array = diagonal(array.reshape(array.shape[-2:]), repeats, fill)
            if array.dtype == np.int32 and array.min() >= -128 and array.max() <= 127:
                return block.emit(relax.op.astype(relax.const(array.astype(np.int8)), "int32"))
            return relax.const(np.ascontiguousarray(array), str(self.taps.ty.dtype))
        assert repeats == 1
        zero = fill.flat[0].item()
        return emitted_taps(block, self.taps, self.groups, windows, zero, matrix)


def _for_phases(block: Bindings, numbers: relax.Expr, count: int) -> relax.Expr:
    """A number, or numbers for the channels of a group, for those of all groups and phases."""
    if known_tensor(numbers).size == 1:
        return numbers
    if isinstance(numbers, ir.GenericConst):
        values = np.tile(numbers.value.numpy().reshape(-1), count)
        return relax.const(values, str(numbers.ty.dtype))
    return tiled(block, numbers, count)


def read_conv_transpose(graph: DataflowGraph, call: relax.Expr) -> TransposedConv | None:
    """The transposed convolution that a call is; None if it is none that ordinary ones compute."""
    name = op_name(call)
    if name not in OPERATORS or not isinstance(call, relax.Call):
        return None
    rank, spatial, _ = OPERATORS[name]
    attrs = call.attrs
    layout = str(attrs.data_layout)
    last = layout == f"N{spatial}C"
    if layout not in (f"N{spatial}C", f"NC{spatial}") or attrs.kernel_layout != f"IO{spatial}":
        return None
    x, output = region_tensor(call.args[0]), region_tensor(call)
    if x is None or output is None or attrs.out_layout != layout or 0 in (*x.shape, *output.shape):
        return None
    found = _weight(graph, call.args[1])
    if output.dtype == "int32":
        found = _integer_weight(graph, call)
    if found is None:
        return None
    weight, quantized = found
    shape = known_tensor(weight).shape
    if 0 in shape:
        return None
    first = 1 if last else 2
    axes = tuple(
        TransposedAxis(
            extent=x.shape[first + axis],
            kernel=shape[2 + axis],
            stride=int(attrs.strides[axis]),
            dilation=int(attrs.dilation[axis]),
            before=int(attrs.padding[axis]),
            more=_more(x.shape[first + axis], output.shape[first + axis], attrs.strides[axis]),
        )
        for axis in range(rank)
    )
    if any(is_open((axis.more,)) for axis in axes):
        return None
    conv = TransposedConv(
        x=call.args[0],
        taps=weight,
        quantized=quantized,
        axes=axes,
        groups=int(attrs.groups),
        dtype=output.dtype,
        last=last,
        operator=name,
    )
    windows = [*conv.form().parts, conv.together]
    reached = all(
        _reaches(axis, window) for each in windows for axis, window in zip(axes, each, strict=True)
    )
    return conv if reached else None


def _more(extent: int, output: int, stride: int) -> int:
    return output + extent * -int(stride)


def _reaches(axis: TransposedAxis, window: Window) -> bool:
    """Whether something of x is left where positions are removed; unknown of an open extent."""
    removed = min(0, window.before) + min(0, window.after)
    return not removed if is_open((axis.extent,)) else axis.extent + removed > 0


def _weight(graph: DataflowGraph, expr: relax.Expr) -> tuple[relax.Expr, Quantized | None] | None:
    """A weight, or the integers that it is dequantised from and what these stand for."""
    if static_tensor(expr) is None:
        return None
    quantized = read_dequantize(graph.definition(expr))
    if quantized is None:
        known = str(expr.ty.dtype) in ("float32", "float16")
        return (expr, None) if known else None
    quantization = quantized.quantization
    zero_point = quantization.zero_point
    if quantization.axis not in (None, 1) or not isinstance(zero_point, ir.GenericConst):
        return None
    if isinstance(quantized.data, ir.GenericConst):
        constant = isinstance(quantization.scale, ir.GenericConst)
        return (quantized.data, quantized) if constant else None
    # One number for zero, with which the weight can be padded.
    return (quantized.data, quantized) if known_tensor(zero_point).size == 1 else None


def _integer_weight(
    graph: DataflowGraph, call: relax.Call
) -> tuple[relax.Expr, Quantized | None] | None:
    """The weight of a transposed convolution of 8-bit integers less their zero points, as int32."""
    x = widened_bytes(graph, call.args[0])
    weight = known_integers(graph, call.args[1])
    if x is None or weight is None or np.abs(weight).max(initial=0) > 255:
        return None
    return relax.const(weight.astype(np.int32)), None
