"""Reads blocks that are a transposed convolution together, as TVM legalises one.

Before

    spread[n, c, i, j] = T.if_then_else(i % 2 == 0 and j % 2 == 0, x[n, c, i // 2, j // 2], 0)
    padded[n, c, i, j] = ...                                    # zeros around it
    y[n, f, i, j] += padded[n, c, i + u, j + v] * w[f, c, u, v]

After

    gv = R.nn.conv2d_transpose(x, w', strides=[2, 2])           # w'[c, f, u, v] = w[f, c, -u, -v]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax, tirx
from tvm.ir.expr import TensorLoad

from microkernels.vector.expressions import Expr
from relay_passes.ir.constants import array_of
from relay_passes.ir.graph import is_call
from tir_schedules.generic.expressions import call_name, const_int
from tir_schedules.generic.nest import Nest
from tir_schedules.tensorize.contraction import RefusedError

from .emission import Emission
from .tir_convolution import Convolution, check_shape, match_convolution
from .tir_elements import Tensors, shown
from .tir_values import block_axes, read_block

_OPERATORS = {1: relax.op.nn.conv1d_transpose, 2: relax.op.nn.conv2d_transpose}


@dataclass(frozen=True)
class Transposed:
    """Blocks that are one transposed convolution.

    Attributes
    ----------
    source : tirx.Var
        What is convolved.
    strides : tuple of int
        How far its elements are spread, for each of its dimensions.
    widths : tuple of int
        Zeros before and after each dimension.
    convolution : Convolution
        The ordinary convolution of what is spread.
    members : tuple of int
        The blocks that spread and pad.
    """

    source: tirx.Var
    strides: tuple[int, ...]
    widths: tuple[int, ...]
    convolution: Convolution
    members: tuple[int, ...]


def find_transposed(nests: Sequence[Nest]) -> dict[int, Transposed]:
    """The transposed convolutions of a function, by the position of their last block."""
    found: dict[int, Transposed] = {}
    for first, nest in enumerate(nests):
        spread = _spread(nest)
        if spread is None:
            continue
        padding = _only_reader(nests, first)
        if padding is None:
            continue
        widths = _widths(nests[padding])
        last = _only_reader(nests, padding)
        if widths is None or last is None:
            continue
        try:
            conv = match_convolution(nests[last])
        except RefusedError:
            continue
        if conv.data.same_as(nests[padding].stores[0].buffer):
            source, strides = spread
            found[last] = Transposed(source, strides, widths, conv, (first, padding))
    return found


def read_transposed(block: Emission, tensors: Tensors, found: Transposed) -> relax.Expr:
    """Emits a transposed convolution.

    Raises
    ------
    RefusedError
        If R.nn has none like it; says why.
    """
    conv = found.convolution
    count = len(conv.windows)
    weight = tensors.get(conv.weight)
    plain = all((window.stride, window.dilation) == (1, 1) for window in conv.windows)
    first = conv.data_layout.startswith("NC") and conv.weight_layout.startswith("OI")
    if not plain or not first or count not in _OPERATORS or found.source not in tensors:
        raise RefusedError("a transposed convolution of another kind")
    if not isinstance(weight, ir.GenericConst) or conv.dtype != "float32":
        raise RefusedError("a transposed convolution with a weight that is no constant of float32")
    if set(found.strides[:2]) != {1} or any(found.widths[:4]):
        raise RefusedError("batches or channels that are spread")
    before, after, further = [], [], []
    for axis, window in enumerate(conv.windows, 2):
        start, end = found.widths[2 * axis : 2 * axis + 2]
        before.append(window.taps - 1 - start)
        after.append(max(0, window.taps - 1 - end))
        further.append(end - (window.taps - 1 - after[-1]))
    small = all(more < stride for more, stride in zip(further, found.strides[2:], strict=True))
    if min(before) < 0 or not small:
        raise RefusedError("more zeros around it than a transposed convolution has")
    result = block.emit(
        _OPERATORS[count](
            tensors[found.source],
            _transposed(weight, conv.groups),
            strides=list(found.strides[2:]),
            padding=[*before, *after],
            output_padding=further,
            groups=conv.groups,
            data_layout=conv.data_layout,
            kernel_layout=f"IO{conv.spatial}",
            out_layout=conv.data_layout,
            out_dtype=conv.dtype,
        )
    )
    check_shape(result, conv.out)
    return result


def _transposed(weight: ir.GenericConst, groups: int) -> relax.Expr:
    """[O, I / groups, ...] as [I, O / groups, ...], backwards along the others."""
    array = array_of(weight.value)
    outputs, inputs, *taps = array.shape
    apart = array.reshape(groups, outputs // groups, inputs, *taps).swapaxes(1, 2)
    turned = apart.reshape(groups * inputs, outputs // groups, *taps)
    spatial = tuple(range(2, turned.ndim))
    return relax.const(np.ascontiguousarray(np.flip(turned, spatial)), str(weight.ty.dtype))


def _spread(nest: Nest) -> tuple[tirx.Var, tuple[int, ...]] | None:
    """(source, distance of its elements along each dimension) of a block that spreads a tensor."""
    if nest.reduce or len(nest.stores) != 1 or nest.lets:
        return None
    store = nest.stores[0]
    choice = shown(store.value)
    if call_name(choice) != "if_then_else":
        return None
    condition, inside, outside = (shown(arg) for arg in choice.args)
    zero = isinstance(outside, tirx.FloatImm) and float(outside.value) == 0
    if not zero or not isinstance(inside, TensorLoad):
        return None
    try:
        axes = [axis.var for axis in block_axes(store, nest)]
    except RefusedError:
        return None
    strides = []
    places = zip(axes, inside.indices, inside.source.shape, store.buffer.shape, strict=True)
    divided: dict[tirx.Var, int] = {}
    for axis, index, before, after in places:
        stride = 1
        if isinstance(index, tirx.FloorDiv) and index.a.same_as(axis):
            stride = const_int(index.b) or 0
            divided[axis] = stride
        elif not index.same_as(axis) and not (const_int(index) == 0 and const_int(after) == 1):
            return None
        if stride < 1 or int(after) != (int(before) - 1) * stride + 1:
            return None
        strides.append(stride)
    return (inside.source, tuple(strides)) if _multiples(condition) == divided else None


def _multiples(condition: Expr) -> dict[tirx.Var, int] | None:
    """For each axis of which it must be a multiple; None of another condition."""
    if isinstance(condition, tirx.And):
        left, right = _multiples(condition.a), _multiples(condition.b)
        return None if left is None or right is None else {**left, **right}
    if not isinstance(condition, tirx.EQ) or const_int(condition.b) != 0:
        return None
    rest = condition.a
    if not isinstance(rest, tirx.FloorMod) or not isinstance(rest.a, tirx.Var):
        return None
    divisor = const_int(rest.b)
    return None if divisor is None else {rest.a: divisor}


def _only_reader(nests: Sequence[Nest], position: int) -> int | None:
    """The only block that reads what one writes."""
    buffer = nests[position].stores[0].buffer
    readers = [
        number
        for number, nest in enumerate(nests)
        if number != position and any(load.source.same_as(buffer) for load in nest.reads())
    ]
    return readers[0] if len(readers) == 1 and readers[0] > position else None


def _widths(nest: Nest) -> tuple[int, ...] | None:
    """Zeros that a block puts around a tensor, before and after each dimension."""
    sources = {load.source for load in nest.reads()}
    if len(sources) != 1:
        return None
    (source,) = sources
    shape = [int(extent) for extent in source.shape]
    scratch, tensor = Emission(), relax.Var("x", relax.TensorType(shape, str(source.dtype)))
    try:
        value = read_block(scratch, {source: tensor}, nest)
    except RefusedError:
        return None
    if value.same_as(tensor):
        return (0,) * (2 * len(shape))
    call = scratch.definition(value)
    if not is_call(call, "relax.nn.pad") or not call.args[0].same_as(tensor):
        return None
    number = call.attrs.pad_value
    return tuple(map(int, call.attrs.pad_width)) if float(number) == 0 else None
