"""Reads values of a block as operators: elementwise ones, casts, permutations, slices and pads.

Before

    y[v_i, v_j] = T.max(x[v_j, v_i] + b[v_j], T.float32(0))

After

    lv = R.permute_dims(x, [1, 0])
    lv1 = R.add(lv, b)
    lv2 = R.nn.relu(lv1)

What is read from a tensor may be permuted, cut, reversed, repeated or padded.

Before

    ... x[v_j, v_i * 2 + 1] ...                                     # of the axes v_i, v_j
    ... T.if_then_else(1 <= v_i and v_i < 5, y[v_i - 1], 0) ...

After

    lv = R.strided_slice(x, axes=[1], begin=[1], end=[8], strides=[2])
    lv1 = R.permute_dims(lv, [1, 0])
    lv2 = R.nn.pad(y, [1, 1])

An index is an axis of the block, a number, or a multiple of an axis plus a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, relax, te, tirx, topi
from tvm.ir.expr import TensorLoad
from tvm.sym import detect_linear_equation
from tvm.target.codegen import llvm_get_intrinsic_name

from microkernels.vector.expressions import Expr
from relay_passes.ir.axes import AxisView
from relay_passes.ir.constants import array_of
from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import is_call, known_tensor, size_of
from tir_schedules.core.size import is_dynamic, quotient
from tir_schedules.generic.expressions import call_name, const_int, substitute, variables_of
from tir_schedules.generic.nest import Axis, Nest, Store, analyzer_for, read_program
from tir_schedules.tensorize.arrangement import RefusedError

from .emission import Emission, Tensors


@dataclass(frozen=True)
class _Along:
    """An index `start` + `stride` * axis; a constant `start` if the axis is None."""

    axis: tirx.Var | None
    start: int
    stride: int = 1


_BINARY: dict[type, Callable[[relax.Expr, relax.Expr], relax.Expr]] = {
    tirx.Add: relax.op.add,
    tirx.Sub: relax.op.subtract,
    tirx.Mul: relax.op.multiply,
    tirx.Max: relax.op.maximum,
    tirx.Min: relax.op.minimum,
    tirx.EQ: relax.op.equal,
    tirx.NE: relax.op.not_equal,
    tirx.LT: relax.op.less,
    tirx.LE: relax.op.less_equal,
    tirx.GT: relax.op.greater,
    tirx.GE: relax.op.greater_equal,
    tirx.And: relax.op.logical_and,
    tirx.Or: relax.op.logical_or,
}
_CALLS: dict[str, Callable[..., relax.Expr]] = {
    **{name: getattr(relax.op, name) for name in ("exp", "log", "erf", "tanh", "sigmoid", "sqrt")},
    **{name: getattr(relax.op, name) for name in ("rsqrt", "floor", "ceil", "sin", "cos")},
    **{"fabs": relax.op.abs, "pow": relax.op.power},
}
_EXTREMES = {"llvm.maximum": relax.op.maximum, "llvm.minimum": relax.op.minimum}


class ValueReader:
    """Emits the values of a block as tensors; an axis of extent 1 need not occur in an index.

    Parameters
    ----------
    block : Emission
        Receives the operators.
    tensors : mapping
        The values of the buffers that are read.
    axes : sequence of Axis
        The axes of the block, in order.
    """

    def __init__(self, block: Emission, tensors: Tensors, axes: Sequence[Axis]) -> None:
        self._block = block
        self._tensors = tensors
        self._axes = list(axes)
        self._extents = {axis.var: axis.extent for axis in axes}

    def whole(self, value: Expr) -> relax.Expr:
        """A value as a tensor with an element for every point of the axes.

        Raises
        ------
        RefusedError
            If operators on tensors cannot compute it.
        """
        found = self.read(value)
        if list(known_tensor(found).shape) != [axis.extent for axis in self._axes]:
            shape = [axis.stated for axis in self._axes]
            found = self._emit(relax.op.broadcast_to(found, shape))
        return found

    def read(self, value: Expr) -> relax.Expr:
        """A value as a tensor that broadcasts to the axes, or as a number."""
        value = shown(value)
        dtype = str(value.ty.dtype)
        if isinstance(value, (tirx.FloatImm, tirx.IntImm)):
            return relax.const(value.value, dtype)
        if isinstance(value, TensorLoad):
            return self.load(value)
        if isinstance(value, tirx.Cast):
            return self._emit(relax.op.astype(self.read(value.value), dtype))
        if isinstance(value, tirx.Max) and _is_zero(value.a) and "float" in dtype:
            return self._emit(relax.op.nn.relu(self.read(value.b)))
        if isinstance(value, tirx.Div) and "float" in dtype:
            return self._quotient(value)
        if type(value) in _BINARY:
            return self._emit(_BINARY[type(value)](self.read(value.a), self.read(value.b)))
        if isinstance(value, tirx.Not):
            return self._emit(relax.op.logical_not(self.read(value.a)))
        if isinstance(value, tirx.Select):
            return self._choice(value.condition, value.true_value, value.false_value)
        name = call_name(value)
        if name == "if_then_else":
            condition, inside, outside = value.args
            padded = self.padded(condition, inside, outside)
            return self._choice(condition, inside, outside) if padded is None else padded
        if name in _CALLS:
            return self._emit(_CALLS[name](*map(self.read, value.args)))
        if name == "call_llvm_pure_intrin":
            called = str(llvm_get_intrinsic_name(int(value.args[0].value)))
            for prefix, operator in _EXTREMES.items():
                if called.startswith(prefix):
                    return self._emit(operator(*map(self.read, value.args[-2:])))
        raise RefusedError(f"a value that no operator computes: {name or type(value).__name__}")

    def _choice(self, condition: Expr, first: Expr, second: Expr) -> relax.Expr:
        return self._emit(relax.op.where(*map(self.read, (condition, first, second))))

    def _quotient(self, value: tirx.Div) -> relax.Expr:
        """A division; a sum divided by the number of its elements is a mean."""
        total, count = self.read(value.a), self.read(value.b)
        divisor, mean = shown(value.b), None
        if isinstance(value.a, TensorLoad) and isinstance(divisor, tirx.FloatImm):
            mean = self._mean(total, float(divisor.value))
        return self._emit(relax.op.divide(total, count)) if mean is None else mean

    def _mean(self, total: relax.Expr, count: float) -> relax.Expr | None:
        """A sum divided by a number, as a mean if it has that many elements; else None."""
        moves: list[relax.Call] = []
        call = self._block.definition(total)
        while is_call(call, "relax.reshape", "relax.permute_dims"):
            moves.insert(0, call)
            call = self._block.definition(call.args[0])
        if not is_call(call, "relax.sum"):
            return None
        elements = quotient(known_tensor(call.args[0]).size, known_tensor(call).size)
        if elements is None or is_dynamic([elements]) or elements != count:
            return None
        axes = [int(axis) for axis in call.attrs.axis]
        mean = self._emit(relax.op.mean(call.args[0], axes, bool(call.attrs.keepdims)))
        for move in moves:
            mean = self._emit(with_args(move, [mean, *move.args[1:]]))
        return mean

    def load(self, load: TensorLoad) -> relax.Expr:
        """The part of a tensor that a load reads, with the block's axes but for leading ones.

        Raises
        ------
        RefusedError
            If operators cannot extract it.
        """
        if load.source not in self._tensors:
            raise RefusedError(f"it reads {load.source.name}, which is not written yet")
        source = self._tensors[load.source]
        shape = known_tensor(source).shape
        found = [self._along(index) for index in load.indices]
        source = self._sliced(source, shape, found)
        return self._viewed(source, [along.axis for along in found])

    def padded(self, condition: Expr, inside: Expr, outside: Expr) -> relax.Expr | None:
        """A tensor with padding around it; None if the choice is anything else."""
        number = shown(outside)
        inside = shown(inside)
        if not isinstance(inside, TensorLoad) or inside.source not in self._tensors:
            return None
        if not isinstance(number, (tirx.FloatImm, tirx.IntImm)):
            return None
        bounds = _bounds(condition, set(self._extents))
        if bounds is None:
            return None
        source = self._tensors[inside.source]
        widths: list[int] = []
        axes: list[tirx.Var | None] = []
        for index, extent in zip(inside.indices, known_tensor(source).shape, strict=True):
            along = self._along(index)
            if along.axis is None or along.stride != 1:
                if (along.start, extent) != (0, 1):
                    return None
                widths += [0, 0]
            else:
                low, high = bounds.pop(along.axis, (None, None))
                total = self._extents[along.axis]
                low, high = max(low or 0, 0), total if high is None else high
                if not is_dynamic([high, total]):
                    high = min(high, total)
                behind = total + -1 * high
                if (low, high) != (-along.start, extent + -1 * along.start):
                    return None
                if is_dynamic([behind]) or behind < 0:
                    return None
                widths += [low, behind]
            axes.append(along.axis)
        if bounds:
            return None
        padded = relax.op.nn.pad(source, widths, "constant", number.value)
        return self._viewed(self._emit(padded), axes)

    def _emit(self, expr: relax.Expr) -> relax.Expr:
        return self._block.emit(expr) if isinstance(expr, relax.Call) else expr

    def _viewed(self, source: relax.Expr, axes: Sequence[tirx.Var | None]) -> relax.Expr:
        """A tensor with these axes, permuted to all axes of the block in order."""
        used = [axis for axis in axes if axis is not None]
        if len(set(used)) < len(used):
            raise RefusedError("a diagonal")
        shape = known_tensor(source).shape
        units = [place for place, axis in enumerate(axes) if axis is None and shape[place] == 1]
        order: list[int | None] = []
        for axis in self._axes:  # an axis of extent 1 takes a dimension of extent 1
            place = axes.index(axis.var) if axis.var in used else None
            order.append(units.pop(0) if place is None and axis.extent == 1 and units else place)
        view = AxisView(source, shape, tuple(order))
        if view.shape == view.source_shape and not view.moves:
            return source
        given = [place for place, axis in enumerate(order) if axis is not None]
        start = given[0] if given else len(order)  # leading new axes broadcast implicitly
        return self._emit(AxisView(source, shape, tuple(order[start:])).emit(self._block))

    def _along(self, index: Expr) -> _Along:
        number = const_int(index)
        if number is not None:
            return _Along(None, number)
        inside = [axis.var for axis in self._axes if axis.var in variables_of(index)]
        if isinstance(index, tirx.Var) and inside:
            return _Along(index, 0)
        if len(inside) == 1 and variables_of(index) == set(inside):
            found = [const_int(x) for x in detect_linear_equation(index, inside)]
            if len(found) == 2 and found[0] and found[1] is not None:
                return _Along(inside[0], found[1], found[0])
        raise RefusedError("an index that is not linear in one axis")

    def _sliced(
        self, source: relax.Expr, shape: Sequence[int], found: Sequence[_Along]
    ) -> relax.Expr:
        """The part of a tensor that the indices reach, reversed for negative strides."""
        cut, flipped = [], []
        for dimension, (along, extent) in enumerate(zip(found, shape, strict=True)):
            count = 1 if along.axis is None else self._extents[along.axis]
            if count == extent and (along.start, along.stride) == (0, 1):
                continue
            if is_dynamic([count, extent]) and along.axis is not None:
                raise RefusedError("a part of a tensor of dynamic size")
            ends = (along.start, along.start + along.stride * (count - 1))
            if min(ends) < 0 or max(ends) >= extent:
                raise RefusedError("an index outside of a tensor")
            if along.stride < 0:
                flipped.append(dimension)
            if count != extent:
                cut.append((dimension, min(ends), max(ends) + 1, abs(along.stride)))
        if isinstance(source, ir.GenericConst) and (cut or flipped):
            return _cut(source, cut, flipped)
        if cut:
            axes, begins, ends_, strides = map(list, zip(*cut, strict=True))
            source = self._emit(relax.op.strided_slice(source, axes, begins, ends_, strides))
        for dimension in flipped:
            source = self._emit(relax.op.flip(source, dimension))
        return source


def _cut(
    constant: ir.GenericConst, cut: Sequence[tuple[int, int, int, int]], flipped: Sequence[int]
) -> relax.Expr:
    """A part of a constant: (dimension, first, end, stride) each; some dimensions reversed."""
    array = array_of(constant.value)
    places = [slice(None)] * array.ndim
    for dimension, first, end, stride in cut:
        places[dimension] = slice(first, end, stride)
    found = np.flip(array[tuple(places)], tuple(flipped))
    return relax.const(np.ascontiguousarray(found), str(constant.ty.dtype))


def _bounds(
    condition: Expr, axes: set[tirx.Var]
) -> dict[tirx.Var, tuple[int | None, int | None]] | None:
    """(first, end) of each axis that a condition bounds; None for any other condition."""
    bounds: dict[tirx.Var, tuple[int | None, int | None]] = {}
    waiting = [condition]
    while waiting:
        part = shown(waiting.pop())
        if isinstance(part, tirx.And):
            waiting += [part.a, part.b]
            continue
        if not isinstance(part, (tirx.LE, tirx.LT, tirx.GE, tirx.GT)):
            return None
        smaller, larger = part.a, part.b
        if isinstance(part, (tirx.GE, tirx.GT)):
            smaller, larger = larger, smaller
        strict = isinstance(part, (tirx.LT, tirx.GT))
        lower = const_int(smaller)
        if lower is not None and isinstance(larger, tirx.Var):
            first, last = bounds.get(larger, (None, None))
            bounds[larger] = (max(first or 0, lower + strict), last)
        elif isinstance(smaller, tirx.Var) and not variables_of(larger) & axes:
            end = size_of(larger) + (0 if strict else 1)
            first, last = bounds.get(smaller, (None, None))
            if last is not None and is_dynamic([last, end]):
                return None
            bounds[smaller] = (first, end if last is None else min(last, end))
        else:
            return None
    return bounds


def shown(value: Expr) -> Expr:
    """A value without the calls that hide it from TVM's simplifier.

    See `microkernels.vector.ieee.hidden`.

    Parameters
    ----------
    value : Expr
        A value of a block from `read_program`.
    """
    while call_name(value) == "reinterpret" and call_name(value.args[0]) == "reinterpret":
        inner = value.args[0].args[0]
        if inner.ty.dtype != value.ty.dtype:
            return value
        value = inner
    return value


def block_axes(store: Store, nest: Nest) -> list[Axis]:
    """The axes of a block in the order of the dimensions that it stores.

    A dimension of extent 1 gets a new axis.

    Raises
    ------
    RefusedError
        If it does not store the whole tensor, in order.
    """
    by_var = {axis.var: axis for axis in nest.spatial}
    axes = []
    for index, extent in zip(store.indices, store.buffer.shape, strict=True):
        axis = by_var.pop(index, None) if isinstance(index, tirx.Var) else None
        if axis is None and const_int(index) == 0 and const_int(extent) == 1:
            axis = Axis.new(1)
        if axis is None or axis.extent != nest.size(extent):
            raise RefusedError("it stores only a part of a tensor")
        axes.append(axis)
    if by_var:
        raise RefusedError("a tensor is stored several times")
    return axes


def read_block(block: Emission, tensors: Tensors, nest: Nest) -> relax.Expr:
    """Emits the value of a block without a reduction.

    Raises
    ------
    RefusedError
        If no operators compute it; the message says why.
    """
    if nest.reduce or len(nest.stores) != 1 or nest.lets:
        raise RefusedError("a block of several values")
    axes = block_axes(nest.stores[0], nest)
    reshaped, value = read_reshape(block, tensors, nest, axes), nest.stores[0].value
    return ValueReader(block, tensors, axes).whole(value) if reshaped is None else reshaped


def _is_zero(value: Expr) -> bool:
    number = shown(value)
    return isinstance(number, tirx.FloatImm) and float(number.value) == 0


def read_reshape(
    block: Emission, tensors: Tensors, nest: Nest, axes: Sequence[Axis]
) -> relax.Expr | None:
    """Reads a block that copies a tensor's elements in storage order as a reshape.

    Before

        y[v_i] = x[v_i // 32, v_i % 32]

    After

        lv = R.reshape(x, [1024])

    Indices with dynamic sizes are proved to be those of a reshape by arithmetic, or by comparison
    with the indices that TVM writes for that reshape.

    Returns None if the block is no reshape.

    Parameters
    ----------
    block : Emission
        Receives the operator.
    tensors : mapping
        The values of the buffers.
    nest : Nest
        The block, which must have one store.
    axes : sequence of Axis
        The block's axes, in the order of the dimensions that it stores.
    """
    store = nest.stores[0]
    load = shown(store.value)
    if not isinstance(load, TensorLoad) or load.source not in tensors:
        return None
    source = tensors[load.source]
    before, after = known_tensor(source).shape, [axis.extent for axis in axes]
    if math.prod(before) != math.prod(after) or list(before) == after:
        return None
    read = _flat(load.indices, load.source.shape)
    written = _flat(store.indices, store.buffer.shape)
    analyzer = analyzer_for(axes)
    if (
        const_int(analyzer.simplify(read - written)) == 0
        or analyzer.can_prove_equal(read, written)
        or (is_dynamic([*before, *after]) and _as_tvm_writes_it(load, nest, store))
    ):
        return block.emit(relax.op.reshape(source, [axis.stated for axis in axes]))
    return None


def _flat(indices: Sequence[Expr], shape: Sequence[Any]) -> Expr:
    place: Expr = tirx.const(0, "int64")
    for index, extent in zip(indices, shape, strict=True):
        place = place * extent + index
    return place


def _as_tvm_writes_it(load: TensorLoad, nest: Nest, store: Store) -> bool:
    """Whether TVM's reshape of these shapes reads each element at the load's indices."""
    source = te.placeholder(list(load.source.shape), str(load.ty.dtype), "source")
    made = te.create_prim_func([source, topi.reshape(source, list(store.buffer.shape))])
    (other,) = read_program(made, nest.size).nests
    (written,) = other.stores
    theirs = shown(written.value)
    if not isinstance(theirs, TensorLoad):
        return False
    pairs = zip(written.indices, store.indices, strict=True)
    axes = {their: mine for their, mine in pairs if isinstance(their, tirx.Var)}
    wanted = [substitute(index, axes) for index in theirs.indices]
    return all(map(tvm_ffi.structural_equal, wanted, load.indices))
