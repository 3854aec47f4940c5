"""Operators on single elements: arithmetic, comparisons, logic, casts.

    Cast(x: f8, to=f16)    ->    R.astype(R.take(table: f32[256], x), "float16")
    Cast(x: f16, to=f8)    ->    table: u8[65536] at the upper half of each float32's bits
    Cast(x: f32, to=i4)    ->    R.astype(R.mod(R.astype(x, "int32") + 8, 16) - 8, "int8")

Types of 2, 4 and 8 bits are those of graph/narrow_types.py. Integers keep their low bits. float64
is rounded to float32 first, as in ml_dtypes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from tvm import relax, te, tirx

from ... import expressions as ex
from ...expressions import NARROW_INPUTS, OPSET, OUTPUTS, Attrs, Converter, Expr, Inputs
from ..apply import apply
from ..graph import narrow_types
from ..graph.narrow_types import FLOATS, INTEGERS
from ..graph.requests import broadcast
from ..graph.sizes import dims_of
from ..operators import operator

DROPOUT_MASK_OF_BOOL = 10
# Those that Relax has by the same name.
_SAME_NAME = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf"),
    *("Exp", "Floor", "IsNaN", "Log", "Round", "Sigmoid", "Sin", "Sinh", "Sqrt", "Tan", "Tanh"),
)
_UNARY: dict[str, Callable[[Expr], Expr]] = {
    **{name: getattr(relax.op, name.lower()) for name in _SAME_NAME},
    "BitwiseNot": relax.op.bitwise_not,
    "Identity": lambda x: x,
    "Neg": relax.op.negative,
    "Not": relax.op.logical_not,
    "Reciprocal": lambda x: ex.number(x, 1) / x,
    "Relu": relax.op.nn.relu,
}
_BINARY: dict[str, Callable[[Expr, Expr], Expr]] = {
    "Add": relax.op.add,
    "And": relax.op.logical_and,
    "BitwiseAnd": relax.op.bitwise_and,
    "BitwiseOr": relax.op.bitwise_or,
    "BitwiseXor": relax.op.bitwise_xor,
    "Equal": relax.op.equal,
    "Greater": relax.op.greater,
    "GreaterOrEqual": relax.op.greater_equal,
    "Less": relax.op.less,
    "LessOrEqual": relax.op.less_equal,
    "Mul": relax.op.multiply,
    "Or": relax.op.logical_or,
    "Sub": relax.op.subtract,
    "Xor": relax.op.logical_xor,
}


def _unary(made: Callable[[Expr], Expr]) -> Converter:
    return lambda inputs, attrs: made(inputs[0])


def _binary(name: str, made: Callable[[Expr, Expr], Expr]) -> Converter:
    def convert(inputs: Inputs, attrs: Attrs) -> Any:
        same = unchanged(name, inputs)
        return made(inputs[0], inputs[1]) if same is None else same

    return convert


_NEUTRAL = {"Mul": 1, "Div": 1, "Pow": 1, "Add": 0, "Sub": 0}
_COMMUTATIVE = ("Mul", "Add")


def unchanged(name: str, inputs: Inputs) -> Expr | None:
    """The operand that arithmetic with a neutral constant leaves as it is, or None.

        Mul(x, 1)   Div(x, 1)   Pow(x, 1)   Add(x, 0)   Sub(x, 0)    ->    x

    Exporters leave such nodes behind. Only where the constant does not widen x. Formulas around
    it are recognised then, such as x * sigmoid(1 * x).
    """
    left, right = inputs
    pairs = [(left, right), (right, left)] if name in _COMMUTATIVE else [(left, right)]
    for value, other in pairs if name in _NEUTRAL else ():
        array, shape = ex.constant(other), ex.static_dims(value)
        if array is None or shape is None or ex.constant(value) is not None or not array.size:
            continue
        if array.item(0) != _NEUTRAL[name] or not np.all(array == _NEUTRAL[name]):
            continue
        aligned = shape[len(shape) - array.ndim :]
        if (
            ex.dtype_of(value) == ex.dtype_of(other)
            and array.ndim <= len(shape)
            and all(one in (1, full) for one, full in zip(array.shape, aligned, strict=True))
        ):
            return value
    return None


@operator("Div")
def _divide(inputs: Inputs, attrs: Attrs) -> Any:
    divisor = ex.constant(inputs[1])
    if divisor is not None and divisor.dtype.kind in "iu" and not divisor.all():
        raise ValueError("integers are divided by 0")
    same = unchanged("Div", inputs)
    return relax.op.divide(inputs[0], inputs[1]) if same is None else same


@operator("Dropout")
def _dropout(inputs: Inputs, attrs: Attrs) -> Any:
    """The input, as in inference, and a mask that keeps every element."""
    x, (ratio, training) = inputs[0], (ex.constant(inputs[place]) for place in (1, 2))
    trains = inputs[2] is not None and (training is None or training.any())
    if trains and (ratio is None or ratio.any()):
        raise ValueError("it is or may be in training mode; export it for inference")
    if not any(attrs[OUTPUTS][1:]):
        return x
    one = ex.literal(np.array(True)) if attrs[OPSET] >= DROPOUT_MASK_OF_BOOL else ex.number(x, 1)
    return relax.Tuple([x, broadcast(one, dims_of(x))])


@operator("Clip")
def _clip(inputs: Inputs, attrs: Attrs) -> Any:
    value, dtype = inputs[0], ex.dtype_of(inputs[0])
    bounds = []
    for position, name in ((1, "min"), (2, "max")):
        given = inputs[position]
        bound = attrs.get(name) if given is None else ex.constant(given)
        if given is not None and bound is None:
            return _clip_to(inputs)
        bounds.append(None if bound is None or np.isnan(bound) else np.asarray(bound).item())
    low, high = bounds
    if low is not None and high is not None and low <= high and "float" in dtype:
        return relax.op.clip(value, relax.prim_value(low), relax.prim_value(high))
    if low is not None:
        value = relax.op.maximum(value, ex.literal(np.array(low, dtype)))
    if high is not None:
        value = relax.op.minimum(value, ex.literal(np.array(high, dtype)))
    return value


def _clip_to(inputs: Sequence[Any]) -> Any:
    """Bounds that are computed; one that is NaN bounds nothing."""
    value, dtype = inputs[0], ex.dtype_of(inputs[0])
    for bound, limit, open_end in zip(
        inputs[1:3], (relax.op.maximum, relax.op.minimum), (-np.inf, np.inf), strict=False
    ):
        if bound is None:
            continue
        if "float" in dtype:
            free = ex.literal(np.array(open_end, dtype))
            bound = relax.op.where(relax.op.isnan(bound), free, bound)
        value = limit(value, bound)
    return value


def _chain(made: Callable[[Expr, Expr], Expr]) -> Converter:
    return lambda inputs, attrs: functools.reduce(made, inputs)


@operator("Mean")
def _mean(inputs: Inputs, attrs: Attrs) -> Any:
    return _chain(relax.op.add)(inputs, attrs) / ex.number(inputs[0], len(inputs))


for _name, _one_operand in _UNARY.items():
    operator(_name)(_unary(_one_operand))
operator("Where")(lambda inputs, attrs: relax.op.where(*inputs))
for _name, _two_operands in _BINARY.items():
    operator(_name)(_binary(_name, _two_operands))
operator("Max")(_chain(relax.op.maximum))
operator("Min")(_chain(relax.op.minimum))
operator("Sum")(_chain(relax.op.add))


# Operators whose results for some values Relax's operators leave open.
#
# operator        here
# BitCast         the same bits as another type
# BitShift        as the operator's text says beyond the width, too
# Mod             the sign of the divisor, as in Python
# IsInf           compares with one infinity or both
# Sign            of unsigned integers the smaller of each and 1


@operator("BitCast")
def _bit_cast(inputs: Inputs, attrs: Attrs) -> Any:
    x, target = inputs[0], str(helper.tensor_dtype_to_np_dtype(attrs["to"]))
    if "bool" in (target, ex.dtype_of(x)):  # whose bytes are 0 and 1
        return relax.op.astype(x, target)

    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *place: tirx.reinterpret(target, x[place]))

    return ex.emit_te(compute, x, primfunc_name_hint="bit_cast")


@operator("BitShift")
def _bit_shift(inputs: Inputs, attrs: Attrs) -> Any:
    """A shift by the width or more, or by less than 0, moves all bits out."""
    x, amount = inputs
    dtype, left = ex.dtype_of(x), attrs["direction"] == "LEFT"
    shift = relax.op.left_shift if left else relax.op.right_shift
    bits = np.dtype(dtype).itemsize * 8
    known = ex.constant(amount)
    if known is not None and not ((known < 0) | (known >= bits)).any():
        return shift(x, amount)

    out, zero = amount >= ex.number(x, bits), ex.number(x, 0)
    if not dtype.startswith("uint"):
        out = relax.op.logical_or(out, amount < zero)
    shifted = shift(x, relax.op.where(out, ex.number(x, bits - 1), amount))
    if not left and not dtype.startswith("uint"):
        return shifted  # nothing but the sign is left
    return relax.op.where(out, zero, shifted)


@operator("Mod")
def _mod(inputs: Inputs, attrs: Attrs) -> Any:
    x, divisor = inputs
    dtype = ex.dtype_of(x)
    if attrs.get("fmod", 0):
        return relax.op.mod(x, divisor)
    if "float" not in dtype:
        return relax.op.floor_mod(x, divisor)
    zero = ex.number(x, 0)
    rest, below = ex.normalize(relax.op.mod(x, divisor)), ex.normalize(divisor < zero)
    differ = relax.op.logical_xor(rest < zero, below)
    moved = ex.normalize(relax.op.where(differ, rest + divisor, rest))
    signed = ex.normalize(relax.op.where(below, ex.number(x, -0.0), zero))
    return relax.op.where(relax.op.equal(rest, zero), signed, moved)


@operator("IsInf")
def _is_inf(inputs: Inputs, attrs: Attrs) -> Any:
    x = inputs[0]
    both = attrs.get("detect_positive", 1), attrs.get("detect_negative", 1)
    if all(both):
        return relax.op.isinf(x)
    if not any(both):
        return relax.op.logical_and(relax.op.isinf(x), ex.literal(np.array(False)))
    return relax.op.equal(x, ex.number(x, np.inf if both[0] else -np.inf))


@operator("Sign")
def _sign(inputs: Inputs, attrs: Attrs) -> Any:
    x = inputs[0]
    is_unsigned = ex.dtype_of(x).startswith("uint")
    return relax.op.minimum(x, ex.number(x, 1)) if is_unsigned else relax.op.sign(x)


# From here on a base of 2 or more leaves 64 bits; others depend on whether the exponent is odd.
_MOST = 64
# What float32 holds without rounding.
_EXACT_IN_FLOAT32 = ("int8", "int16", "uint8", "uint16", "float16", "bfloat16", "float32")
_LARGEST_EXACT = 2**24


@operator("Pow")
def _pow(inputs: Inputs, attrs: Attrs) -> Any:
    x, exponent = inputs
    same = unchanged("Pow", inputs)
    if same is not None:
        return same
    dtype = ex.dtype_of(x)
    known = ex.constant(exponent)
    if known is not None and known.size == 1 and known.item() == 2:
        dims = ex.static_dims(x)
        if dims is not None and known.ndim <= len(dims):
            return x * x
    if "float" not in dtype and "float" not in ex.dtype_of(exponent):
        return integer_power(x, exponent)
    if dtype == ex.dtype_of(exponent) != "bfloat16":
        return relax.op.power(x, exponent)
    fits = ex.dtype_of(exponent) in _EXACT_IN_FLOAT32
    if known is not None and not fits:
        is_small = (known >= -_LARGEST_EXACT) & (known <= _LARGEST_EXACT)
        fits = bool((is_small & (known == np.trunc(known))).all())
    computed = "float32" if dtype in _EXACT_IN_FLOAT32 and fits else "float64"
    power = relax.op.power(ex.cast(x, computed), ex.cast(exponent, computed))
    return ex.cast(power, dtype)


def integer_power(x: Expr, exponent: Expr) -> Expr:
    """Converts Pow of all types; the result has the type of the base.

        Pow(x, 2)                ->    R.multiply(x, x)
        Pow(x: f32, y: i8)       ->    R.power(x, R.astype(y, "float32"))
        Pow(x: i32, y: f32)      ->    R.astype(R.power(R.astype(x, "float64"), ...), "int32")
        Pow(x: i32, y: i32)      ->    products of x, x * x, (x * x) * (x * x), ... by the bits of y

    TVM's power takes floats of one type. Powers of integers are exact where the type holds them;
    those with negative exponents are rounded towards zero.

    A power of an integer, by repeated squaring.

    More than the type holds is lost as in a product; a negative power of 0 is 0.
    """
    odd = ex.normalize(relax.op.bitwise_and(exponent, ex.number(exponent, 1)))
    most = ex.number(exponent, _MOST)
    bits = ex.cast(relax.op.where(exponent >= most, odd + most, exponent), "int32")
    power, square = ex.number(x, 1), x
    for bit in range((_MOST + 1).bit_length()):
        one = relax.op.bitwise_and(bits, ex.number(bits, 1 << bit))
        chosen = relax.op.not_equal(one, ex.number(bits, 0))
        power = ex.normalize(relax.op.where(chosen, power * square, power))
        square = ex.normalize(square * square)
    if ex.dtype_of(exponent).startswith("uint"):
        return power
    # 1 / x ** n is 0 but for x of 1 and -1.
    unit = relax.op.logical_or(*(relax.op.equal(x, ex.number(x, unit)) for unit in (1, -1)))
    is_odd = relax.op.not_equal(odd, ex.number(exponent, 0))
    signed = relax.op.where(is_odd, x, ex.number(x, 1))
    inverse = ex.normalize(relax.op.where(unit, signed, ex.number(x, 0)))
    return relax.op.where(exponent < ex.number(exponent, 0), inverse, power)


@operator("Cast")
def _cast(inputs: Inputs, attrs: Attrs) -> Any:
    x, source, target = inputs[0], attrs.get(NARROW_INPUTS, {}).get(0), attrs["to"]
    if source == target:
        return x
    if source in FLOATS:
        x = decoded(x, source)
    if target in FLOATS:
        return encoded(x, target, attrs)
    if target in INTEGERS:
        x, (low, high) = apply("Cast", x, to=TensorProto.INT32), INTEGERS[target]
        first, count = ex.number(x, low), ex.number(x, high - low + 1)
        x = apply("Add", apply("Mod", apply("Sub", x, first), count), first)
    return relax.op.astype(x, dtype_named(narrow_types.stored_type(target)))


def dtype_named(elem_type: int) -> str:
    """Relax's name of an element type."""
    return str(helper.tensor_dtype_to_np_dtype(elem_type))


def decoded(codes: Expr, elem_type: int) -> Expr:
    """A narrow float as float32."""
    array = ex.constant(codes)
    if array is not None:
        return ex.literal(narrow_types.decode(array, elem_type))
    table = ex.literal(narrow_types.decoding_table(elem_type))
    return ex.normalize(relax.op.take(table, relax.op.astype(codes, "int32"), 0, mode="clip"))


def encoded(value: Expr, elem_type: int, attrs: Attrs) -> Expr:
    """A value of any type as a narrow float, by the attributes saturate and round_mode."""
    form = bool(attrs.get("saturate", 1)), attrs.get("round_mode", "up")
    value = ex.cast(value, "float32")
    array = ex.constant(value)
    if array is not None:
        return ex.literal(narrow_types.encode(array, elem_type, *form))

    def compute(values: te.Tensor, table: te.Tensor) -> te.Tensor:
        def element(*position: Expr) -> Expr:
            bits = tirx.reinterpret("uint32", values[position])
            upper, lower = bits >> tirx.const(16, "uint32"), bits & tirx.const(0xFFFF, "uint32")
            rest = tirx.Select(lower != tirx.const(0, "uint32"), 1, 0)
            return table[upper.astype("int32") | rest]

        return te.compute(values.shape, element, name="encode")

    table = ex.literal(narrow_types.encoding_table(elem_type, *form))
    return ex.emit_te(compute, value, table, primfunc_name_hint="encode_float")
