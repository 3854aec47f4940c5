"""Cuts an axis where elements change in kind, if sizes are known at run time only.

    for j in range(n + m): y[j] = if_then_else(j < n, a[j], b[j - n])

    ->  for j in range(n): y[j] = a[j]
        for j in range(m): y[n + j] = b[j]

The questions are comparisons of positions, and the least or greatest of two. `elementwise` has the
same for sizes that are known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer, detect_linear_equation

from microkernels.vector.expressions import Expr

from .expressions import const_int, int64, loads_of, same, variables_of
from .nest import Nest

_BELOW = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)
_CHOICES = (tirx.Min, tirx.Max)


@dataclass(frozen=True)
class Piece:
    """A part of an axis, from `first` to before `end`, and what is done there."""

    first: Expr
    end: Expr
    nest: Nest


@dataclass(frozen=True)
class _Border:
    """Before `at` the answer to a question is `below`, from there on it is the other one."""

    at: Expr
    below: bool


def pieces(nest: Nest, axis: tirx.Var, end: Expr, inner: set[tirx.Var], most: int) -> list[Piece]:
    """The parts of an axis, in order; the whole axis if there would be too many.

    Parameters
    ----------
    axis, end
        The axis runs from 0 to `end`.
    inner : set of Var
        Axes whose loops are inside: what depends on them is left to them.
    most : int
        How many parts there may be.
    """
    analyzer = nest.analyzer()
    whole = Piece(int64(0), end, without_equalities(nest, axis, inner))
    found, left = list[Piece](), [whole]
    while left:
        piece = left.pop(0)
        at = _first_border(piece.nest, axis, inner, analyzer)
        if at is None:
            found.append(piece)
            continue
        middle = _within(at, piece, analyzer)
        parts = [
            Piece(first, last, _decided(piece.nest, axis, inner, at, before, analyzer))
            for first, last, before in ((piece.first, middle, True), (middle, piece.end, False))
            if not analyzer.can_prove(last - first <= 0)
        ]
        left = [*parts, *left]
        if len(found) + len(left) > most:
            return [Piece(int64(0), end, nest)]
    return found


def _within(at: Expr, piece: Piece, analyzer: Analyzer) -> Expr:
    """A border, moved into a piece."""
    if not analyzer.can_prove(at <= piece.end):
        at = tirx.Min(at, piece.end)
    if not analyzer.can_prove(at >= piece.first):
        at = tirx.Max(at, piece.first)
    return analyzer.simplify(at)


def without_equalities(nest: Nest, axis: tirx.Var, inner: set[tirx.Var]) -> Nest:
    """The nest with `a <= b and b <= a` for `a == b` where that has two borders along the axis."""

    def change(question: tirx.EQ | tirx.NE) -> Expr:
        kind, both = (tirx.LE, tirx.And) if isinstance(question, tirx.EQ) else (tirx.LT, tirx.Or)
        parts = kind(question.a, question.b), kind(question.b, question.a)
        has_borders = all(_border(part, axis, inner) for part in parts)
        return both(*parts) if has_borders else question

    kinds = (tirx.EQ, tirx.NE)
    return nest.with_values(lambda value: tvm_ffi.structural_map(value, (kinds, change)))


def _first_border(
    nest: Nest, axis: tirx.Var, inner: set[tirx.Var], analyzer: Analyzer
) -> Expr | None:
    found: list[Expr] = []

    def visit(question: Expr) -> None:
        border = None if found else _border(question, axis, inner)
        if border is not None:
            found.append(analyzer.simplify(border.at))

    for value in nest.values():
        tvm_ffi.structural_walk(value, ((*_BELOW, *_CHOICES), visit))
    return found[0] if found else None


def _decided(
    nest: Nest, axis: tirx.Var, inner: set[tirx.Var], at: Expr, before: bool, analyzer: Analyzer
) -> Nest:
    """The nest on one side of a border, without the questions that it answers."""

    def answer(question: Expr) -> bool | None:
        border = _border(question, axis, inner)
        if border is None or not same(analyzer.simplify(border.at), at):
            return None
        return border.below == before

    def compared(question: Expr) -> Expr:
        found = answer(question)
        return question if found is None else tirx.const(found, "bool")

    def chosen(question: tirx.Min | tirx.Max) -> Expr:
        found = answer(question)
        if found is None:
            return question
        return question.a if found == isinstance(question, tirx.Min) else question.b

    rules = [*((kind, compared) for kind in _BELOW), *((kind, chosen) for kind in _CHOICES)]
    found = nest.with_values(lambda value: tvm_ffi.structural_map(value, rules)).tidied()
    used = set[tirx.Var]().union(*map(variables_of, found.values()))
    return replace(found, lets=tuple(each for each in found.lets if each[0] in used))


def _border(question: Expr, axis: tirx.Var, inner: set[tirx.Var]) -> _Border | None:
    """Where a question changes its answer; of a choice, whether the first is the lesser one."""
    if str(question.a.ty.dtype) not in ("int32", "int64"):
        return None
    used = variables_of(question)
    if axis not in used or not used.isdisjoint(inner) or loads_of(question):
        return None
    parts = detect_linear_equation(question.a - question.b, [axis])
    slope = const_int(parts[0]) if len(parts) == 2 else None
    if not slope:
        return None
    # slope * axis + base, compared with 0
    base = parts[1]
    below = not isinstance(question, tirx.GT | tirx.GE)
    exact = isinstance(question, tirx.LE | tirx.GT)  # 0 is below, or not above
    if slope < 0:
        slope, base, below, exact = -slope, -base, not below, not exact
    at = _quotient(-base, slope) + int64(1) if exact else -_quotient(base, slope)
    return _Border(at, below)


def _quotient(value: Expr, divisor: int) -> Expr:
    return value if divisor == 1 else tirx.floordiv(value, int64(divisor))
