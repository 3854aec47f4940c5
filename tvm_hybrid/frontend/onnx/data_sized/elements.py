"""What is known of the elements of small integer tensors: numbers, and expressions of sizes.

    Concat(Gather(Shape(x: [n, 4]), 0), [-1])    ->    [n, -1]

Exporters compute shapes this way. A shape that is known in terms of the sizes of other tensors lets
TVM type what reads the result; it would know nothing of one that is read from memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from tvm import ir, relax, te, tirx

from relay_passes.ir.graph import op_name

from ...expressions import Expr, constant, current_builder, static_dims
from .sizes import holds, index, simplified

MAX_ELEMENTS = 64

Elements: TypeAlias = np.ndarray  # of objects: numbers and expressions
Rule: TypeAlias = Callable[[relax.Call, Sequence[Elements]], Elements]


class _UnknownError(Exception):
    """What an element is cannot be said."""


def known_elements(value: Expr) -> Elements | None:
    """The elements of a tensor, or None if they are not known."""
    dims, dtype = static_dims(value), str(getattr(value.ty, "dtype", ""))
    integral = "int" in dtype or dtype == "bool"
    if dims is None or not integral or np.prod(dims) > MAX_ELEMENTS:
        return None
    array = constant(value)
    if array is not None:
        return np.vectorize(int, otypes=[object])(array) if array.size else array.astype(object)
    call = current_builder().lookup_binding(value) if isinstance(value, relax.Var) else value
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
    known = [known_elements(each) for each in tensors]
    arrays = [each for each in known if each is not None]
    if len(arrays) < len(known):
        return None
    try:
        found = rule(call, arrays)
    except _UnknownError:
        return None
    return _array([_simple(each) for each in found.ravel()], dims)


def _array(values: Sequence[Any], dims: Sequence[int]) -> Elements:
    array = np.empty(len(values), object)
    array[:] = [int(each) if isinstance(each, tirx.IntImm) else each for each in values]
    return array.reshape(dims)


def _simple(value: Any) -> Any:
    return simplified(value) if isinstance(value, ir.Expr) else int(value)


def _shaped(call: relax.Call, arrays: Sequence[Elements]) -> Elements:
    return arrays[0]


def _concat(call: relax.Call, arrays: Sequence[Elements]) -> Elements:
    return np.concatenate(arrays, axis=int(call.attrs.axis))


def _take(call: relax.Call, arrays: Sequence[Elements]) -> Elements:
    data, indices = arrays
    return np.take(data, indices.astype(np.int64), axis=int(call.attrs.axis or 0))


def _strided_slice(call: relax.Call, arrays: Sequence[Elements]) -> Elements:
    axes, begins, ends, *rest = ([int(each) for each in list(part)] for part in call.args[1:])
    strides = rest[0] if rest else [1] * len(axes)
    parts = [slice(None)] * arrays[0].ndim
    for axis, begin, end, stride in zip(axes, begins, ends, strides, strict=True):
        parts[axis] = slice(begin, end, stride)
    return arrays[0][tuple(parts)]


def _binary(operator: Callable[[Any, Any], Any]) -> Rule:
    function = np.frompyfunc(operator, 2, 1)
    return lambda call, arrays: np.asarray(function(*arrays), dtype=object)


def _reduced(operator: Callable[[Any, Any], Any]) -> Rule:
    function = np.frompyfunc(operator, 2, 1)

    def rule(call: relax.Call, arrays: Sequence[Elements]) -> Elements:
        if arrays[0].ndim != 1:
            raise ValueError("sizes are reduced along more than one axis")
        return np.asarray(function.reduce(arrays[0]), dtype=object)

    return rule


def _largest(left: Any, right: Any) -> Any:
    return max(left, right) if _both_numbers(left, right) else te.max(left, right)


def _least(left: Any, right: Any) -> Any:
    return min(left, right) if _both_numbers(left, right) else te.min(left, right)


def _product(left: Any, right: Any) -> Any:
    return left * right


def _quotient(left: Any, right: Any) -> Any:
    """Towards zero; of sizes, which are not negative, that is down."""
    if _both_numbers(left, right):
        sign = 1 if (left < 0) == (right < 0) else -1
        return sign * (abs(left) // abs(right)) if right else _unknown()
    if not isinstance(right, int) or right <= 0 or not holds(left >= 0):
        return _unknown()
    return tirx.floordiv(left, right)


def _remainder(left: Any, right: Any) -> Any:
    """Of the sign of the divisor, as ONNX's Mod of integers."""
    if not isinstance(right, int) or right <= 0:
        return _unknown()
    return left % right if isinstance(left, int) else tirx.floormod(left, right)


def _negated(call: relax.Call, arrays: Sequence[Elements]) -> Elements:
    return -arrays[0]


def _unknown() -> Any:
    raise _UnknownError


def _comparison(operator: Callable[[Any, Any], Any]) -> Rule:
    def compare(left: Any, right: Any) -> int:
        if _both_numbers(left, right):
            return int(operator(left, right))
        flag = simplified(tirx.Select(operator(left, right), index(1), index(0)))
        return int(flag) if isinstance(flag, tirx.IntImm) else _unknown()

    return _binary(compare)


def _equal(left: Any, right: Any) -> Any:
    return left == right if _both_numbers(left, right) else tirx.EQ(_size(left), _size(right))


def _differ(left: Any, right: Any) -> Any:
    return left != right if _both_numbers(left, right) else tirx.NE(_size(left), _size(right))


def _size(value: Any) -> Expr:
    return index(value) if isinstance(value, int) else value


def _where(call: relax.Call, arrays: Sequence[Elements]) -> Elements:
    condition, yes, no = arrays
    return np.where(condition.astype(bool), yes, no)


def _both_numbers(left: Any, right: Any) -> bool:
    return isinstance(left, int) and isinstance(right, int)


_RULES: dict[str, Rule] = {
    "relax.reshape": _shaped,
    "relax.expand_dims": _shaped,
    "relax.squeeze": _shaped,
    "relax.astype": _shaped,
    "relax.concat": _concat,
    "relax.where": _where,
    "relax.equal": _comparison(_equal),
    "relax.not_equal": _comparison(_differ),
    "relax.less": _comparison(lambda a, b: a < b),
    "relax.less_equal": _comparison(lambda a, b: a <= b),
    "relax.greater": _comparison(lambda a, b: a > b),
    "relax.greater_equal": _comparison(lambda a, b: a >= b),
    "relax.divide": _binary(_quotient),
    "relax.floor_divide": _binary(_quotient),
    "relax.floor_mod": _binary(_remainder),
    "relax.negative": _negated,
    "relax.take": _take,
    "relax.strided_slice": _strided_slice,
    "relax.add": _binary(lambda a, b: a + b),
    "relax.subtract": _binary(lambda a, b: a - b),
    "relax.multiply": _binary(_product),
    "relax.maximum": _binary(_largest),
    "relax.minimum": _binary(_least),
    "relax.max": _reduced(_largest),
    "relax.min": _reduced(_least),
    "relax.prod": _reduced(_product),
}
