"""Reads values of a block as operators: elementwise ones, casts, permutations, slices and pads.

Before

    y[v_i, v_j] = T.max(x[v_j, v_i] + b[v_j], T.float32(0))

After

    lv = R.permute_dims(x, [1, 0])
    lv1 = R.add(lv, b)
    lv2 = R.nn.relu(lv1)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import relax, te, tirx, topi
from tvm.ir.expr import TensorLoad
from tvm.target.codegen import llvm_get_intrinsic_name

from microkernels.vector.expressions import Expr
from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import is_call, known_tensor
from tir_schedules.core.size import is_open, quotient
from tir_schedules.generic.expressions import call_name, const_int, substitute
from tir_schedules.generic.nest import Axis, Nest, Store, analyzer_for, read_program
from tir_schedules.tensorize.arrangement import RefusedError

from .emission import Emission, Tensors
from .tir_elements import ElementReader, shown

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


class ValueReader(ElementReader):
    """Emits the values of a block as tensors; an axis of extent 1 may stand for none of it."""

    def whole(self, value: Expr) -> relax.Expr:
        """A value as a tensor with an element for every point of the axes.

        Raises
        ------
        RefusedError
            If it is something else than operators of tensors.
        """
        found = self.read(value)
        if list(known_tensor(found).shape) != [axis.extent for axis in self._axes]:
            shape = [axis.stated for axis in self._axes]
            found = self._emit(relax.op.broadcast_to(found, shape))
        return found

    def read(self, value: Expr) -> relax.Expr:
        """The same, perhaps with 1 in the place of an extent, or a number."""
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
        """A division; of a sum by the number of its elements, a mean."""
        total, count = self.read(value.a), self.read(value.b)
        divisor, mean = shown(value.b), None
        if isinstance(value.a, TensorLoad) and isinstance(divisor, tirx.FloatImm):
            mean = self._mean(total, float(divisor.value))
        return self._emit(relax.op.divide(total, count)) if mean is None else mean

    def _mean(self, total: relax.Expr, count: float) -> relax.Expr | None:
        """A sum divided by a number, if that is how many elements it has."""
        moves: list[relax.Call] = []
        call = self._block.definition(total)
        while is_call(call, "relax.reshape", "relax.permute_dims"):
            moves.insert(0, call)
            call = self._block.definition(call.args[0])
        if not is_call(call, "relax.sum"):
            return None
        elements = quotient(known_tensor(call.args[0]).size, known_tensor(call).size)
        if elements is None or is_open([elements]) or elements != count:
            return None
        axes = [int(axis) for axis in call.attrs.axis]
        mean = self._emit(relax.op.mean(call.args[0], axes, bool(call.attrs.keepdims)))
        for move in moves:
            mean = self._emit(with_args(move, [mean, *move.args[1:]]))
        return mean


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
        if axis is None or axis.extent != nest.size(extent):
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
    axes = block_axes(nest.stores[0], nest)
    reshaped, value = read_reshape(block, tensors, nest, axes), nest.stores[0].value
    return ValueReader(block, tensors, axes).whole(value) if reshaped is None else reshaped


def _is_zero(value: Expr) -> bool:
    number = shown(value)
    return isinstance(number, tirx.FloatImm) and float(number.value) == 0


def read_reshape(
    block: Emission, tensors: Tensors, nest: Nest, axes: Sequence[Axis]
) -> relax.Expr | None:
    """Reads a block that stores a tensor's elements in the order in which they lie as a reshape.

    Before

        y[v_i] = x[v_i // 32, v_i % 32]

    After

        lv = R.reshape(x, [1024])

    If sizes are known at run time only, indices are proved to be those of a reshape by arithmetic,
    or by being the ones that TVM itself writes for it.

    The reshape that a block is; None if it is none.

    Parameters
    ----------
    block : Emission
        Receives the operator.
    tensors : mapping
        What the buffers hold.
    nest : Nest
        The block, which stores one thing only.
    axes : sequence of Axis
        Its axes along the dimensions of what it stores.
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
        or (is_open([*before, *after]) and _as_tvm_writes_it(load, nest, store))
    ):
        return block.emit(relax.op.reshape(source, [axis.stated for axis in axes]))
    return None


def _flat(indices: Sequence[Expr], shape: Sequence[Any]) -> Expr:
    place: Expr = tirx.const(0, "int64")
    for index, extent in zip(indices, shape, strict=True):
        place = place * extent + index
    return place


def _as_tvm_writes_it(load: TensorLoad, nest: Nest, store: Store) -> bool:
    """Whether an element is read where TVM's reshape of these shapes reads it."""
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


@dataclass(frozen=True)
class Padding:
    """A tensor with a number around it.

    Attributes
    ----------
    source : tirx.Var
        The tensor.
    widths : tuple of int
        How many numbers there are before and after each dimension.
    number : float
        0 if there is none.
    """

    source: tirx.Var
    widths: tuple[int, ...]
    number: float


def padding_of(nest: Nest) -> Padding | None:
    """What a block puts around a tensor; None if it does something else."""
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
    """The only block that reads what one writes."""
    buffer = nests[position].stores[0].buffer
    readers = [
        number
        for number, nest in enumerate(nests)
        if number != position and any(load.source.same_as(buffer) for load in nest.reads())
    ]
    return readers[0] if len(readers) == 1 and readers[0] > position else None
