"""Dynamic sizes: numbers, symbols, and what can be proved about them."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.sym import Analyzer

from tir_schedules.generic.expressions import substitute

from ...expressions import Expr, literal, normalize, static_shape_of

INDEX = "int64"
LARGEST = 1 << 40  # larger than any size


def dims_of(value: Expr) -> list[Expr]:
    """The sizes of a tensor, numbers and symbols; ValueError if the shape is not known."""
    shape = value.ty.shape
    if not isinstance(shape, relax.ShapeExpr):
        raise ValueError("the shape of an input is not known")
    return list(shape.values)


def plain(sizes: Iterable[Expr]) -> list[int | Expr]:
    """Sizes, with known ones as Python integers."""
    return [int(size) if isinstance(size, tirx.IntImm) else size for size in sizes]


def plain_dims(value: Expr) -> list[int | Expr]:
    """The sizes of a tensor, with known ones as Python integers."""
    return plain(dims_of(value))


def is_dynamic(value: Any) -> bool:
    """Whether a value is a tensor with a dynamic size."""
    found = getattr(value, "ty", None)
    return isinstance(found, relax.TensorType) and static_shape_of(found) is None


def is_unknown(value: Any) -> bool:
    """Whether a value is a tensor whose shape is not even known in terms of symbols."""
    found = getattr(value, "ty", None)
    return isinstance(found, relax.TensorType) and not isinstance(found.shape, relax.ShapeExpr)


def product(sizes: Iterable[Expr]) -> Expr:
    """The product of sizes."""
    known = plain(sizes)
    if all(isinstance(size, int) for size in known):  # faster: TVM would fold each product
        return tirx.const(math.prod(known), INDEX)
    return functools.reduce(operator.mul, known, tirx.const(1, INDEX))


def same_size(one: Expr, other: Expr) -> bool:
    """Whether two sizes are known to be equal, however they are written."""
    if tvm_ffi.structural_equal(one, other):
        return True
    if all(isinstance(size, (tirx.IntImm, tirx.Var)) for size in (one, other)):
        return False
    return is_number(simplified(one - other), 0)


def holds(condition: Expr) -> bool:
    """Whether a condition is known to hold for all values of the sizes in it."""
    return is_number(simplified(tirx.Select(condition, index(1), index(0))), 1)


def never_negative(size: Expr) -> bool:
    """Whether a size is built from numbers and sizes without a subtraction."""
    if isinstance(size, tirx.Add | tirx.Mul | tirx.FloorDiv | tirx.Max | tirx.Min):
        return never_negative(size.a) and never_negative(size.b)
    return isinstance(size, tirx.Var) or (isinstance(size, tirx.IntImm) and int(size) >= 0)


def is_number(size: Expr, number: int) -> bool:
    """Whether a size is this number."""
    return isinstance(size, tirx.IntImm) and int(size) == number


def scalar_of(size: Expr) -> Expr:
    """A size as a scalar tensor."""
    if isinstance(size, tirx.IntImm):
        return literal(np.array(int(size)))
    return normalize(relax.op.reshape(vector_of(size), ()))


def vector_of(*sizes: Expr | int) -> Expr:
    """Sizes as an int64 vector; a constant if all are known."""
    if all(isinstance(size, int) for size in sizes):
        return literal(np.array(sizes, INDEX))
    every = relax.ShapeExpr([index(0) + size for size in sizes])
    return normalize(relax.op.shape_to_tensor(every))


def plus(one: Expr | int, other: Expr | int) -> Expr | int:
    """The sum of two sizes."""
    total = one + other
    return total if isinstance(total, int) else simplified(total)


def counted(count: Expr | int, first: int = 0) -> Expr:
    """An int64 vector of `count` successive numbers from `first` on."""
    if isinstance(count, int):
        return literal(np.arange(first, first + count, dtype=INDEX))
    row = normalize(relax.op.arange(0, count, 1, INDEX))
    return normalize(relax.op.add(row, literal(np.array(first)))) if first else row


def simplified(size: Expr) -> Expr:
    """Simplifies a size; every variable in it counts as a size.

    A multiple written with a remainder, such as `t + (16 - t % 16) % 16`, becomes a number times a
    quotient, `(t + 15) // 16 * 16`. A minimum becomes the operand that is known to be smaller.
    """
    if isinstance(size, tirx.IntImm | tirx.Var):
        return size
    analyzer = Analyzer()
    every = ir.Range(index(0), index(LARGEST))
    tvm_ffi.structural_walk(size, (tirx.Var, lambda var: analyzer.bind(var, every)))

    def least(both: tirx.Min) -> Expr:
        pairs = ((both.a, both.b), (both.b, both.a))
        return next((a for a, b in pairs if analyzer.can_prove(a <= b)), both)

    found = analyzer.simplify(size)
    found = tvm_ffi.structural_map(found, [(tirx.FloorDiv, _without_whole), (tirx.Min, least)])
    found = analyzer.simplify(found)
    multiple = _without_remainders(found)
    return found if multiple is None else multiple


def _without_whole(quotient: tirx.FloorDiv) -> Expr:
    """(n + 300) // 256 as (n + 44) // 256 + 1, so that TVM can compare it with n // 256."""
    sum_, divisor = quotient.a, quotient.b
    if not isinstance(sum_, tirx.Add) or not all(
        isinstance(each, tirx.IntImm) and int(each) > 0 for each in (sum_.b, divisor)
    ):
        return quotient
    whole, rest = divmod(int(sum_.b), int(divisor))
    return tirx.floordiv(sum_.a + rest, divisor) + whole if whole else quotient


def _without_remainders(size: Expr) -> Expr | None:
    """Writes a size with quotients in place of remainders; None if that leaves a subtraction."""
    # Quotients are variables meanwhile, as TVM turns differences with quotients into remainders.
    quotients: list[tuple[tirx.Var, Expr]] = []  # inner quotients come before outer ones
    remainders: list[Expr] = []
    less: list[Expr] = []
    numbers: list[Expr] = []

    def quotient(dividend: Expr, divisor: Expr) -> tirx.Var:
        made = Analyzer().simplify(tirx.floordiv(dividend, divisor))
        for var, known in quotients:
            if tvm_ffi.structural_equal(made, known):
                return var
        quotients.append((tirx.Var(f"quotient_{len(quotients)}", INDEX), made))
        return quotients[-1][0]

    def of_remainder(found: tirx.FloorMod) -> Expr:
        remainders.append(found)
        dividend, divisor = found.a, found.b
        if is_negative(divisor):  # x % -16 = x - (x + 15) // 16 * 16
            return dividend + divisor * quotient(dividend - divisor - 1, -divisor)
        return dividend - divisor * quotient(dividend, divisor)

    of_quotient = (tirx.FloorDiv, lambda found: quotient(found.a, found.b))
    found = tvm_ffi.structural_map(size, [(tirx.FloorMod, of_remainder), of_quotient])
    if not remainders:
        return None
    found = Analyzer().simplify(found)
    tvm_ffi.structural_walk(found, [(tirx.Sub, less.append), (tirx.IntImm, numbers.append)])
    for var, made in reversed(quotients):
        found = substitute(found, {var: made})
    return None if less or any(map(is_negative, numbers)) else found


def is_negative(size: Expr) -> bool:
    """Whether a size is a number below 0."""
    return isinstance(size, tirx.IntImm) and int(size) < 0


def index(value: Expr | int) -> Expr:
    """A number as an int64 constant; an expression is returned as it is."""
    return tirx.const(int(value), INDEX) if isinstance(value, int | np.integer) else value
