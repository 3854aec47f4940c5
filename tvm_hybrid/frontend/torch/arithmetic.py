"""Arithmetic of two operands, where TVM's converters compute something else than PyTorch.

operator                   TVM's converter, or its kernel                   here
ne(x, y)                   false beside NaN                                 not (x == y)
add, mul of bool           fail in LLVM                                     or, and
remainder(x, y) of floats  x - floor(x / y) * y: NaN for an infinite y      from fmod
div(x, y, "floor")         floor(x / y), one too large near whole numbers   from fmod
div(x, number, mode)       the number is an int32                           of x's type
pow of whole numbers       fails in LLVM                                    by repeated squaring
pow(x, 0.5), pow(x, -0.5)  inf of -inf, as in C                             sqrt(x), rsqrt(x): NaN
mm, bmm                    of float32, whatever the operands are            of their type

Operands have one type by then (`promotion`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx
from tvm import relax

from ..expressions import emit
from ..onnx.ops.elementwise import integer_power
from .promotion import type_name

Value = Any  # relax.Expr, a tensor

_ROOTS = {0.5: relax.op.sqrt, -0.5: relax.op.rsqrt}


def product(node: Any, importer: Any) -> Value:
    """`aten.mm` and `aten.bmm`."""
    x, y = (importer.env[each] for each in node.args)
    if _dtype(x) in ("float32", "float16", "bfloat16"):
        return importer.create_convert_map()[node.target.__name__](node)
    return emit(relax.op.matmul(x, y))


def not_equal(node: Any, importer: Any) -> Value:
    """`aten.ne`."""
    return emit(relax.op.logical_not(emit(relax.op.equal(*_operands(node, importer)))))


def add(node: Any, importer: Any) -> Value:
    """`aten.add`; a factor `alpha` is dealt with before."""
    return _or_of_bools(node, importer, relax.op.add, relax.op.logical_or)


def multiply(node: Any, importer: Any) -> Value:
    """`aten.mul`."""
    return _or_of_bools(node, importer, relax.op.multiply, relax.op.logical_and)


def _or_of_bools(
    node: Any, importer: Any, of_numbers: Callable[..., Value], of_bools: Callable[..., Value]
) -> Value:
    x, y = _operands(node, importer)
    return emit((of_bools if _dtype(x) == "bool" else of_numbers)(x, y))


def remainder(node: Any, importer: Any) -> Value:
    """`aten.remainder`: has the divisor's sign."""
    x, y = _operands(node, importer)
    if "float" not in _dtype(x):
        return emit(relax.op.floor_mod(x, y))
    rest = emit(relax.op.mod(x, y))
    return emit(relax.op.where(_other_sign(rest, y), relax.op.add(rest, y), rest))


def divide(node: Any, importer: Any) -> Value:
    """`aten.div` with a rounding mode, and `aten.floor_divide`."""
    x, y = _operands(node, importer)
    mode = node.kwargs.get("rounding_mode")
    if mode is None:
        return emit(relax.op.divide(x, y))
    if "float" not in _dtype(x):
        # R.divide of whole numbers rounds towards 0.
        return emit((relax.op.divide if mode == "trunc" else relax.op.floor_divide)(x, y))
    if mode == "trunc":
        return emit(relax.op.trunc(emit(relax.op.divide(x, y))))
    return _floor_divided(x, y)


def _floor_divided(x: Value, y: Value) -> Value:
    """What PyTorch computes: (x - fmod(x, y)) / y is nearly whole, and is rounded."""

    def number(value: float) -> Value:
        return relax.const(value, _dtype(x))

    rest = emit(relax.op.mod(x, y))
    quotient = emit(relax.op.divide(relax.op.subtract(x, rest), y))
    less = emit(relax.op.subtract(quotient, number(1)))
    quotient = emit(relax.op.where(_other_sign(rest, y), less, quotient))
    whole = emit(relax.op.floor(quotient))
    far = emit(relax.op.greater(relax.op.subtract(quotient, whole), number(0.5)))
    whole = emit(relax.op.where(far, relax.op.add(whole, number(1)), whole))
    none = emit(relax.op.equal(y, number(0)))
    return emit(relax.op.where(none, relax.op.divide(x, y), whole))


def _other_sign(rest: Value, y: Value) -> Value:
    """Whether a remainder is not 0 and has another sign than the divisor."""
    zero = relax.const(0, _dtype(rest))
    positive = relax.op.logical_and(relax.op.greater(rest, zero), relax.op.less(y, zero))
    negative = relax.op.logical_and(relax.op.less(rest, zero), relax.op.greater(y, zero))
    return emit(relax.op.logical_or(positive, negative))


def power(node: Any, importer: Any) -> Value:
    """`aten.pow`; PyTorch, too, makes a root of such a number, but not in float16."""
    exponent = node.args[1]
    x, y = _operands(node, importer)
    if "float" not in _dtype(x):
        return emit(integer_power(x, y))
    roots = _ROOTS if isinstance(exponent, float) and _dtype(x) != "float16" else {}
    root = roots.get(exponent)
    return emit(relax.op.power(x, y) if root is None else root(x))


def _operands(node: Any, importer: Any) -> tuple[Value, Value]:
    """Two tensors, of which one may be given as a number."""
    found = [importer.env[each] if isinstance(each, fx.Node) else each for each in node.args[:2]]
    dtype = next(_dtype(each) for each in found if isinstance(each, relax.Expr))
    x, y = (each if isinstance(each, relax.Expr) else relax.const(each, dtype) for each in found)
    return x, y


def _dtype(x: Value) -> str:
    return str(x.ty.dtype)


ARITHMETIC = {
    **{f"ne.{form}": not_equal for form in ("Tensor", "Scalar")},
    **{f"add.{form}": add for form in ("Tensor", "Scalar")},
    **{f"mul.{form}": multiply for form in ("Tensor", "Scalar")},
    **{f"remainder.{form}": remainder for form in ("Tensor", "Scalar")},
    **{f"div.{form}_mode": divide for form in ("Tensor", "Scalar")},
    **{f"pow.{form}": power for form in ("Tensor_Tensor", "Tensor_Scalar", "Scalar")},
}


def cast(node: Any, importer: Any) -> Any:
    """`prims.convert_element_type.default`: tensor, type."""
    x = importer.env[node.args[0]]
    return emit(relax.op.astype(x, type_name(node.args[1])))


def clamp(node: Any, importer: Any) -> Any:
    """Limits: TVM takes infinities for those that are missing, which no integer is.

    clamp(x: int64, None, 15)        ->  R.minimum(x, R.const(15, "int64"))
    clamp(x, 1.0, -1.0)              ->  R.minimum(R.maximum(x, R.const(1.0)), R.const(-1.0))
    clamp.Tensor(x, low, None)       ->  R.maximum(x, low)

    `aten.clamp.default` and `aten.clamp.Tensor`: numbers or tensors, or missing.
    """
    x = importer.env[node.args[0]]
    dtype = str(x.ty.dtype)
    low, high = (*node.args[1:], None, None)[:2]
    low, high = node.kwargs.get("min", low), node.kwargs.get("max", high)
    numbers = not any(isinstance(each, fx.Node) for each in (low, high))
    crossed = numbers and None not in (low, high) and low > high
    if "float" in dtype and numbers and not crossed:
        return importer.create_convert_map()["clamp.default"](node)
    for limit, limited in ((low, relax.op.maximum), (high, relax.op.minimum)):
        if limit is not None:
            tensor = (
                importer.env[limit] if isinstance(limit, fx.Node) else relax.const(limit, dtype)
            )
            x = emit(limited(x, tensor))
    return x
