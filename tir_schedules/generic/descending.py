"""Writes divisions of positions that count down as divisions of positions that count up.

    x[(9 - v) // 2]    ->    x[4 - v // 2]
    x[(9 - v) % 5]     ->    x[4 - v % 5]

They come from what is read backwards through a reshape, a tile or a repetition. TVM's FlattenBuffer
loses their constant: it makes v % -5 * -1 of (4 - v) % 5.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx

from microkernels.vector.expressions import Expr

from .expressions import Tree, const_int


def ascending(tree: Tree) -> Tree:
    """The same, with no division of a position all of whose terms count down."""
    rules = ((tirx.FloorDiv, _quotient), (tirx.FloorMod, _rest))
    return tvm_ffi.structural_map(tree, rules)


def _quotient(node: tirx.FloorDiv) -> Expr:
    """For q, k = divmod(-1 - c, n): (c - e) // n = -1 - q - (e + k) // n."""
    terms, size = _counting_down(node.a), const_int(node.b)
    if terms is None or size is None or size <= 0:
        return node
    constant, falling = terms
    quotient, rest = divmod(-1 - constant, size)
    upward = tirx.FloorDiv(_plus(falling, rest), node.b)
    return _number(-1 - quotient, node) - upward


def _rest(node: tirx.FloorMod) -> Expr:
    """(c - e) % n = n - 1 - (e + k) % n."""
    terms, size = _counting_down(node.a), const_int(node.b)
    if terms is None or size is None or size <= 0:
        return node
    constant, falling = terms
    upward = tirx.FloorMod(_plus(falling, (-1 - constant) % size), node.b)
    return _number(size - 1, node) - upward


def _plus(value: Expr, number: int) -> Expr:
    return value + _number(number, value) if number else value


def _number(value: int, like: Expr) -> Expr:
    return tirx.const(value, str(like.ty.dtype))


def _counting_down(value: Expr) -> tuple[int, Expr] | None:
    """c and e of a position c - e in which nothing counts up; None if something does."""
    constant = 0
    falling: Expr | None = None
    pending = [(value, 1)]
    while pending:
        term, factor = pending.pop()
        number = const_int(term)
        if number is not None:
            constant += factor * number
        elif isinstance(term, tirx.Add):
            pending += [(term.a, factor), (term.b, factor)]
        elif isinstance(term, tirx.Sub):
            pending += [(term.a, factor), (term.b, -factor)]
        elif isinstance(term, tirx.Mul) and const_int(term.b) is not None:
            pending.append((term.a, factor * (const_int(term.b) or 0)))
        elif factor > 0:
            return None
        elif factor < 0:
            part = term if factor == -1 else term * _number(-factor, term)
            falling = part if falling is None else falling + part
    return None if falling is None else (constant, falling)
