"""Reads a transposed convolution, and computes the weights of the ordinary ones that replace it.

    y[o] = sum of x[i] * w[t] over all i, t with o = i * s + t * d - p

Along one axis let q, phase = divmod(o + p, s). The taps for o are those with t * d = phase (mod s);
they multiply x[q - t * d // s]. So each phase is a convolution over q, of stride 1, with every s-th
tap. The phases are computed together, as further channels of one convolution whose weight has zeros
where a phase has no tap, or each separately without zeros. In both forms the first q is free.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax

from relay_passes.ir.axes import known_integers, widened_bytes
from relay_passes.ir.graph import DataflowGraph, known_tensor, op_name, region_tensor, static_tensor
from relay_passes.ir.quantization import Quantized, read_dequantize
from relay_passes.ir.rewrite import Bindings
from tir_schedules.core.size import is_dynamic

OPERATORS = {
    f"relax.nn.conv{rank}d_transpose": (rank, spatial, getattr(relax.op.nn, f"conv{rank}d"))
    for rank, spatial in ((1, "W"), (2, "HW"), (3, "DHW"))
}
LANES = 16  # channels are rounded up to this, for the choice between both forms
INTERLEAVE = 16  # cost of a pass over the result, in vector instructions per vector
MOST_APART = 16  # convolutions
READ = 0.125  # cost of reading x once more, in multiplications


@dataclass(frozen=True)
class Window:
    """An ordinary convolution along one axis.

    Attributes
    ----------
    taps : tuple of (tuple of (int or None))
        For each computed phase, the tap of the transposed convolution at each position of the
        window; None if there is no tap.
    dilation : int
        Distance of the window's positions.
    before, after : int
        Positions added before and after x; removed if negative.
    count : int
        Number of results of each phase.
    """

    taps: tuple[tuple[int | None, ...], ...]
    dilation: int
    before: int
    after: int
    count: int

    @property
    def size(self) -> int:
        """Positions of the window."""
        return len(self.taps[0])

    @property
    def pointwise(self) -> bool:
        """Whether every result depends only on the position of x at its own place."""
        return self.size == 1 and self.before == self.after == 0


@dataclass(frozen=True)
class TransposedAxis:
    """One axis of a transposed convolution.

    Attributes
    ----------
    extent, kernel : int
        Positions of x, which may be symbolic, and positions of the weight.
    stride, dilation : int
        s and d.
    before : int
        p.
    more : int
        Positions of the result beyond `stride` per position of x; negative if there are fewer.
    """

    extent: int
    kernel: int
    stride: int
    dilation: int
    before: int
    more: int

    @property
    def output(self) -> int:
        """Positions of the result."""
        return self.extent * self.stride + self.more

    @property
    def first(self) -> int:
        """Surplus results of the window `together` at the beginning."""
        return self.before % self.stride

    @property
    def cut(self) -> bool:
        """Whether `together` computes surplus results."""
        return self.first != 0 or self.uneven

    @property
    def uneven(self) -> bool:
        """Whether phases have different numbers of results."""
        return self.more % self.stride != 0

    def together(self) -> Window:
        """All phases, in order, as channels of one convolution."""
        first = self.before // self.stride
        last = (self.more - 1 + self.before) // self.stride  # beyond the positions of x
        return self._window(range(self.stride), first, last - first + 1)

    def apart(self) -> list[Window] | None:
        """One convolution for each o % s; None if one of them would have no taps."""
        more = -(-self.more // self.stride)
        places = [divmod(residue + self.before, self.stride) for residue in range(self.stride)]
        if not all(self._taps(phase) for _, phase in places):
            return None
        return [self._window([phase], first, more) for first, phase in places]

    def _taps(self, phase: int) -> dict[int, int]:
        """Taps of a phase by their distance from q."""
        products = ((tap, tap * self.dilation) for tap in range(self.kernel))
        return {at // self.stride: tap for tap, at in products if at % self.stride == phase}

    def _window(self, phases: Sequence[int], first: int, more: int) -> Window:
        """The window of some phases, with `more` results beyond the positions of x."""
        found = [self._taps(phase) for phase in phases]
        distances = sorted({distance for taps in found for distance in taps})
        nearest, farthest = distances[0], distances[-1]
        step = math.gcd(*(distance - nearest for distance in distances)) or 1
        positions = range(farthest, nearest - 1, -step)
        return Window(
            taps=tuple(tuple(taps.get(distance) for distance in positions) for taps in found),
            dilation=step,
            before=farthest - first,
            after=first + more - nearest,
            count=self.extent + more,
        )


# Weights of the ordinary convolutions that replace a transposed one.
#
#     [IC, OC / G, *kernel]  ->  [*sizes, IC / G, G * phases * OC / G]
#
# Each position of a window and each phase has a tap, or zeros if there is none. NumPy rearranges a
# constant weight; operators rearrange any other:
#
#     lv = R.nn.pad(R.reshape(w, [G, IC / G, OC / G, taps]), ...)     # zeros behind the taps
#     lv1 = R.take(lv, const_taps, axis=3)
#     lv2 = R.reshape(R.permute_dims(R.reshape(lv1, ...), ...), ...)


_ORDER = [3, 1, 0, 4, 2]  # [G, IC / G, OC / G, positions, phases] -> [positions, IC / G, G, ...]


def _places(windows: Sequence[Window], kernel: Sequence[int]) -> np.ndarray:
    """[positions, phases]: the number of the tap at each place; the number of taps for none."""
    sizes, phases = [w.size for w in windows], [len(window.taps) for window in windows]
    places = np.full((*sizes, *phases), math.prod(kernel))
    for at in itertools.product(*map(range, sizes)):
        for phase in itertools.product(*map(range, phases)):
            met = [w.taps[p][u] for w, p, u in zip(windows, phase, at, strict=True)]
            taps = [tap for tap in met if tap is not None]
            if len(taps) == len(met):
                places[(*at, *phase)] = np.ravel_multi_index(taps, kernel)
    return places.reshape(math.prod(sizes), math.prod(phases))


def repeated(block: Bindings, numbers: relax.Expr, groups: int, times: int) -> relax.Expr:
    """Numbers for groups of channels, each group's repeated in turn; a single number stays."""
    size, op = known_tensor(numbers).size, relax.op
    if size == 1:
        return numbers
    if isinstance(numbers, ir.GenericConst):
        rows = numbers.value.numpy().reshape(groups, 1, -1).repeat(times, axis=1)
        return relax.const(np.ascontiguousarray(rows.reshape(-1)), str(numbers.ty.dtype))
    own = size // groups
    apart = block.emit(op.reshape(numbers, (groups, 1, own)))
    wide = block.emit(op.broadcast_to(apart, (groups, times, own)))
    return block.emit(op.reshape(wide, (size * times,)))


@dataclass(frozen=True)
class Form:
    """A transposed convolution as ordinary convolutions.

    Attributes
    ----------
    parts : tuple of (tuple of Window)
        The convolutions' windows, with the phases of the last axis innermost.
    pieces : tuple of int
        Number of convolutions along each axis.
    first : tuple of int
        For each axis, the number of surplus results at the beginning.
    moves : bool
        Whether another pass over the result is needed to assemble it.
    """

    parts: tuple[tuple[Window, ...], ...]
    pieces: tuple[int, ...]
    first: tuple[int, ...]
    moves: bool


@dataclass(frozen=True)
class TransposedConv:
    """A transposed convolution of x, with channels first or `last`.

    The weight's `taps` are [IC, OC / groups, *kernel], constant or not; if they are integers,
    `quantized` holds their quantisation.
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
        """Channels of the result."""
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
        """Number of phases of each axis."""
        return tuple(axis.stride for axis in self.axes)

    @property
    def together(self) -> tuple[Window, ...]:
        """The window of all phases, for each axis."""
        return tuple(axis.together() for axis in self.axes)

    @property
    def product(self) -> bool:
        """Whether it is a matrix product with all phases as columns: windows do not overlap."""
        return self.groups == 1 and all(window.pointwise for window in self.together)

    def form(self) -> Form:
        """The cheapest form by estimated vector multiplications per position of x."""
        return min(self._forms(), key=self._cost)

    def all_together(self) -> Form:
        """All phases as channels of one convolution."""
        first = tuple(axis.first for axis in self.axes)
        moves = any(axis.cut for axis in self.axes) or any(s > 1 for s in self.strides[:-1])
        return Form((self.together,), (1,) * len(self.axes), first, moves)

    def _forms(self) -> list[Form]:
        """The possible forms."""
        outer = [axis.apart() for axis in self.axes[:-1]]
        last = self.axes[-1].apart()
        uneven = [axis.uneven for axis in self.axes]
        found = [self.all_together()]
        if math.prod(self.strides) > MOST_APART or any(each is None for each in outer):
            return found
        # Phases of the last axis may be channels: they are contiguous in the result. With groups
        # they would become further outputs of a group, which costs kernels more than it saves.
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
        copied = len(form.parts) > 1 and is_dynamic(self.outputs)
        if form.moves or copied:
            cost += INTERLEAVE * math.ceil(self.channels * math.prod(self.strides) / LANES)
        return cost

    def weight(
        self, block: Bindings, windows: tuple[Window, ...], matrix: bool = False, repeats: int = 1
    ) -> relax.Expr:
        """The weight of an ordinary convolution, dequantised if the transposed one's weight is.

        A constant matrix, for windows of a single position, may be repeated along a diagonal.
        """
        op, shape, groups = relax.op, known_tensor(self.taps).shape, self.groups
        depth, own, count = shape[0] // groups, shape[1], math.prod(shape[2:])
        places = _places(windows, shape[2:])
        phases = places.shape[1]
        result = (*([] if matrix else [w.size for w in windows]), depth, groups * phases * own)
        fill = np.zeros(1, np.int32)  # the zero: one number, or one for each of OC / G
        if self.quantized is not None:
            fill = self.quantized.quantization.zero_point.value.numpy().reshape(-1)
        taps: relax.Expr
        if self.is_constant:
            flat = self.taps.value.numpy().reshape(groups, depth, own, count)
            zeros = np.broadcast_to(fill.reshape(-1, 1), (groups, depth, own, 1))
            chosen = np.concatenate([flat, zeros.astype(flat.dtype)], axis=3)[..., places]
            array = chosen.transpose(_ORDER).reshape(result)
            if matrix:  # repeated along a diagonal; elsewhere the zero of each column
                own_place = np.kron(np.eye(repeats, dtype=bool), np.ones(array.shape, bool))
                elsewhere = np.resize(fill, own_place.shape[1]).astype(array.dtype)
                array = np.where(own_place, np.tile(array, (repeats, repeats)), elsewhere)
            if array.dtype == np.int32 and array.min() >= -128 and array.max() <= 127:
                taps = block.emit(op.astype(relax.const(array.astype(np.int8)), "int32"))
            else:
                taps = relax.const(np.ascontiguousarray(array), str(self.taps.ty.dtype))
        else:
            assert repeats == 1
            taps = block.emit(op.reshape(self.taps, (groups, depth, own, count)))
            if np.any(places == count):
                zero = fill.flat[0].item()
                taps = block.emit(op.nn.pad(taps, [0, 0, 0, 0, 0, 0, 0, 1], pad_value=zero))
            if not np.array_equal(places.reshape(-1), np.arange(count)):
                indices = relax.const(places.reshape(-1).astype(np.int32))
                taps = block.emit(op.take(taps, indices, axis=3, mode="clip"))
            parts = block.emit(op.reshape(taps, (groups, depth, own, *places.shape)))
            taps = block.emit(op.reshape(block.emit(op.permute_dims(parts, _ORDER)), result))
        if self.quantized is None:
            return taps
        quantization, dtype = self.quantized.quantization, self.quantized.dtype
        scale, zero_point = (
            repeated(block, each, 1, groups * phases * repeats)
            for each in (quantization.scale, quantization.zero_point)
        )
        return block.emit(op.dequantize(taps, scale, zero_point, len(result) - 1, dtype))

    def part(self, block: Bindings, x: relax.Expr, windows: tuple[Window, ...]) -> relax.Expr:
        """One ordinary convolution or matrix product; not bound yet."""
        if self.groups == 1 and all(window.pointwise for window in windows):
            return relax.op.matmul(x, self.weight(block, windows, matrix=True))
        axes = range(1, 1 + len(windows))
        starts = [max(0, -window.before) for window in windows]
        left_out = [max(0, -window.after) for window in windows]
        if any((*starts, *left_out)):  # only for static extents
            ends = [axis.extent - n for axis, n in zip(self.axes, left_out, strict=True)]
            x = block.emit(relax.op.strided_slice(x, list(axes), starts, ends))
        _, spatial, operator = OPERATORS[self.operator]
        margins = [*(w.before for w in windows), *(w.after for w in windows)]
        return operator(
            x,
            self.weight(block, windows),
            padding=[max(0, margin) for margin in margins],
            dilation=[window.dilation for window in windows],
            groups=self.groups,
            data_layout=f"N{spatial}C",
            kernel_layout=f"{spatial}IO",
            out_layout=f"N{spatial}C",
            out_dtype=self.dtype,
        )


def read_conv_transpose(graph: DataflowGraph, call: relax.Expr) -> TransposedConv | None:
    """Reads a call as a transposed convolution; None if ordinary convolutions cannot compute it."""
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
    if output.dtype == "int32":  # 8-bit integers minus their zero points
        known, x8 = known_integers(graph, call.args[1]), widened_bytes(graph, call.args[0])
        if known is None or x8 is None or np.abs(known).max(initial=0) > 255:
            return None
        found = relax.const(known.astype(np.int32)), None
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
            more=output.shape[first + axis] + x.shape[first + axis] * -int(attrs.strides[axis]),
        )
        for axis in range(rank)
    )
    if any(is_dynamic((axis.more,)) for axis in axes):
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
    for windows in (*conv.form().parts, conv.together):
        for each, window in zip(axes, windows, strict=True):
            # Removed positions must leave something of x; for a dynamic extent that is unknown.
            removed = min(0, window.before) + min(0, window.after)
            if removed and (is_dynamic((each.extent,)) or each.extent + removed <= 0):
                return None
    return conv


def _weight(graph: DataflowGraph, expr: relax.Expr) -> tuple[relax.Expr, Quantized | None] | None:
    """A weight and None, or a dequantised weight's integers and quantisation; else None."""
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
    # A single zero point, with which the weight can be padded.
    return (quantized.data, quantized) if known_tensor(zero_point).size == 1 else None
