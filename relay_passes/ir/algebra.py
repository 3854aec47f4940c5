"""Arithmetic of a graph as polynomials, to recognise a formula in any notation.

    0.5 * (x * (1 + erf(x / 1.414)))   and   x * (erf(0.707 * x) * 0.5 + 0.5)

both become {x: 0.5, x * erf: 0.5} once erf(...) and x are taken as atoms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax

from .constants import array_of, constant_of
from .graph import DataflowGraph, is_call, op_name, region_tensor, same_shape, scalar_constant
from .rewrite import Bindings

Monomial = frozenset[tuple[Hashable, float]]
Polynomial = dict[Monomial, float]
AtomOf = Callable[[relax.Expr], "Hashable | None"]

ONE: Monomial = frozenset()
# Factors that leave room in float32, whether they apply before or after a sum of products.
LEAST, LARGEST = 2.0**-32, 2.0**32
_LEAST_NUMBER = 2.0**-64  # added numbers, as in a norm, may be smaller than factors
_MOST_TERMS = 8
_FIRST = 1000  # elements of a large constant to look at first; mostly they decide
_MOST_DEPTH = 8


def monomial(*factors: tuple[Hashable, float]) -> Monomial:
    """A product of atoms, each with its exponent."""
    return frozenset(factors)


def uniform_constant(expr: relax.Expr) -> float | None:
    """The value of a constant whose elements are all equal, else None.

    None too for a number that must not be combined with others: the result could be infinite or 0
    where the formula is not.
    """
    if not isinstance(expr, ir.GenericConst):
        return None
    array = array_of(expr.value).reshape(-1)
    if array.size == 0 or array.dtype == bool:
        return None
    if any(np.any(part != array[0]) for part in (array[:_FIRST], array)):
        return None
    number = float(array[0])
    return number if number == 0 or _LEAST_NUMBER <= abs(number) <= LARGEST else None


def expand(
    graph: DataflowGraph, expr: relax.Expr, atom_of: AtomOf, depth: int = _MOST_DEPTH
) -> Polynomial:
    """An expression as a sum of products of atoms.

    Parameters
    ----------
    graph : DataflowGraph
        Where definitions are looked up.
    expr : relax.Expr
        The expression; addition, subtraction, negation, multiplication, division by a product, and
        powers are expanded.
    atom_of : callable
        The name of an expression that is to be an atom, else None. A value that is no arithmetic is
        always an atom under its own name.
    depth : int
        Most levels of operators to expand.

    Returns
    -------
    dict
        Coefficient of every product; exponents may be negative or fractional.
    """
    name = atom_of(expr)
    if name is not None:
        return {monomial((name, 1.0)): 1.0}
    number = uniform_constant(expr)
    if number is not None:
        return {ONE: number}
    opaque: Polynomial = {monomial((expr, 1.0)): 1.0}
    call = graph.definition(expr)
    rule = _RULES.get(op_name(call))
    if call is None or rule is None or depth == 0:
        return opaque
    if op_name(call) == "relax.power":
        exponent = scalar_constant(call.args[1])
        base = expand(graph, call.args[0], atom_of, depth - 1)
        result = None if exponent is None else _power(base, exponent)
    else:
        result = rule(*(expand(graph, arg, atom_of, depth - 1) for arg in call.args))
    return opaque if result is None or len(result) > _MOST_TERMS else result


def close(a: Polynomial, b: Polynomial, tolerance: float = 1e-5) -> bool:
    """Whether two polynomials have the same products with nearly the same coefficients."""
    return a.keys() == b.keys() and all(
        math.isclose(a[term], b[term], rel_tol=tolerance) for term in a
    )


def _add(a: Polynomial, b: Polynomial) -> Polynomial:
    return {term: a.get(term, 0.0) + b.get(term, 0.0) for term in (*a, *b)}


def _negate(a: Polynomial) -> Polynomial:
    return {term: -coefficient for term, coefficient in a.items()}


def _multiply(a: Polynomial, b: Polynomial) -> Polynomial | None:
    if len(a) * len(b) > _MOST_TERMS:
        return None
    result: Polynomial = {}
    for left, p in a.items():
        for right, q in b.items():
            exponents = dict(left)
            for atom, exponent in right:
                exponents[atom] = exponents.get(atom, 0.0) + exponent
            term = frozenset((atom, e) for atom, e in exponents.items() if e)
            result[term] = result.get(term, 0.0) + p * q
    return result


def _divide(a: Polynomial, b: Polynomial) -> Polynomial | None:
    inverse = _power(b, -1.0)
    return None if inverse is None else _multiply(a, inverse)


def _power(a: Polynomial, exponent: float) -> Polynomial | None:
    """A power of a product, or the square or cube of a sum; None for any other power."""
    if len(a) > 1:
        if exponent not in (2.0, 3.0):
            return None
        square = _multiply(a, a)
        return square if square is None or exponent == 2.0 else _multiply(square, a)
    ((term, coefficient),) = a.items()
    if coefficient == 0.0:
        return None
    if exponent != int(exponent) and (coefficient < 0 or any(e != 1.0 for _, e in term)):
        return None  # the root of a square is not a product of atoms
    return {frozenset((atom, e * exponent) for atom, e in term): coefficient**exponent}


_RULES: dict[str, Callable[..., Polynomial | None]] = {
    "relax.add": _add,
    "relax.subtract": lambda a, b: _add(a, _negate(b)),
    "relax.negative": _negate,
    "relax.multiply": _multiply,
    "relax.divide": _divide,
    "relax.square": lambda a: _power(a, 2.0),
    "relax.sqrt": lambda a: _power(a, 0.5),
    "relax.rsqrt": lambda a: _power(a, -0.5),
    "relax.power": _power,
}


_OPERATORS = ("relax.multiply", "relax.add", "relax.subtract", "relax.divide")


@dataclass(frozen=True)
class ChannelFactors:
    """A value as x * factor + term.

    Attributes
    ----------
    x : relax.Expr
        The operand that is no constant.
    factor, term : ndarray of float64 [channels]
        One number per channel.
    """

    x: relax.Expr
    factor: np.ndarray
    term: np.ndarray

    def then(self, later: ChannelFactors) -> ChannelFactors:
        """This operation followed by another one."""
        return ChannelFactors(
            self.x, self.factor * later.factor, self.term * later.factor + later.term
        )


def factors_of(call: relax.Expr | None, axis: int) -> ChannelFactors | None:
    """Reads a product or sum of x and a constant, per channel or scalar; None for any other call.

    Parameters
    ----------
    call : relax.Expr or None
        The call to read.
    axis : int
        The channel axis of x, counted from the end.
    """
    if not is_call(call, *_OPERATORS):
        return None
    constants = [isinstance(arg, ir.GenericConst) for arg in call.args]
    if sum(constants) != 1:
        return None
    first = not constants[0]
    x, constant = (call.args[0], call.args[1]) if first else (call.args[1], call.args[0])
    tensor, result = region_tensor(x), region_tensor(call)
    if tensor is None or result is None or tensor.shape != result.shape:
        return None
    if tensor.dtype not in ("float16", "float32", "float64") or len(tensor.shape) < -axis:
        return None
    values = per_channel(array_of(constant.value), tensor.shape, len(tensor.shape) + axis)
    if values is None:
        return None
    found = linear(str(call.op.name).removeprefix("relax."), values, first)
    return None if found is None else ChannelFactors(x, *found)


def linear(name: str, values: np.ndarray, first: bool) -> tuple[np.ndarray, np.ndarray] | None:
    """Factor and term of an operator of x and some values; `first`: x is the first operand.

    None if the operator is neither a sum nor a product, or if the numbers leave no room for others.
    """
    one, zero = np.ones_like(values), np.zeros_like(values)
    with np.errstate(all="ignore"):
        match name:
            case "multiply":
                found = values, zero
            case "add":
                found = one, values
            case "subtract":
                found = (one, -values) if first else (-one, values)
            case "divide" if first and bool((values != 0).all()):
                found = 1 / values, zero
            case _:
                return None
    return found if all(map(_has_room, found)) else None


def _has_room(values: np.ndarray) -> bool:
    """Whether further products and sums with these values neither overflow nor, in every channel,
    underflow."""
    # Single channels may have tiny factors: training has turned those channels off.
    largest = float(np.abs(values).max(initial=0.0))
    return largest == 0 or LEAST <= largest <= LARGEST


def per_channel(constant: np.ndarray, shape: Sequence[int | None], axis: int) -> np.ndarray | None:
    """A constant as one float64 per channel; None if it has more axes than that or broadcasts x."""
    channels = shape[axis] if axis < len(shape) else None
    if constant.ndim > len(shape) or not isinstance(channels, int):
        return None
    if constant.size == 1:
        return np.full(channels, constant.reshape(-1)[0], np.float64)
    aligned = (1,) * (len(shape) - constant.ndim) + constant.shape
    wanted = tuple(channels if i == axis else 1 for i in range(len(shape)))
    return constant.reshape(-1).astype(np.float64) if aligned == wanted else None


def in_shape(block: Bindings, value: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    """Per-channel numbers, [channels], reshaped to `shape`, whose other axes have extent 1."""
    if isinstance(value, ir.GenericConst):
        return constant_of(array_of(value.value).reshape(shape))
    return block.emit(relax.op.reshape(value, shape)) if len(shape) > 1 else value


def number_factor(call: relax.Call) -> tuple[relax.Expr, float] | None:
    """(value, factor) of an f32 product of a variable and a number that leaves room; else None.

    Parameters
    ----------
    call : relax.Call
        R.multiply(value, number), R.multiply(number, value), R.divide(value, number), or another.
    """
    name = op_name(call)
    if name not in ("relax.multiply", "relax.divide") or str(call.ty.dtype) != "float32":
        return None
    product = name == "relax.multiply"
    for value, constant in (call.args, reversed(call.args)) if product else (call.args,):
        number = scalar_constant(constant)
        if number is None or not isinstance(value, relax.Var) or not same_shape(value, call):
            continue
        if LEAST <= abs(number) <= LARGEST:
            return value, number if product else 1.0 / number
    return None
