"""Reads sizes that are known at run time only off a kernel's arguments.

    A: float32[batch, sequence, 384]  ->  batch and sequence are variables of the buffer's shape,
                                          extent(batch * sequence) their product

Every different symbolic size of a parameter is a variable of its own; a size such as n + 1 also
tells n. The kernel's loops get int32 values that TVM cannot look through: its analyzer takes
minutes over chains of // and %.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tvm import tirx

from microkernels.base.errors import CompileError
from microkernels.vector.expressions import Expr, cast, materialise

from .size import SymbolicSize, quotient


@dataclass
class _Scope:
    """What is known in one function: the variables of its arguments, and their values."""

    variables: dict[SymbolicSize, tirx.Var] = field(default_factory=dict)
    values: dict[SymbolicSize, Expr] = field(default_factory=dict)


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.open: list[_Scope] = []


_scopes = _Scopes()


@contextmanager
def extent_scope() -> Iterator[None]:
    """The scope of one function under construction."""
    _scopes.open.append(_Scope())
    try:
        yield
    finally:
        _scopes.open.pop()


def buffer_shape(shape: Sequence[int]) -> tuple[int | Expr, ...]:
    """The shape of a parameter; a variable for each symbolic size that is new."""
    return tuple(map(_dimension, shape))


def _dimension(size: int) -> int | Expr:
    if not isinstance(size, SymbolicSize):
        return size
    variables = _scopes.open[-1].variables
    if size not in variables:
        variables[size] = tirx.Var(f"n{len(variables)}", "int64")
    return variables[size]


def read_extents() -> None:
    """Emits, once all parameters are there, the values of their symbolic sizes as int32."""
    scope = _scopes.open[-1]
    for size, variable in scope.variables.items():
        scope.values[size] = materialise(cast("int32", variable))


def extent(size: int) -> int | Expr:
    """A size inside the function: a number as it is, a symbolic one as an int32 expression.

    Raises
    ------
    CompileError
        If no parameter tells a symbol.
    """
    if not isinstance(size, SymbolicSize):
        return size
    return _value(size, _scopes.open[-1].values if _scopes.open else {})


def as_expr(size: int | Expr) -> Expr:
    """A size as an int32 expression."""
    return tirx.const(size, "int32") if isinstance(size, int) else size


def allocated(size: int) -> int | Expr:
    """The same for the extent of a buffer of the kernel's own.

    TVM moves such a buffer to the beginning of the function, where only arguments are known.
    """
    if not isinstance(size, SymbolicSize):
        return size
    variables = _scopes.open[-1].variables.items()
    return _value(size, {known: cast("int32", variable) for known, variable in variables})


def _value(size: SymbolicSize, values: Mapping[SymbolicSize, Expr]) -> Expr:
    """A size by what is known: itself, a factor of it, its symbols."""
    if size in values:
        return values[size]
    alone = all(SymbolicSize.of(name) in values for name in size.symbols)
    for known, value in values.items():
        # A product of symbols may be known where they are not.
        rest = quotient(size, known) if len(known.terms) > 1 or not alone else None
        if rest is not None:
            return value * (_value(rest, values) if isinstance(rest, SymbolicSize) else rest)
    total: Expr | int = 0
    for product, count in size.terms.items():
        term: Expr | int = count
        for name in product:
            single = _symbol(name, values)
            term = single if isinstance(term, int) and term == 1 else single * term
        total = term if isinstance(total, int) and total == 0 else total + term
    assert not isinstance(total, int)
    return total


def _symbol(name: str, values: Mapping[SymbolicSize, Expr]) -> Expr:
    """One symbol: known, or what a known sum has more than its other terms; or a part of that.

    Else the factor of a known product; 0 where another one is 0: then nothing has elements.
    """
    single = SymbolicSize.of(name)
    if single in values:
        return values[single]
    for known, value in values.items():
        others = {product: count for product, count in known.terms.items() if product != (name,)}
        told = {SymbolicSize.of(each) in values for product in others for each in product}
        count = known.terms.get((name,), 0)
        if count > 0 and told <= {True}:
            rest = sum((SymbolicSize({product: n}) for product, n in others.items()), start=0)
            part = value - _value(rest, values) if isinstance(rest, SymbolicSize) else value - rest
            return part if count == 1 else part // count
    for known, value in values.items():
        (product, count), *more = known.terms.items()
        factors = [each for each in product if each != name]
        if more or len(factors) != len(product) - 1:
            continue
        if all(SymbolicSize.of(each) in values for each in factors):
            for each in factors:
                other = tirx.Max(values[SymbolicSize.of(each)], tirx.const(1, "int32"))
                value = tirx.floordiv(value, other)
            return value if count == 1 else value // count
    raise CompileError(f"no argument tells the size {name}")
