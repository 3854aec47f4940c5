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
from tir_schedules.core.size import is_open
from tir_schedules.generic.expressions import call_name, const_int
from tir_schedules.generic.nest import Nest
from tir_schedules.tensorize.arrangement import RefusedError

from .emission import Emission
from .product import widened
from .tir_contraction import narrowed
from .tir_convolution import Convolution, check_shape, match_convolution
from .tir_elements import Tensors, shown
from .tir_values import block_axes, only_reader, padding_of

_OPERATORS = {
    1: relax.op.nn.conv1d_transpose,
    2: relax.op.nn.conv2d_transpose,
    3: relax.op.nn.conv3d_transpose,
}
_MOST = 255  # that a weight of 8-bit integers is away from its zero point


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
        padding = only_reader(nests, first)
        if padding is None:
            continue
        around = padding_of(nests[padding])
        last = only_reader(nests, padding)
        if around is None or around.number != 0 or last is None:
            continue
        widths = around.widths
        conv = _ordinary(nests[last])
        if conv is not None and conv.data.same_as(nests[padding].stores[0].buffer):
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
    narrow, tensors = narrowed(block, tensors)
    plain = all((window.stride, window.dilation) == (1, 1) for window in conv.windows)
    first = conv.data_layout.startswith("NC") and conv.weight_layout.startswith("OI")
    if not plain or not first or count not in _OPERATORS or found.source not in tensors:
        raise RefusedError("a transposed convolution of another kind")
    integers = conv.dtype == "int32"
    if conv.dtype not in ("float32", "int32") or (integers and found.source not in narrow):
        raise RefusedError(f"a transposed convolution of {conv.dtype}")
    weight = _turned(block, tensors.get(conv.weight), conv)
    if set(found.strides[:2]) != {1} or any(found.widths[:4]):
        raise RefusedError("batches or channels that are spread")
    before, after, further = [], [], []
    for axis, window in enumerate(conv.windows, 2):
        start, end = found.widths[2 * axis : 2 * axis + 2]
        before.append(window.taps - 1 - start)
        after.append(max(0, window.taps - 1 - end))
        further.append(end - (window.taps - 1 - after[-1]))
    if is_open([*before, *after, *further]):
        raise RefusedError("zeros around it whose number is not known")
    small = all(more < stride for more, stride in zip(further, found.strides[2:], strict=True))
    if min(before) < 0 or not small:
        raise RefusedError("more zeros around it than a transposed convolution has")
    data = tensors[found.source]
    result = block.emit(
        _OPERATORS[count](
            widened(block, data) if integers else data,
            widened(block, weight) if integers else weight,
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


def _ordinary(nest: Nest) -> Convolution | None:
    """The convolution that a block is, of any integers; with groups the weight is transposed."""
    bytes_ = {load.source: "int8" for load in nest.reads() if str(load.ty.dtype) == "int32"}
    for turned in (False, True):
        try:
            return match_convolution(nest, bytes_, turned)
        except RefusedError:
            continue
    return None


def _turned(block: Emission, weight: relax.Expr | None, conv: Convolution) -> relax.Expr:
    """[O, I / groups, ...] as [I, O / groups, ...], backwards along the others."""
    known = weight
    if is_call(wide := None if known is None else block.definition(known), "relax.astype"):
        known = wide.args[0]
    if not isinstance(known, ir.GenericConst):
        raise RefusedError("a transposed convolution with a weight that is no constant")
    array = array_of(known.value)
    if conv.turned:
        turned = array.swapaxes(0, 1)
    else:
        outputs, inputs, *taps = array.shape
        apart = array.reshape(conv.groups, outputs // conv.groups, inputs, *taps).swapaxes(1, 2)
        turned = apart.reshape(conv.groups * inputs, outputs // conv.groups, *taps)
    if conv.dtype == "int32" and np.abs(array.astype(np.int64)).max(initial=0) > _MOST:
        raise RefusedError("a transposed convolution of more than 8 bits")
    spatial = tuple(range(2, turned.ndim))
    return relax.const(np.ascontiguousarray(np.flip(turned, spatial)), str(known.ty.dtype))


def _spread(nest: Nest) -> tuple[tirx.Var, tuple[int, ...]] | None:
    """(source, distance of its elements along each dimension) of a block that spreads a tensor."""
    if nest.reduce or len(nest.stores) != 1 or nest.lets:
        return None
    store = nest.stores[0]
    choice = shown(store.value)
    if call_name(choice) != "if_then_else":
        return None
    condition, inside, outside = (shown(arg) for arg in choice.args)
    zero = isinstance(outside, (tirx.FloatImm, tirx.IntImm)) and float(outside.value) == 0
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
        sizes = nest.size(before), nest.size(after)
        if stride < 1 or sizes[0] is None or sizes[1] != (sizes[0] + -1) * stride + 1:
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
