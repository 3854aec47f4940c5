"""Known elements of integer tensors: numbers, and expressions of sizes.

    Concat(Gather(Shape(x: [n, 4]), 0), [-1])    ->    [n, -1]

Exporters compute shapes this way. TVM can type a reshape if it knows the shape's elements in terms
of other tensors' sizes; it cannot if it has to read them from memory.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from tvm import ir, relax, te, tirx

from relay_passes.ir.graph import op_name
from tir_schedules.generic.expressions import variables_of

from ...expressions import Expr, constant, current_builder, dtype_of, known_dims, static_dims
from .sizes import INDEX, dims_of, holds, index, is_number, product, same_size, simplified

MAX_ELEMENTS = 64

Elements: TypeAlias = np.ndarray  # of objects: numbers and expressions
# Takes a call and the known elements of its tensors, and returns the result's elements.
Rule: TypeAlias = Callable[..., Any]


class _UnknownError(ValueError):
    """An element is not known."""


def known_elements(value: Expr) -> Elements | None:
    """The elements of a tensor; None if they are not known."""
    dims, dtype = static_dims(value), str(getattr(value.ty, "dtype", ""))
    integral = "int" in dtype or dtype == "bool"
    if dims is None or not integral or math.prod(dims) > MAX_ELEMENTS:
        return None
    array = constant(value)
    if array is not None:
        return (array.astype(np.int8) if array.dtype == bool else array).astype(object)
    call = _definition(value)
    name = op_name(call)
    if name == "relax.shape_to_tensor":
        return _array(list(call.args[0].values), dims)
    if name not in _RULES:
        return None
    first = call.args[0]
    operands = list(first.fields) if isinstance(first, relax.Tuple) else list(call.args)
    tensors = [each for each in operands if isinstance(each.ty, relax.TensorType)]
    arrays = [known_elements(each) for each in tensors]
    if any(each is None for each in arrays):
        return None
    try:
        found = np.asarray(_RULES[name](call, *arrays), object)
    except ValueError:
        return None
    return _array(
        [simplified(x) if isinstance(x, ir.Expr) else int(x) for x in found.ravel()], dims
    )


def known_parts(vector: Expr) -> list[Any]:
    """The elements of a vector, each a number, an expression of sizes, or None if not known.

    Concat([1, 1], s: float32[2])    ->    [1, 1, None, None]
    """
    array = constant(vector)
    if array is not None:
        return list(array.ravel().tolist())
    elements = known_elements(vector)
    if elements is not None:
        return list(elements.ravel())
    call = _definition(vector)
    if op_name(call) == "relax.concat":
        return [each for part in call.args[0].fields for each in known_parts(part)]
    return [None] * known_dims(vector)[0]


def _definition(value: Expr) -> Expr:
    """The expression that a variable is bound to."""
    return current_builder().lookup_binding(value) if isinstance(value, relax.Var) else value


def _array(values: Sequence[Any], dims: Sequence[int]) -> Elements:
    array = np.empty(len(values), object)
    array[:] = [int(each) if isinstance(each, tirx.IntImm) else each for each in values]
    return array.reshape(dims)


def _strided_slice(call: relax.Call, data: Elements) -> Elements:
    axes, begins, ends, *rest = ([int(each) for each in list(part)] for part in call.args[1:])
    strides = rest[0] if rest else [1] * len(axes)
    parts = [slice(None)] * data.ndim
    for axis, begin, end, stride in zip(axes, begins, ends, strides, strict=True):
        parts[axis] = slice(begin, end, stride)
    return data[tuple(parts)]


def _binary(function: Callable[[Any, Any], Any]) -> Rule:
    of_arrays = np.frompyfunc(function, 2, 1)
    return lambda call, *arrays: of_arrays(*arrays)


def _reduced(function: Callable[[Any, Any], Any]) -> Rule:
    """A reduction over all elements; the caller rejects the result of one over fewer axes."""
    of_arrays = np.frompyfunc(function, 2, 1)
    return lambda call, data: of_arrays.reduce(data.ravel())


def _of_sizes(function: Callable[[Expr, Expr], Expr]) -> Callable[[Any, Any], Any]:
    """Wraps a function of two expressions so that either may be a plain number."""
    return lambda left, right: function(index(left), index(right))


_largest, _least = _of_sizes(te.max), _of_sizes(te.min)


def _quotient(left: Any, right: Any) -> Any:
    """Quotient rounded towards zero, which is floor division, as sizes are not negative."""
    if isinstance(left, int) and isinstance(right, int) and right:
        return tirx.truncdiv(index(left), index(right))
    if not isinstance(right, int) or right <= 0 or not holds(left >= 0):
        raise _UnknownError
    return tirx.floordiv(left, right)


def _remainder(left: Any, right: Any) -> Any:
    """Remainder with the sign of the divisor, as ONNX's Mod of integers has it."""
    if not isinstance(right, int) or right <= 0:
        raise _UnknownError
    return tirx.floormod(index(left), index(right))


def _comparison(holds: Callable[[Expr, Expr], Expr]) -> Rule:
    def compare(left: Expr, right: Expr) -> int:
        condition = holds(left, right)
        flag = simplified(tirx.Select(condition, index(1), index(0)))
        if not isinstance(flag, tirx.IntImm):
            raise _UnknownError
        return int(flag)

    return _binary(_of_sizes(compare))


_RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.astype"),
        lambda call, data: data,
    ),
    "relax.concat": lambda call, *arrays: np.concatenate(arrays, axis=int(call.attrs.axis)),
    "relax.where": lambda call, condition, yes, no: np.where(condition.astype(bool), yes, no),
    "relax.equal": _comparison(tirx.EQ),
    "relax.not_equal": _comparison(tirx.NE),
    "relax.less": _comparison(tirx.LT),
    "relax.less_equal": _comparison(tirx.LE),
    "relax.greater": _comparison(tirx.GT),
    "relax.greater_equal": _comparison(tirx.GE),
    "relax.divide": _binary(_quotient),
    "relax.floor_divide": _binary(_quotient),
    "relax.floor_mod": _binary(_remainder),
    "relax.negative": lambda call, data: -data,
    "relax.take": lambda call, data, indices: np.take(
        data, indices.astype(np.int64), axis=int(call.attrs.axis or 0)
    ),
    "relax.strided_slice": _strided_slice,
    "relax.add": _binary(operator.add),
    "relax.subtract": _binary(operator.sub),
    "relax.multiply": _binary(operator.mul),
    "relax.maximum": _binary(_largest),
    "relax.minimum": _binary(_least),
    "relax.max": _reduced(_largest),
    "relax.min": _reduced(_least),
    "relax.prod": _reduced(operator.mul),
}


# Integer tensors whose elements follow from their indices.
#
#     Range(0, batch): [batch, 1] * seq + Range(0, seq): [seq]    ->    place_0 * seq + place_1
#     [[0, 1, 2, ..., 511]][:, :seq]                              ->    place_1, below 512
#
# Exporters write masks with such tensors where a reshape would do, and positions where a slice
# would.


_DEPTH = 10  # most operators to look through


class IndexGrid(NamedTuple):
    """The element of a tensor as an expression of its indices.

    Attributes
    ----------
    place : list of Expr
        The index variable of each axis; 0 along axes of one element.
    element : Expr
        The element: sums and products of indices and sizes.
    below : int or None
        An upper bound, exclusive, of all elements; None if not known.
    """

    place: list[Expr]
    element: Expr
    below: int | None

    def counts(self, sizes: Sequence[Expr]) -> bool:
        """Whether the elements of a tensor of these sizes are 0, 1, 2 and so on."""
        behind = (product(sizes[axis + 1 :]) for axis in range(len(sizes)))
        count = sum((at * size for at, size in zip(self.place, behind, strict=True)), index(0))
        return same_size(self.element, count)

    def run(self, sizes: Sequence[Expr], extent: int) -> tuple[Expr, Expr] | None:
        """(first, end) if a tensor of these sizes counts from first to end, below `extent`."""
        moving = {at for at in self.place if isinstance(at, tirx.Var)}
        if self.below is None or self.below > extent or len(moving) > 1:
            return None
        start = simplified(sum((-at for at in moving), self.element))
        if variables_of(start) & moving or not holds(start >= 0):
            return None
        return start, simplified(start + product(sizes))


def index_grid(value: Expr) -> IndexGrid | None:
    """An int64 tensor as an IndexGrid; None if its elements do not follow from their indices."""
    try:
        place = [
            index(0) if is_number(size, 1) else tirx.Var(f"place_{axis}", INDEX)
            for axis, size in enumerate(_int64_dims(value))
        ]
        return IndexGrid(place, *_element(value, place, _DEPTH))
    except ValueError:
        return None


def _int64_dims(value: Expr) -> list[Expr]:
    if dtype_of(value) != INDEX:
        raise _UnknownError
    return dims_of(value)


def _element(value: Expr, place: Sequence[Expr], depth: int) -> tuple[Expr, int | None]:
    """One element in terms of its indices, and an exclusive upper bound of all, or None."""
    sizes, array, call = _int64_dims(value), constant(value), _definition(value)
    moving = [(size, at) for size, at in zip(sizes, place, strict=True) if not is_number(size, 1)]
    if array is not None:
        steps = np.unique(np.diff(array.ravel()))
        if not array.size or len(moving) > 1 or steps.size > 1:
            raise _UnknownError
        moved = (at * int(step) for (_, at), step in zip(moving, steps, strict=False))
        return sum(moved, index(int(array.flat[0]))), int(array.max()) + 1
    if not moving:
        known = known_elements(value)
        if known is None:
            raise _UnknownError
        return index(known.item()), None
    if not isinstance(call, relax.Call) or not depth:
        raise _UnknownError
    name, data = op_name(call), call.args[0]
    if name == "relax.arange":
        first, _, step = (each.value if hasattr(each, "value") else each for each in call.args)
        return place[0] * step + first, None
    if name in ("relax.expand_dims", "relax.reshape", "relax.squeeze"):
        inner: list[Expr] = []
        for size in _int64_dims(data):  # the input may have other axes of one element
            if not is_number(size, 1) and not (moving and same_size(moving[0][0], size)):
                raise _UnknownError
            inner.append(index(0) if is_number(size, 1) else moving.pop(0)[1])
        if not moving:
            return _element(data, inner, depth - 1)
    # A slice without steps.
    if name == "relax.strided_slice" and len(call.args) <= 4 and call.attrs.assume_inbound:
        inner = list(place)
        for axis, begin in zip(call.args[1], call.args[2], strict=True):
            inner[int(axis)] = inner[int(axis)] + begin
        return _element(data, inner, depth - 1)
    if name in ("relax.add", "relax.multiply"):
        found = []
        for each in call.args:
            own = _int64_dims(each)
            behind = zip(own, place[len(place) - len(own) :], strict=True)
            inner = [index(0) if is_number(size, 1) else at for size, at in behind]
            found.append(_element(each, inner, depth - 1)[0])
        return (found[0] + found[1] if name == "relax.add" else found[0] * found[1]), None
    raise _UnknownError
