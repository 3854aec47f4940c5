"""Integers of a kernel: where it reads, and how often a loop runs, as functions of loop variables.

A sum of atoms with factors. An atom is a loop's number, or an operation that is not linear, such as
a division. What depends on data is unknown, and taken for 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

Environment = Mapping[int, int]

OPERATIONS: dict[str, Callable[..., int]] = {
    "//": lambda a, b: a // b if b else 0,
    "%": lambda a, b: a % b if b else 0,
    "*": lambda a, b: a * b,
    "min": min,
    "max": max,
    "<": lambda a, b: int(a < b),
    "<=": lambda a, b: int(a <= b),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "and": lambda a, b: int(bool(a) and bool(b)),
    "or": lambda a, b: int(bool(a) or bool(b)),
    "not": lambda a: int(not a),
    "select": lambda c, a, b: a if c else b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
}


@dataclass(frozen=True)
class Operation:
    """An operation that is not linear; "unknown" has no operands."""

    name: str
    operands: tuple[Index, ...]

    def evaluate(self, environment: Environment) -> int:
        """Its value for some values of the loops' variables."""
        if self.name == "unknown":
            return 0
        return OPERATIONS[self.name](*(each.evaluate(environment) for each in self.operands))


Atom = int | Operation


@dataclass(frozen=True)
class Index:
    """A sum of atoms with factors, and a constant.

    Attributes
    ----------
    constant : int
        What is added.
    terms : tuple of (atom, factor)
        Each atom once, no factor 0, in a fixed order.
    """

    constant: int
    terms: tuple[tuple[Atom, int], ...] = ()
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.constant, self.terms)))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def loops(self) -> frozenset[int]:
        """The loops on whose variables it depends."""
        found: set[int] = set()
        for atom, _ in self.terms:
            if isinstance(atom, int):
                found.add(atom)
            else:
                for operand in atom.operands:
                    found |= operand.loops
        return frozenset(found)

    @cached_property
    def known(self) -> bool:
        """Whether no part of it depends on data."""
        return all(
            isinstance(atom, int)
            or (atom.name != "unknown" and all(each.known for each in atom.operands))
            for atom, _ in self.terms
        )

    def evaluate(self, environment: Environment) -> int:
        """Its value for some values of the loops' variables."""
        total = self.constant
        for atom, factor in self.terms:
            value = environment[atom] if isinstance(atom, int) else atom.evaluate(environment)
            total += factor * value
        return total

    def plus(self, other: Index, sign: int = 1) -> Index:
        """The sum, or with -1 the difference."""
        if not other.terms:
            return Index(self.constant + sign * other.constant, self.terms)
        terms = dict(self.terms)
        for atom, factor in other.terms:
            terms[atom] = terms.get(atom, 0) + sign * factor
        left = ((atom, factor) for atom, factor in terms.items() if factor)
        return Index(self.constant + sign * other.constant, tuple(sorted(left, key=_order)))

    def times(self, factor: int) -> Index:
        """A multiple."""
        if factor == 0:
            return Index(0)
        return Index(self.constant * factor, tuple((a, f * factor) for a, f in self.terms))


UNKNOWN = Index(0, ((Operation("unknown", ()), 1),))


def _order(term: tuple[Atom, int]) -> tuple[int, int]:
    atom = term[0]
    return (0, atom) if isinstance(atom, int) else (1, hash(atom))


def apply(name: str, *operands: Index) -> Index:
    """An operation on integers, kept linear where it is."""
    if not any(each.terms for each in operands):
        return Index(OPERATIONS[name](*(each.constant for each in operands)))
    if name == "*":
        a, b = operands
        if not b.terms:
            return a.times(b.constant)
        if not a.terms:
            return b.times(a.constant)
    if name in ("//", "%") and not operands[1].terms and operands[1].constant > 0:
        a, by = operands[0], operands[1].constant
        whole = tuple((atom, factor) for atom, factor in a.terms if factor % by == 0)
        rest = Index(a.constant, tuple(term for term in a.terms if term[1] % by))
        if not rest.terms:
            if name == "%":
                return Index(rest.constant % by)
            return Index(rest.constant // by, tuple((atom, f // by) for atom, f in whole))
        part = Index(0, ((Operation(name, (rest, Index(by))), 1),))
        if name == "%":
            return part
        return part.plus(Index(0, tuple((atom, f // by) for atom, f in whole)))
    if name == "select" and operands[1] == operands[2]:
        return operands[1]
    return Index(0, ((Operation(name, operands), 1),))
