"""What is known of the elements of integer tensors: numbers, and expressions of sizes.

    Concat(Gather(Shape(x: [n, 4]), 0), [-1])    ->    [n, -1]

Exporters compute shapes this way. A shape that is known in terms of the sizes of other tensors lets
TVM type what reads the result; it would know nothing of one that is read from memory.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from tvm import ir, relax, te, tirx

from relay_passes.ir.graph import op_name

from ...expressions import Expr, constant, current_builder, dtype_of, known_dims, static_dims
from .sizes import dims_of, holds, index, is_number, is_unknown, product, same_size, simplified

MAX_ELEMENTS = 64

Elements: TypeAlias = np.ndarray  # of objects: numbers and expressions
# Of a call and what is known of its tensors.
Rule: TypeAlias = Callable[..., Any]


class _UnknownError(Exception):
    """What an element is cannot be said."""


def known_elements(value: Expr) -> Elements | None:
    """The elements of a tensor, or None if they are not known."""
    dims, dtype = static_dims(value), str(getattr(value.ty, "dtype", ""))
    integral = "int" in dtype or dtype == "bool"
    if dims is None or not integral or math.prod(dims) > MAX_ELEMENTS:
        return None
    array = constant(value)
    if array is not None:
        return (array.astype(np.int8) if array.dtype == bool else array).astype(object)
    call = _definition(value)
    if not isinstance(call, relax.Call):
        return None
    if op_name(call) == "relax.shape_to_tensor":
        return _array(list(call.args[0].values), dims)
    rule = _RULES.get(op_name(call))
    if rule is None:
        return None
    first = call.args[0]
    operands = list(first.fields) if isinstance(first, relax.Tuple) else list(call.args)
    tensors = [each for each in operands if isinstance(each.ty, relax.TensorType)]
    arrays = [known_elements(each) for each in tensors]
    if any(each is None for each in arrays):
        return None
    try:
        found = np.asarray(rule(call, *arrays), object)
    except _UnknownError:
        return None
    return _array(
        [simplified(x) if isinstance(x, ir.Expr) else int(x) for x in found.ravel()], dims
    )


def known_parts(vector: Expr) -> list[Any]:
    """What is known of the elements of a vector some of which are computed.

    Concat([1, 1], s: float32[2])    ->    [1, 1, None, None]

    Numbers, expressions of sizes, and None for what is not known; one for each element.
    """
    array = constant(vector)
    if array is not None:
        return list(array.ravel().tolist())
    elements = known_elements(vector)
    if elements is not None:
        return list(elements.ravel())
    call = _definition(vector)
    if isinstance(call, relax.Call) and op_name(call) == "relax.concat":
        return [each for part in call.args[0].fields for each in known_parts(part)]
    return [None] * known_dims(vector)[0]


def _definition(value: Expr) -> Expr:
    """What a variable is bound to."""
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
    of_arrays = np.frompyfunc(function, 2, 1)

    def rule(call: relax.Call, data: Elements) -> Any:
        if data.ndim != 1:
            raise ValueError("sizes are reduced along more than one axis")
        return of_arrays.reduce(data)

    return rule


def _of_sizes(function: Callable[[Expr, Expr], Expr]) -> Callable[[Any, Any], Any]:
    """A function of two expressions, of which each may be given as a number."""
    return lambda left, right: function(index(left), index(right))


_largest, _least = _of_sizes(te.max), _of_sizes(te.min)


def _quotient(left: Any, right: Any) -> Any:
    """Towards zero; of sizes, which are not negative, that is down."""
    if isinstance(left, int) and isinstance(right, int) and right:
        sign = 1 if (left < 0) == (right < 0) else -1
        return sign * (abs(left) // abs(right))
    if not isinstance(right, int) or right <= 0 or not holds(left >= 0):
        raise _UnknownError
    return tirx.floordiv(left, right)


def _remainder(left: Any, right: Any) -> Any:
    """Of the sign of the divisor, as ONNX's Mod of integers."""
    if not isinstance(right, int) or right <= 0:
        raise _UnknownError
    return left % right if isinstance(left, int) else tirx.floormod(left, right)


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


# Indices that count: integer tensors whose elements follow from their places.
#
#     Range(0, batch): [batch, 1] * seq + Range(0, seq): [seq]    ->    start 0, strides (seq, 1)
#     [[0, 1, 2, ..., 511]][:, :seq]                              ->    start 0, strides (0, 1)
#
# Exporters write masks with such indices where a reshape would do, and positions where a slice
# would.


_DEPTH = 10  # of operators


class IndexGrid(NamedTuple):
    """An element is `start` and, for each axis, its place times a stride.

    Attributes
    ----------
    start : Expr
        The first element.
    strides : tuple of Expr
        One for each axis; 0 along axes of one element.
    below : int or None
        A number that is larger than all elements, if one is known.
    """

    start: Expr
    strides: tuple[Expr, ...]
    below: int | None = None

    def counts(self, sizes: Sequence[Expr]) -> bool:
        """Whether the elements of a tensor of these sizes are 0, 1, 2 and so on."""
        if not is_number(self.start, 0):
            return False
        return all(
            is_number(size, 1) or same_size(stride, product(sizes[axis + 1 :]))
            for axis, (size, stride) in enumerate(zip(sizes, self.strides, strict=True))
        )

    def run(self, sizes: Sequence[Expr], extent: int) -> tuple[Expr, Expr] | None:
        """(first, end) if a tensor of these sizes counts from one to the other, below `extent`."""
        if self.below is None or self.below > extent:
            return None
        moving = [axis for axis, size in enumerate(sizes) if not is_number(size, 1)]
        if len(moving) > 1 or not holds(self.start >= 0):
            return None
        if any(not is_number(self.strides[axis], 1) for axis in moving):
            return None
        return self.start, simplified(self.start + product(sizes))


def index_grid(value: Expr, depth: int = _DEPTH) -> IndexGrid | None:
    """What is known of a tensor of int64; None if it is no grid, or nobody knows."""
    if not isinstance(value.ty, relax.TensorType) or dtype_of(value) != "int64":
        return None
    if is_unknown(value):
        return None
    sizes = dims_of(value)
    array = constant(value)
    if array is not None:
        return _constant_grid(array)
    if all(is_number(size, 1) for size in sizes):
        known = known_elements(value)
        if known is None:
            return None
        return IndexGrid(index(known.item()), (index(0),) * len(sizes))
    call = _definition(value)
    if not isinstance(call, relax.Call) or not depth:
        return None
    name = op_name(call)
    if name == "relax.arange":
        first, _, step = (each.value if hasattr(each, "value") else each for each in call.args)
        return IndexGrid(index(0) + first, (index(0) + step,))
    if name in ("relax.expand_dims", "relax.reshape", "relax.squeeze"):
        grid = index_grid(call.args[0], depth - 1)
        return grid and _reshaped(grid, call.args[0], sizes)
    if name == "relax.strided_slice":
        grid = index_grid(call.args[0], depth - 1)
        return grid and _sliced(grid, call)
    if name in ("relax.add", "relax.multiply"):
        grids = []
        for each in call.args:
            grid = index_grid(each, depth - 1)
            if grid is None:
                return None
            before = (index(0),) * (len(sizes) - len(grid.strides))
            grids.append(IndexGrid(grid.start, before + grid.strides))
        one, other = grids
        if name == "relax.add":
            pairs = zip(one.strides, other.strides, strict=True)
            strides = tuple(simplified(left + right) for left, right in pairs)
            return IndexGrid(simplified(one.start + other.start), strides)
        for grid, number in ((one, other), (other, one)):
            if all(is_number(stride, 0) for stride in number.strides):
                factor = number.start
                strides = tuple(simplified(stride * factor) for stride in grid.strides)
                return IndexGrid(simplified(grid.start * factor), strides)
    return None


def _constant_grid(array: np.ndarray) -> IndexGrid | None:
    """A constant that counts along one axis at most."""
    moving = [axis for axis, size in enumerate(array.shape) if size != 1]
    flat = array.ravel()
    if not flat.size or len(moving) > 1:
        return None
    steps = np.unique(np.diff(flat)) if flat.size > 1 else np.zeros(1, np.int64)
    if steps.size > 1:
        return None
    strides = tuple(index(int(steps[0]) if axis in moving else 0) for axis in range(array.ndim))
    return IndexGrid(index(int(flat[0])), strides, int(flat.max()) + 1)


def _sliced(grid: IndexGrid, call: relax.Call) -> IndexGrid | None:
    """What a slice of every element from some on, or to some, is of a grid."""
    if len(call.args) > 4 or not call.attrs.assume_inbound:
        return None
    start = grid.start
    for axis, begin in zip(call.args[1], call.args[2], strict=True):
        start = start + begin * grid.strides[int(axis)]
    return IndexGrid(simplified(start), grid.strides, grid.below)


def _reshaped(grid: IndexGrid, before: Expr, sizes: Sequence[Expr]) -> IndexGrid | None:
    """A grid with other axes of one element."""
    moving = [
        (size, stride)
        for size, stride in zip(dims_of(before), grid.strides, strict=True)
        if not is_number(size, 1)
    ]
    strides: list[Expr] = []
    for size in sizes:
        if is_number(size, 1):
            strides.append(index(0))
        elif moving and same_size(moving[0][0], size):
            strides.append(moving.pop(0)[1])
        else:
            return None
    return None if moving else IndexGrid(grid.start, tuple(strides), grid.below)
