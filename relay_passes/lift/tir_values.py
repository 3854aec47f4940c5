"""Reads values of a block as operators: elementwise ones, casts, permutations, slices and pads.

Before

    y[v_i, v_j] = T.max(x[v_j, v_i] + b[v_j], T.float32(0))

After

    lv = R.permute_dims(x, [1, 0])
    lv1 = R.add(lv, b)
    lv2 = R.nn.relu(lv1)

An index is an axis of the block, a number, or a multiple of an axis plus a number: a slice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax, tirx
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer, detect_linear_equation
from tvm.target.codegen import llvm_get_intrinsic_name

from microkernels.vector.expressions import Expr
from relay_passes.ir.axis_view import AxisView
from relay_passes.ir.constants import array_of
from relay_passes.ir.graph import is_call, known_tensor
from tir_schedules.generic.expressions import call_name, const_int, variables_of
from tir_schedules.generic.nest import Axis, Nest, Store, analyzer_for
from tir_schedules.tensorize.contraction import RefusedError

from .emission import Emission

Tensors = Mapping[tirx.Var, relax.Expr]
"""What the buffers of a function hold."""

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
    "exp": relax.op.exp,
    "log": relax.op.log,
    "erf": relax.op.erf,
    "tanh": relax.op.tanh,
    "sigmoid": relax.op.sigmoid,
    "sqrt": relax.op.sqrt,
    "rsqrt": relax.op.rsqrt,
    "fabs": relax.op.abs,
    "floor": relax.op.floor,
    "ceil": relax.op.ceil,
    "sin": relax.op.sin,
    "cos": relax.op.cos,
    "pow": relax.op.power,
}
_EXTREMES = {"llvm.maximum": relax.op.maximum, "llvm.minimum": relax.op.minimum}


@dataclass(frozen=True)
class _Along:
    """An index: `start` + `stride` * axis; of no axis if that is None."""

    axis: tirx.Var | None
    start: int
    stride: int = 1


class ValueReader:
    """Emits the values of a block as tensors.

    Parameters
    ----------
    block : Emission
        Receives the operators.
    tensors : mapping
        What the buffers hold that the values read.
    axes : sequence of Axis
        The axes of the tensors, in order; an axis of extent 1 may stand for none of the block.
    """

    def __init__(self, block: Emission, tensors: Tensors, axes: Sequence[Axis]) -> None:
        self._block = block
        self._tensors = tensors
        self._axes = list(axes)
        self._analyzer = analyzer_for(axes)
        self._extents = {axis.var: axis.extent for axis in axes}

    def whole(self, value: Expr) -> relax.Expr:
        """A value as a tensor with an element for every point of the axes.

        Raises
        ------
        RefusedError
            If it is something else than operators of tensors.
        """
        found = self.read(value)
        shape = [axis.extent for axis in self._axes]
        if list(known_tensor(found).shape) != shape:
            found = self._emit(relax.op.broadcast_to(found, shape))
        return found

    def read(self, value: Expr) -> relax.Expr:
        """The same, perhaps with 1 in the place of an extent, or a number."""
        value = shown(value)
        dtype = str(value.ty.dtype)
        if isinstance(value, (tirx.FloatImm, tirx.IntImm)):
            return relax.const(value.value, dtype)
        if isinstance(value, TensorLoad):
            return self._load(value)
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
            padded = self._padded(condition, inside, outside)
            return self._choice(condition, inside, outside) if padded is None else padded
        if name in _CALLS:
            return self._emit(_CALLS[name](*map(self.read, value.args)))
        if name == "call_llvm_pure_intrin":
            for prefix, operator in _EXTREMES.items():
                if _intrinsic(value).startswith(prefix):
                    return self._emit(operator(*map(self.read, value.args[-2:])))
        raise RefusedError(f"a value that no operator computes: {name or type(value).__name__}")

    def _emit(self, expr: relax.Expr) -> relax.Expr:
        return self._block.emit(expr) if isinstance(expr, relax.Call) else expr

    def _choice(self, condition: Expr, first: Expr, second: Expr) -> relax.Expr:
        return self._emit(relax.op.where(*map(self.read, (condition, first, second))))

    def _quotient(self, value: tirx.Div) -> relax.Expr:
        """A division; of a sum by the number of its elements, a mean."""
        total, count = self.read(value.a), self.read(value.b)
        divisor = shown(value.b)
        if isinstance(value.a, TensorLoad) and isinstance(divisor, tirx.FloatImm):
            mean = self._mean(total, float(divisor.value))
            if mean is not None:
                return mean
        return self._emit(relax.op.divide(total, count))

    def _mean(self, total: relax.Expr, count: float) -> relax.Expr | None:
        """A sum divided by a number, if that is how many elements it has."""
        call = self._block.definition(total)
        while is_call(call, "relax.reshape"):
            call = self._block.definition(call.args[0])
        if not is_call(call, "relax.sum"):
            return None
        elements = known_tensor(call.args[0]).size // max(known_tensor(call).size, 1)
        if elements != count:
            return None
        axes = [int(axis) for axis in call.attrs.axis]
        mean = self._emit(relax.op.mean(call.args[0], axes, bool(call.attrs.keepdims)))
        shape = list(known_tensor(total).shape)
        if list(known_tensor(mean).shape) != shape:
            mean = self._emit(relax.op.reshape(mean, shape))
        return mean

    def _load(self, load: TensorLoad) -> relax.Expr:
        if load.source not in self._tensors:
            raise RefusedError(f"it reads {load.source.name} before that is written")
        source = self._tensors[load.source]
        shape = known_tensor(source).shape
        found = [self._along(index) for index in load.indices]
        source = self._sliced(source, shape, found)
        return self._viewed(source, [along.axis for along in found])

    def _viewed(self, source: relax.Expr, axes: Sequence[tirx.Var | None]) -> relax.Expr:
        """A tensor with these axes as one with all axes of the block, in order."""
        used = [axis for axis in axes if axis is not None]
        if len(set(used)) < len(used):
            raise RefusedError("a diagonal")
        shape = known_tensor(source).shape
        units = [place for place, axis in enumerate(axes) if axis is None and shape[place] == 1]
        order: list[int | None] = []
        for axis in self._axes:  # one of extent 1 is one of the tensor's, if that has any
            place = axes.index(axis.var) if axis.var in used else None
            order.append(units.pop(0) if place is None and axis.extent == 1 and units else place)
        view = AxisView(source, shape, tuple(order))
        if view.shape == view.source_shape and not view.moves:
            return source
        view = view.without_leading_ones()
        return source if view.trivial else self._emit(view.emit(self._block))

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
        raise RefusedError("an index that is no multiple of one axis")

    def _sliced(
        self, source: relax.Expr, shape: Sequence[int], found: Sequence[_Along]
    ) -> relax.Expr:
        """What the indices reach of a tensor, each dimension in the order of its axis."""
        cut, flipped = [], []
        for dimension, (along, extent) in enumerate(zip(found, shape, strict=True)):
            count = 1 if along.axis is None else self._extents[along.axis]
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

    def _padded(self, condition: Expr, inside: Expr, outside: Expr) -> relax.Expr | None:
        """A tensor with a number around it; None if the choice is something else."""
        number = shown(outside)
        inside = shown(inside)
        if not isinstance(inside, TensorLoad) or inside.source not in self._tensors:
            return None
        if not isinstance(number, (tirx.FloatImm, tirx.IntImm)):
            return None
        bounds = _bounds(condition)
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
                low, high = max(low or 0, 0), total if high is None else min(high, total)
                if (low, high) != (-along.start, extent - along.start):
                    return None
                widths += [low, total - high]
            axes.append(along.axis)
        if bounds:
            return None
        padded = relax.op.nn.pad(source, widths, "constant", number.value)
        return self._viewed(self._emit(padded), axes)


def _cut(
    constant: ir.GenericConst, cut: Sequence[tuple[int, int, int, int]], flipped: Sequence[int]
) -> relax.Expr:
    """A part of a constant: (dimension, first, end, stride) each; some dimensions backwards."""
    array = array_of(constant.value)
    places = [slice(None)] * array.ndim
    for dimension, first, end, stride in cut:
        places[dimension] = slice(first, end, stride)
    found = np.flip(array[tuple(places)], tuple(flipped))
    return relax.const(np.ascontiguousarray(found), str(constant.ty.dtype))


def block_axes(store: Store, nest: Nest) -> list[Axis]:
    """The axes of a block along the dimensions of what it stores.

    A dimension of extent 1 gets an axis of its own.

    Raises
    ------
    RefusedError
        If it does not store the whole tensor, in its order.
    """
    by_var = {axis.var: axis for axis in nest.spatial}
    axes = []
    for index, extent in zip(store.indices, store.buffer.shape, strict=True):
        axis = by_var.pop(index, None) if isinstance(index, tirx.Var) else None
        if axis is None and const_int(index) == 0 and const_int(extent) == 1:
            axis = Axis.new(1)
        if axis is None or axis.extent != const_int(extent):
            raise RefusedError("a part of a tensor is stored")
        axes.append(axis)
    if by_var:
        raise RefusedError("a tensor is stored several times")
    return axes


def read_block(block: Emission, tensors: Tensors, nest: Nest) -> relax.Expr:
    """What a block without a sum stores.

    Raises
    ------
    RefusedError
        If no operators compute it; says why.
    """
    if nest.reduce or len(nest.stores) != 1 or nest.lets:
        raise RefusedError("a block of several values")
    store = nest.stores[0]
    axes = block_axes(store, nest)
    reshaped = _reshape(block, tensors, store, axes)
    return ValueReader(block, tensors, axes).whole(store.value) if reshaped is None else reshaped


def _reshape(
    block: Emission, tensors: Tensors, store: Store, axes: Sequence[Axis]
) -> relax.Expr | None:
    """A tensor whose elements are stored in the order in which they lie; None if it is none."""
    load = shown(store.value)
    if not isinstance(load, TensorLoad) or load.source not in tensors:
        return None
    source = tensors[load.source]
    before, after = known_tensor(source).shape, [axis.extent for axis in axes]
    if math.prod(before) != math.prod(after) or list(before) == after:
        return None
    analyzer = analyzer_for(axes)
    places = _flat(load.indices, before), _flat(store.indices, after)
    if not _same(analyzer, *places):
        return None
    return block.emit(relax.op.reshape(source, after))


def _flat(indices: Sequence[Expr], shape: Sequence[int]) -> Expr:
    place: Expr = tirx.const(0, "int64")
    for index, extent in zip(indices, shape, strict=True):
        place = place * tirx.const(extent, "int64") + index
    return place


def _same(analyzer: Analyzer, left: Expr, right: Expr) -> bool:
    return const_int(analyzer.simplify(left - right)) == 0 or analyzer.can_prove_equal(left, right)


def _bounds(condition: Expr) -> dict[tirx.Var, tuple[int | None, int | None]] | None:
    """For each axis the first place and the one behind the last; None of another condition."""
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
        lower, upper = const_int(smaller), const_int(larger)
        if lower is not None and isinstance(larger, tirx.Var):
            first, last = bounds.get(larger, (None, None))
            bounds[larger] = (max(first or 0, lower + strict), last)
        elif upper is not None and isinstance(smaller, tirx.Var):
            first, last = bounds.get(smaller, (None, None))
            end = upper + (not strict)
            bounds[smaller] = (first, end if last is None else min(last, end))
        else:
            return None
    return bounds


def shown(value: Expr) -> Expr:
    """A value without what hides it from TVM's simplifier.

    See `microkernels.vector.ieee.hidden`.

    Parameters
    ----------
    value : Expr
        Of a block out of `read_program`.
    """
    while call_name(value) == "reinterpret" and call_name(value.args[0]) == "reinterpret":
        inner = value.args[0].args[0]
        if inner.ty.dtype != value.ty.dtype:
            return value
        value = inner
    return value


def _is_zero(value: Expr) -> bool:
    number = shown(value)
    return isinstance(number, tirx.FloatImm) and float(number.value) == 0


def _intrinsic(call: Expr) -> str:
    """The name of the LLVM intrinsic that is called."""
    return str(llvm_get_intrinsic_name(int(call.args[0].value)))
