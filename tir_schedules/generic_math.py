"""Replaces calls that would become scalar library calls by arithmetic that vectorises.

    T.exp(x)            ->  polynomial of microkernels.vector_math
    T.pow(x, 2.0)       ->  x * x
    T.bfloat16(x)       ->  integer arithmetic on the bits of x, rounding to nearest even

Calls in other types than float32, and functions that vector_math does not have, stay as they are.
TVM's own conversion to bfloat16 repeats its argument and turns a NaN into infinity.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm_ffi
from tvm import tirx
from tvm.ir import Call

from microkernels import bfloat16, vector_math
from microkernels.vectors import Expr, cast, element_of, let_scope, like, with_lets

from .generic_expr import call_name

_FUNCTIONS: dict[str, Callable[[Expr], Expr]] = {
    "exp": vector_math.exp,
    "log": vector_math.log,
    "erf": vector_math.erf,
    "tanh": vector_math.tanh,
    "sigmoid": vector_math.sigmoid,
    "rsqrt": vector_math.rsqrt,
    "softplus": vector_math.softplus,
}


def lower_math(expression: Expr) -> Expr:
    """The expression with library calls replaced; it may be a scalar or a vector."""
    return tvm_ffi.structural_map(expression, ((Call, _lowered), (tirx.Cast, _converted)))


def _converted(conversion: tirx.Cast) -> Expr:
    """A cast between bfloat16 and f32 on bits; any other stays."""
    source, target = element_of(conversion.value), element_of(conversion)
    if (source, target) == ("bfloat16", "float32"):
        return bfloat16.widen(bfloat16.bits_of(conversion.value))
    if (source, target) == ("float32", "bfloat16"):
        with let_scope() as lets:
            return with_lets(lets, bfloat16.from_bits(bfloat16.narrow(conversion.value)))
    return conversion


def _lowered(call: Call) -> Expr:
    name = call_name(call)
    if name == "pow":
        return _power(call)
    if name not in _FUNCTIONS:
        return call
    element = element_of(call)
    if element not in ("float32", "float16"):
        return call
    with let_scope() as lets:
        result = _FUNCTIONS[name](cast("float32", call.args[-1]))
        return with_lets(lets, cast(element, result))


def _power(call: Call) -> Expr:
    """A constant power by multiplications and roots; else the call."""
    base, exponent = call.args
    if not isinstance(exponent, tirx.FloatImm | tirx.IntImm) or not isinstance(base, tirx.Expr):
        return call
    value = float(exponent.value)
    if value == 1.0:
        return base
    if value not in (2.0, 3.0, 4.0, -1.0, 0.5, -0.5):
        return call
    variable = tirx.Var("base", str(base.ty.dtype))
    squared = variable * variable
    results = {
        2.0: lambda: squared,
        3.0: lambda: squared * variable,
        4.0: lambda: squared * squared,
        -1.0: lambda: like(1.0, base) / variable,
        0.5: lambda: tirx.sqrt(variable),
        -0.5: lambda: like(1.0, base) / tirx.sqrt(variable),
    }
    return tirx.Let(variable, base, results[value]())
