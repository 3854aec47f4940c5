"""Pools and transposed convolutions: reads loops over windows of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.ir.expr import TensorLoad

from microkernels.vector.expressions import Expr
from relay_passes.ir.constants import array_of
from relay_passes.ir.graph import is_call, size_of
from relay_passes.ir.rewrite import is_kernel
from tir_schedules.core.size import is_dynamic
from tir_schedules.generic.expressions import call_name, const_int, substitute, variables_of
from tir_schedules.generic.nest import Nest, read_program
from tir_schedules.tensorize.arrangement import RefusedError

from .emission import Emission, Tensors, widened
from .tir_contraction import in_caller_sizes, narrowed
from .tir_convolution import SPATIAL, Convolution, check_shape, factor_of, match_convolution
from .tir_values import block_axes, read_block, shown


@dataclass(frozen=True)
class Padding:
    """A tensor with padding around it.

    Attributes
    ----------
    source : tirx.Var
        The padded tensor.
    widths : tuple of int
        Padding before and after each dimension.
    number : float
        The padded number; 0 if there is no padding.
    """

    source: tirx.Var
    widths: tuple[int, ...]
    number: float


def padding_of(nest: Nest) -> Padding | None:
    """The padding that a block adds to a tensor; None if it does anything else."""
    sources = {load.source for load in nest.reads()}
    if len(sources) != 1:
        return None
    (source,) = sources
    shape = list(source.shape)
    scratch, tensor = Emission(), relax.Var("x", relax.TensorType(shape, str(source.dtype)))
    try:
        value = read_block(scratch, Tensors({source: tensor}), nest)
    except RefusedError:
        return None
    if value.same_as(tensor):
        return Padding(source, (0,) * (2 * len(shape)), 0.0)
    call = scratch.definition(value)
    if not is_call(call, "relax.nn.pad") or not call.args[0].same_as(tensor):
        return None
    return Padding(source, tuple(map(int, call.attrs.pad_width)), float(call.attrs.pad_value))


def only_reader(nests: Sequence[Nest], position: int) -> int | None:
    """The only block that reads the buffer of a block, if it comes later; else None."""
    buffer = nests[position].stores[0].buffer
    readers = [
        number
        for number, nest in enumerate(nests)
        if number != position and any(load.source.same_as(buffer) for load in nest.reads())
    ]
    return readers[0] if len(readers) == 1 and readers[0] > position else None


# Reads several blocks as one pool.
#
# Before
#
#     padded[n, c, i, j] = T.if_then_else(..., x[n, c, i - 1, j - 1], T.float32(-3.4028235e38))
#     y[n, c, i, j] = T.max(y[n, c, i, j], padded[n, c, i * 2 + u, j * 2 + v])
#
# After
#
#     gv = R.nn.max_pool2d(x, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1])
#
# The attributes are read from the indices. They are right if TVM legalises the operator to exactly
# these blocks; that is easier to check than the number by which a mean divides a sum.


_OPERATORS: dict[Any, dict[int, Callable[..., relax.Expr]]] = {
    tirx.Max: {rank: getattr(relax.op.nn, f"max_pool{rank}d") for rank in (1, 2, 3)},
    tirx.Add: {rank: getattr(relax.op.nn, f"avg_pool{rank}d") for rank in (1, 2, 3)},
}


@dataclass(frozen=True)
class Pool:
    """Blocks that may be one pool.

    Attributes
    ----------
    source : tirx.Var
        The tensor that is pooled.
    nests : tuple of Nest
        All blocks, in order.
    members : tuple of int
        Positions of the blocks before the last one.
    kind : type
        tirx.Max, or tirx.Add for a mean.
    padding : tuple of int
        Padding before and after each dimension.
    load : TensorLoad
        The load that is reduced.
    """

    source: tirx.Var
    nests: tuple[Nest, ...]
    members: tuple[int, ...]
    kind: type
    padding: tuple[int, ...]
    load: TensorLoad


def find_pools(nests: Sequence[Nest]) -> dict[int, Pool]:
    """The pools of a function, by the position of their last block."""
    found: dict[int, Pool] = {}
    writers = {store.buffer: number for number, nest in enumerate(nests) for store in nest.stores}
    for number, nest in enumerate(nests):
        read = _reduced(nest)
        if read is None:
            continue
        kind, load = read
        source, members = load.source, [number]
        widths: tuple[int, ...] = (0,) * (2 * len(load.indices))
        before = writers.get(source)
        around = None if before is None else padding_of(nests[before])
        if before is not None and around is not None and only_reader(nests, before) == number:
            source, widths = around.source, around.widths
            members.insert(0, before)
        if kind is tirx.Add:
            divided = only_reader(nests, number)
            if divided is None or nests[divided].reduce:
                continue
            members.append(divided)
        blocks = tuple(nests[member] for member in members)
        found[members[-1]] = Pool(source, blocks, tuple(members[:-1]), kind, widths, load)
    return found


def read_pool(block: Emission, tensors: Tensors, pool: Pool) -> relax.Expr:
    """Emits a pool.

    Raises
    ------
    RefusedError
        If TVM has no pool that is legalised to these blocks.
    """
    x = tensors[pool.source]
    for attrs in _guesses(pool):
        operator = _OPERATORS[pool.kind][len(attrs["pool_size"])]
        if _is_written_as(partial(operator, **attrs), relax.Var("x", x.ty), pool):
            return block.emit(operator(x, **attrs))
    raise RefusedError("a pool that no operator computes")


def _reduced(nest: Nest) -> tuple[type, TensorLoad] | None:
    """The operator and the load of a block that reduces over windows; None for any other block."""
    if not nest.reduce or len(nest.stores) != 1 or nest.lets or nest.epilogue:
        return None
    store = nest.stores[0]
    kind = type(store.value)
    if kind not in _OPERATORS:
        return None
    sides = [shown(side) for side in (store.value.a, store.value.b)]
    loads = [side for side in sides if isinstance(side, TensorLoad)]
    others = [load for load in loads if not load.source.same_as(store.buffer)]
    if len(others) != 1 or len(others[0].indices) != len(store.indices):
        return None
    reduced = {axis.var for axis in nest.reduce}
    windows = [index for index in others[0].indices if variables_of(index) & reduced]
    plain = all(isinstance(index, tirx.Var) for index in windows)
    return None if plain else (kind, others[0])


def _guesses(pool: Pool) -> Iterator[dict[str, Any]]:
    """Attributes with which TVM may have made the blocks."""
    nest = pool.nests[-1 if pool.kind is tirx.Max else -2]
    indices, out = pool.load.indices, nest.stores[0].indices
    spatial = SPATIAL.get(len(indices) - 2)
    if spatial is None:
        return
    for layout in (f"NC{spatial}", f"N{spatial}C"):
        places = [layout.index(letter) for letter in spatial]
        windows = [_window(indices[place], out[place], nest) for place in places]
        known = [window for window in windows if window is not None]
        if len(known) < len(windows):
            continue
        sizes, strides, dilation = map(list, zip(*known, strict=True))
        before = [pool.padding[2 * place] for place in places]
        after = [pool.padding[2 * place + 1] for place in places]
        for padding, ceil in (([*before, *after], False), ([*before, *before], True)):
            for counted in (False, True) if pool.kind is tirx.Add else (False,):
                yield {
                    "pool_size": sizes,
                    "strides": strides,
                    "padding": padding,
                    "dilation": dilation,
                    "ceil_mode": ceil,
                    "count_include_pad": counted,
                    "layout": layout,
                    "out_layout": layout,
                }


def _window(index: Expr, place: Expr, nest: Nest) -> tuple[int, int, int] | None:
    """(taps, stride, dilation) along an axis; None if the index has another form."""
    inside = [axis for axis in nest.reduce if axis.var in variables_of(index)]
    stride = factor_of(index, place)
    if len(inside) > 1 or stride is None:
        return None
    if not inside:
        return 1, stride or 1, 1
    dilation = factor_of(index, inside[0].var)
    return None if not dilation else (inside[0].extent, stride or 1, dilation)


def _is_written_as(operator: Callable[..., relax.Expr], x: relax.Var, pool: Pool) -> bool:
    """Whether TVM legalises an operator to the blocks of a pool."""
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(operator(x)))
        builder.emit_func_output(result)
    written = relax.transform.LegalizeOps()(builder.get())
    (function,) = filter(is_kernel, written.functions.values())
    call = written["main"].body.blocks[0].bindings[0].value
    function, _ = in_caller_sizes(function, list(call.args[1].fields), [result.ty])
    theirs = read_program(function, size_of).nests
    if len(theirs) != len(pool.nests):
        return False
    same: dict[tirx.Var, Expr] = {function.params[0]: pool.source}
    return all(_is_same(one, other, same) for one, other in zip(theirs, pool.nests, strict=True))


def _is_same(theirs: Nest, mine: Nest, same: dict[tirx.Var, Expr]) -> bool:
    """Whether two blocks are equal; `same` maps variables of the first to the second, and grows."""
    pairs = (theirs.spatial, mine.spatial), (theirs.reduce, mine.reduce)
    if any([a.extent for a in x] != [a.extent for a in y] for x, y in pairs):
        return False
    same |= {a.var: b.var for a, b in zip(theirs.axes(), mine.axes(), strict=True)}
    (their,), (own,) = theirs.stores, mine.stores
    if [*map(theirs.size, their.buffer.shape)] != [*map(mine.size, own.buffer.shape)]:
        return False
    same[their.buffer] = own.buffer
    parts, wanted = (
        [*store.indices, store.value, *([] if store.init is None else [store.init])]
        for store in (their, own)
    )
    equal = map(tvm_ffi.structural_equal, (substitute(part, same) for part in parts), wanted)
    return len(parts) == len(wanted) and all(equal)


# Reads several blocks as one transposed convolution, in the form of TVM's legalisation.
#
# Before
#
#     spread[n, c, i, j] = T.if_then_else(i % 2 == 0 and j % 2 == 0, x[n, c, i // 2, j // 2], 0)
#     padded[n, c, i, j] = ...                                    # zeros around it
#     y[n, f, i, j] += padded[n, c, i + u, j + v] * w[f, c, u, v]
#
# After
#
#     gv = R.nn.conv2d_transpose(x, w', strides=[2, 2])           # w'[c, f, u, v] = w[f, c, -u, -v]


_TRANSPOSED = {rank: getattr(relax.op.nn, f"conv{rank}d_transpose") for rank in (1, 2, 3)}
_MOST = 255  # largest distance of an 8-bit weight from its zero point


@dataclass(frozen=True)
class Transposed:
    """Blocks that form one transposed convolution.

    Attributes
    ----------
    source : tirx.Var
        The tensor that is convolved.
    strides : tuple of int
        The distance of its elements after spreading, for each dimension.
    widths : tuple of int
        Zeros before and after each dimension.
    convolution : Convolution
        The ordinary convolution of the spread tensor.
    members : tuple of int
        Positions of the blocks that spread and pad.
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
        around, last = padding_of(nests[padding]), only_reader(nests, padding)
        if around is None or around.number != 0 or last is None:
            continue
        conv = _ordinary(nests[last])
        if conv is not None and conv.data.same_as(nests[padding].stores[0].buffer):
            found[last] = Transposed(*spread, around.widths, conv, (first, padding))
    return found


def read_transposed(block: Emission, tensors: Tensors, found: Transposed) -> relax.Expr:
    """Emits a transposed convolution.

    Raises
    ------
    RefusedError
        If R.nn has no such operator; the message says why.
    """
    conv = found.convolution
    count = len(conv.windows)
    narrow, tensors = narrowed(block, tensors)
    plain = all((window.stride, window.dilation) == (1, 1) for window in conv.windows)
    first = conv.data_layout.startswith("NC") and conv.weight_layout.startswith("OI")
    if not plain or not first or count not in _TRANSPOSED or found.source not in tensors:
        raise RefusedError("a transposed convolution in a form that no operator has")
    integers = conv.dtype == "int32"
    if conv.dtype not in ("float32", "int32") or (integers and found.source not in narrow):
        raise RefusedError(f"a transposed convolution of {conv.dtype}")
    weight = _turned(block, tensors.get(conv.weight), conv)
    if set(found.strides[:2]) != {1} or any(found.widths[:4]):
        raise RefusedError("batches or channels are spread or padded")
    before, after, further = [], [], []
    for axis, window in enumerate(conv.windows, 2):
        start, end = found.widths[2 * axis : 2 * axis + 2]
        before.append(window.taps - 1 - start)
        after.append(max(0, window.taps - 1 - end))
        further.append(end - (window.taps - 1 - after[-1]))
    if is_dynamic([*before, *after, *further]):
        raise RefusedError("the number of zeros around it is dynamic")
    small = all(more < stride for more, stride in zip(further, found.strides[2:], strict=True))
    if min(before) < 0 or not small:
        raise RefusedError("more zeros around it than a transposed convolution has")
    data = tensors[found.source]
    result = block.emit(
        _TRANSPOSED[count](
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
    """Reads a block as a convolution, of integers too; in groups, its weight may be transposed."""
    bytes_ = {load.source: "int8" for load in nest.reads() if str(load.ty.dtype) == "int32"}
    for turned in (False, True):
        try:
            return match_convolution(nest, bytes_, turned)
        except RefusedError:
            continue
    return None


def _turned(block: Emission, weight: relax.Expr | None, conv: Convolution) -> relax.Expr:
    """[O, I / groups, ...] as [I, O / groups, ...], with the spatial axes reversed."""
    known = weight
    if is_call(wide := None if known is None else block.definition(known), "relax.astype"):
        known = wide.args[0]
    if not isinstance(known, ir.GenericConst):
        raise RefusedError("a transposed convolution whose weight is not a constant")
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
    """(source, distance of elements per dimension) of a block that spreads a tensor; else None."""
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
    """The required divisor of each axis in a condition; None for any other condition."""
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
