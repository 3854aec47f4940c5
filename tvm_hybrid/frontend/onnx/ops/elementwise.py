"""Operators on single elements: arithmetic, comparisons, logic, casts.

    Cast(x: f8, to=f16)    ->    R.astype(R.take(table: f32[256], x), "float16")
    Cast(x: f16, to=f8)    ->    table: u8[65536] at the upper half of each float32's bits
    Cast(x: f32, to=i4)    ->    R.astype(R.mod(R.astype(x, "int32") + 8, 16) - 8, "int8")

Types of 2, 4 and 8 bits are stored as graph/narrow_types.py says. Integers keep their low bits.
float64 is rounded to float32 first, as in ml_dtypes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto
from tvm import relax, te, tirx

from ... import expressions as ex
from ...expressions import NARROW_INPUTS, Expr, Place
from ..evaluate import OF_TWO
from ..graph import narrow_types
from ..graph.graph import dtype_named
from ..graph.narrow_types import FLOATS, INTEGERS
from ..graph.requests import broadcast
from ..graph.sizes import dims_of
from ..operators import apply, operator

DROPOUT_MASK_OF_BOOL = 10
# Operators of the same name in Relax.
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


def _binary(one: Expr, other: Expr, *, name: str, made: Callable[[Expr, Expr], Expr]) -> Expr:
    same = _unchanged(name, one, other)
    return made(one, other) if same is None else same


_NEUTRAL = {"Mul": 1, "Div": 1, "Pow": 1, "Add": 0, "Sub": 0}


def _unchanged(name: str, left: Expr, right: Expr) -> Expr | None:
    """The operand that arithmetic with a neutral constant leaves unchanged; None if there is none.

    Mul(x, 1)   Div(x, 1)   Pow(x, 1)   Add(x, 0)   Sub(x, 0)    ->    x
    """
    # Exporters leave such nodes behind; without them formulas such as x * sigmoid(1 * x) are
    # recognised.
    pairs = [(left, right), (right, left)] if name in ("Mul", "Add") else [(left, right)]
    for value, other in pairs if name in _NEUTRAL else ():
        array, shape = ex.constant(other), ex.static_dims(value)
        if array is None or shape is None or ex.constant(value) is not None or not array.size:
            continue
        is_neutral = array.item(0) == _NEUTRAL[name] and np.all(array == _NEUTRAL[name])
        if not is_neutral or ex.dtype_of(value) != ex.dtype_of(other) or array.ndim > len(shape):
            continue
        # A constant that would broadcast x does not count.
        aligned = zip(array.shape, shape[len(shape) - array.ndim :], strict=True)
        if all(one in (1, full) for one, full in aligned):
            return value
    return None


@operator("Div")
def _divide(x: Expr, divisor: Expr) -> Expr:
    known = ex.constant(divisor)
    if known is not None and known.dtype.kind in "iu" and not known.all():
        raise ValueError("integers are divided by 0")
    return _binary(x, divisor, name="Div", made=relax.op.divide)


@operator("Dropout")
def _dropout(
    x: Expr, ratio: Expr, training: Expr, *, node_opset: int, node_outputs: Sequence[str]
) -> Any:
    """Dropout in inference as its input and a mask that keeps every element."""
    share, flag = ex.constant(ratio), ex.constant(training)
    trains = training is not None and (flag is None or flag.any())
    if trains and (share is None or share.any()):
        raise ValueError("it is or may be in training mode; export it for inference")
    if not any(node_outputs[1:]):
        return x
    one = ex.literal(np.array(True)) if node_opset >= DROPOUT_MASK_OF_BOOL else ex.number(x, 1)
    return relax.Tuple([x, broadcast(one, dims_of(x))])


@operator("Clip")
def _clip(x: Expr, min: Expr, max: Expr) -> Expr:
    """Clip; a bound that is NaN has no effect."""
    dtype, given = ex.dtype_of(x), (min, max)
    known = [ex.constant(each) for each in given]
    computed = any(array is None is not each for array, each in zip(known, given, strict=True))
    bounds: list[Any] = [None if each is None or np.isnan(each) else each.item() for each in known]
    if not computed and None not in bounds and bounds[0] <= bounds[1] and "float" in dtype:
        return relax.op.clip(x, *map(relax.prim_value, bounds))
    limits = ((relax.op.maximum, -np.inf), (relax.op.minimum, np.inf))
    for (limited, free), bound, value in zip(limits, given, bounds, strict=True):
        if not computed:
            bound = None if value is None else ex.literal(np.array(value, dtype))
        elif bound is not None and "float" in dtype:
            bound = relax.op.where(relax.op.isnan(bound), ex.literal(np.array(free, dtype)), bound)
        x = x if bound is None else limited(x, bound)
    return x


def _chain(*values: Expr, made: Callable[[Expr, Expr], Expr]) -> Expr:
    return functools.reduce(made, values)


@operator("Mean")
def _mean(*values: Expr) -> Expr:
    return _chain(*values, made=relax.op.add) / ex.number(values[0], len(values))


for _name, _one_operand in _UNARY.items():
    operator(_name)(_one_operand)
operator("Where")(relax.op.where)
for _name, _two_operands in OF_TWO.items():
    made = getattr(relax.op, _two_operands)
    operator(_name)(functools.partial(_binary, name=_name, made=made))
for _name, _two_operands in (("Max", "maximum"), ("Min", "minimum"), ("Sum", "add")):
    operator(_name)(functools.partial(_chain, made=getattr(relax.op, _two_operands)))


# Operators whose results Relax's operators do not define for some values.
#
# operator        here
# BitCast         the bits as another type
# BitShift        defined by ONNX's text for shifts beyond the width, too
# Mod             has the sign of the divisor, as in Python
# IsInf           compares with one infinity or both
# Sign            the minimum of x and 1, for unsigned integers


@operator("BitCast")
def _bit_cast(x: Expr, *, to: int) -> Expr:
    target = dtype_named(to)
    if "bool" in (target, ex.dtype_of(x)):  # its bytes are 0 and 1
        return relax.op.astype(x, target)

    def element(place: Place, x: te.Tensor) -> Expr:
        return tirx.reinterpret(target, x[place])

    return ex.emit_each("compute", dims_of(x), element, x, hint="bit_cast")


@operator("BitShift")
def _bit_shift(x: Expr, amount: Expr, *, direction: str) -> Expr:
    """BitShift; a shift by the width or more, or by less than 0, moves all bits out."""
    dtype, left = ex.dtype_of(x), direction == "LEFT"
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
        return shifted  # only the sign is left
    return relax.op.where(out, zero, shifted)


@operator("Mod")
def _mod(x: Expr, divisor: Expr, *, fmod: int = 0) -> Expr:
    if fmod:
        return relax.op.mod(x, divisor)
    if "float" not in ex.dtype_of(x):
        return relax.op.floor_mod(x, divisor)
    zero = ex.number(x, 0)
    rest, below = ex.normalize(relax.op.mod(x, divisor)), ex.normalize(divisor < zero)
    differ = relax.op.logical_xor(rest < zero, below)
    moved = ex.normalize(relax.op.where(differ, rest + divisor, rest))
    signed = ex.normalize(relax.op.where(below, ex.number(x, -0.0), zero))
    return relax.op.where(relax.op.equal(rest, zero), signed, moved)


@operator("IsInf")
def _is_inf(x: Expr, *, detect_positive: int = 1, detect_negative: int = 1) -> Expr:
    if detect_positive == detect_negative:
        found = relax.op.isinf(x)
        return (
            found if detect_positive else relax.op.logical_and(found, ex.literal(np.array(False)))
        )
    return relax.op.equal(x, ex.number(x, np.inf if detect_positive else -np.inf))


@operator("Sign")
def _sign(x: Expr) -> Expr:
    is_unsigned = ex.dtype_of(x).startswith("uint")
    return relax.op.minimum(x, ex.number(x, 1)) if is_unsigned else relax.op.sign(x)


# Beyond this exponent a base of 2 or more exceeds 64 bits; for 0, 1 and -1 only its parity matters.
_MOST = 64
# Types that float32 holds exactly; of other types it holds integers up to 2**24.
_EXACT_IN_FLOAT32 = ("int8", "int16", "uint8", "uint16", "float16", "bfloat16", "float32")


def _pow(x: Expr, exponent: Expr) -> Expr:
    dtype, known = ex.dtype_of(x), ex.constant(exponent)
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
        is_small = (known >= -(2**24)) & (known <= 2**24)
        fits = bool((is_small & (known == np.trunc(known))).all())
    computed = "float32" if dtype in _EXACT_IN_FLOAT32 and fits else "float64"
    power = relax.op.power(ex.cast(x, computed), ex.cast(exponent, computed))
    return ex.cast(power, dtype)


operator("Pow")(functools.partial(_binary, name="Pow", made=_pow))


def integer_power(x: Expr, exponent: Expr) -> Expr:
    """A power of integers, by repeated squaring; the result has the type of the base.

        Pow(x, 2)                ->    R.multiply(x, x)
        Pow(x: f32, y: i8)       ->    R.power(x, R.astype(y, "float32"))
        Pow(x: i32, y: f32)      ->    R.astype(R.power(R.astype(x, "float64"), ...), "int32")
        Pow(x: i32, y: i32)      ->    products of x, x * x, (x * x) * (x * x), ... by the bits of y

    Only the last form is computed here; `_pow` converts the others, as TVM's power takes floats of
    one type. A power is exact if the type holds it, and wraps like a product if not. One with a
    negative exponent is rounded towards zero; a negative power of 0 is 0.
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
    # 1 / x ** n is 0 unless x is 1 or -1.
    unit = relax.op.logical_or(*(relax.op.equal(x, ex.number(x, unit)) for unit in (1, -1)))
    is_odd = relax.op.not_equal(odd, ex.number(exponent, 0))
    signed = relax.op.where(is_odd, x, ex.number(x, 1))
    inverse = ex.normalize(relax.op.where(unit, signed, ex.number(x, 0)))
    return relax.op.where(exponent < ex.number(exponent, 0), inverse, power)


@operator("Cast")
def _cast(x: Expr, *, to: int, **attrs: Any) -> Expr:
    source = attrs.get(NARROW_INPUTS, {}).get(0)
    if source == to:
        return x
    if source in FLOATS:
        x = decoded(x, source)
    if to in FLOATS:
        return encoded(x, to, **attrs)
    if to in INTEGERS:
        x, (low, high) = apply("Cast", x, to=TensorProto.INT32), INTEGERS[to]
        first, count = ex.number(x, low), ex.number(x, high - low + 1)
        x = apply("Add", apply("Mod", apply("Sub", x, first), count), first)
    return relax.op.astype(x, dtype_named(narrow_types.stored_type(to)))


def decoded(codes: Expr, elem_type: int) -> Expr:
    """Converts a narrow float, given by its bits, to float32."""
    array = ex.constant(codes)
    if array is not None:
        return ex.literal(narrow_types.decode(array, elem_type))
    table = ex.literal(narrow_types.decoding_table(elem_type))
    return ex.normalize(relax.op.take(table, relax.op.astype(codes, "int32"), 0, mode="clip"))


def encoded(
    value: Expr, elem_type: int, saturate: int = 1, round_mode: str = "up", **_: Any
) -> Expr:
    """Converts a value of any type to a narrow float, given by its bits."""
    form = bool(saturate), round_mode
    value = ex.cast(value, "float32")
    array = ex.constant(value)
    if array is not None:
        return ex.literal(narrow_types.encode(array, elem_type, *form))

    def element(place: Place, values: te.Tensor, table: te.Tensor) -> Expr:
        bits = tirx.reinterpret("uint32", values[place])
        upper, lower = bits >> tirx.const(16, "uint32"), bits & tirx.const(0xFFFF, "uint32")
        rest = tirx.Select(lower != tirx.const(0, "uint32"), 1, 0)
        return table[upper.astype("int32") | rest]

    table = ex.literal(narrow_types.encoding_table(elem_type, *form))
    return ex.emit_each("encode", dims_of(value), element, value, table, hint="encode_float")
