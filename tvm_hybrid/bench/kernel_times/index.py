"""Integers of a kernel, such as addresses and trip counts, as functions of loop variables.

An index is a sum of atoms with factors. An atom is a loop's variable, or a nonlinear operation such
as a division. Integers that depend on data are unknown, and count as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Environment = Mapping[int, int]

OPERATIONS: dict[str, Callable[..., int]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "FloorDiv": lambda a, b: a // b if b else 0,
    "FloorMod": lambda a, b: a % b if b else 0,
    "Min": min,
    "Max": max,
    "LT": lambda a, b: int(a < b),
    "LE": lambda a, b: int(a <= b),
    "EQ": lambda a, b: int(a == b),
    "NE": lambda a, b: int(a != b),
    "And": lambda a, b: int(bool(a) and bool(b)),
    "Or": lambda a, b: int(bool(a) or bool(b)),
    "Not": lambda a: int(not a),
    "tirx.if_then_else": lambda c, a, b: a if c else b,
    "tirx.bitwise_and": lambda a, b: a & b,
    "tirx.bitwise_or": lambda a, b: a | b,
    "tirx.bitwise_xor": lambda a, b: a ^ b,
    "tirx.shift_left": lambda a, b: a << b,
    "tirx.shift_right": lambda a, b: a >> b,
}
"""TIR nodes and calls that compute integers. Sizes are never negative, so all divisions agree."""

_SAME = {"Div": "FloorDiv", "Mod": "FloorMod"}


@dataclass(frozen=True)
class Operation:
    """A nonlinear operation; "unknown" has no operands."""

    name: str
    operands: tuple[Index, ...]

    def evaluate(self, environment: Environment) -> int:
        """Evaluates the operation for given loop variables."""
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
        The constant part.
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
        """The loops whose variables the index depends on."""
        own = frozenset(atom for atom, _ in self.terms if isinstance(atom, int))
        others = (atom.operands for atom, _ in self.terms if not isinstance(atom, int))
        return own.union(*(each.loops for operands in others for each in operands))

    @cached_property
    def known(self) -> bool:
        """Whether no part of the index depends on data."""
        return all(
            isinstance(atom, int)
            or (atom.name != "unknown" and all(each.known for each in atom.operands))
            for atom, _ in self.terms
        )

    def evaluate(self, environment: Environment) -> int:
        """Evaluates the index for given loop variables."""
        total = self.constant
        for atom, factor in self.terms:
            value = environment[atom] if isinstance(atom, int) else atom.evaluate(environment)
            total += factor * value
        return total

    def plus(self, other: Index, sign: int = 1) -> Index:
        """The sum, or with sign -1 the difference."""
        if not other.terms:
            return Index(self.constant + sign * other.constant, self.terms)
        terms = dict(self.terms)
        for atom, factor in other.terms:
            terms[atom] = terms.get(atom, 0) + sign * factor
        left = ((atom, factor) for atom, factor in terms.items() if factor)
        return Index(self.constant + sign * other.constant, tuple(sorted(left, key=_order)))

    def times(self, factor: int) -> Index:
        """The index multiplied by a constant."""
        if factor == 0:
            return Index(0)
        return Index(self.constant * factor, tuple((a, f * factor) for a, f in self.terms))


UNKNOWN = Index(0, ((Operation("unknown", ()), 1),))


def _order(term: tuple[Atom, int]) -> tuple[int, int]:
    atom = term[0]
    return (0, atom) if isinstance(atom, int) else (1, hash(atom))


def apply(name: str, *operands: Index) -> Index:
    """Applies an operation to integers; the result stays linear if possible."""
    if name in ("Add", "Sub"):
        return operands[0].plus(operands[1], 1 if name == "Add" else -1)
    if not any(each.terms for each in operands):
        return Index(OPERATIONS[name](*(each.constant for each in operands)))
    if name == "Mul":
        a, b = operands
        if not b.terms:
            return a.times(b.constant)
        if not a.terms:
            return b.times(a.constant)
    divides = name in ("FloorDiv", "FloorMod")
    if divides and not operands[1].terms and operands[1].constant > 0:
        a, by = operands[0], operands[1].constant
        whole = tuple((atom, factor) for atom, factor in a.terms if factor % by == 0)
        rest = Index(a.constant, tuple(term for term in a.terms if term[1] % by))
        if not rest.terms:
            if name == "FloorMod":
                return Index(rest.constant % by)
            return Index(rest.constant // by, tuple((atom, f // by) for atom, f in whole))
        part = Index(0, ((Operation(name, (rest, Index(by))), 1),))
        if name == "FloorMod":
            return part
        return part.plus(Index(0, tuple((atom, f // by) for atom, f in whole)))
    if name == "tirx.if_then_else" and operands[1] == operands[2]:
        return operands[1]
    return Index(0, ((Operation(name, operands), 1),))


def key(node: Any) -> int:
    """Identifies a node."""
    return int(node.__chandle__())


class Integers:
    """Finds integers of a function while it is read.

    `of_data` is called with an expression that depends on data but is used as an index.
    """

    def __init__(self, of_data: Callable[[Any], object]) -> None:
        self.known: dict[int, Index] = {}
        self.of_data = of_data

    def ramp(self, node: Any) -> tuple[Index, int] | None:
        """First index and distance of the lanes of a vector; None if the distance varies."""
        kind = type(node).__name__
        if kind == "Ramp":
            start, step = self.index(node.base), self.index(node.stride)
            return None if step.terms else (start, step.constant)
        if kind == "Broadcast":
            return self.index(node.value), 0
        if kind == "Cast":
            return self.ramp(node.value)
        if kind in ("Add", "Sub", "Mul"):
            a, b = self.ramp(node.a), self.ramp(node.b)
            if a is None or b is None:
                return None
            if kind == "Mul":
                vector, factor = (a, b) if b[1] == 0 else (b, a)
                if factor[1] or factor[0].terms:
                    return None
                times = factor[0].constant
                return vector[0].times(times), vector[1] * times
            sign = 1 if kind == "Add" else -1
            return a[0].plus(b[0], sign), a[1] + sign * b[1]
        return None

    def index(self, node: Any) -> Index:
        """Returns an index; UNKNOWN if it depends on data."""
        found = self.find(node)
        if found is not None:
            return found
        self.of_data(node)
        return UNKNOWN

    def find(self, node: Any) -> Index | None:
        """Returns an index; None if it depends on data or is not an integer."""
        kind = type(node).__name__
        if kind == "IntImm":
            return Index(int(node.value))
        if kind == "Var":
            return self.known.get(key(node))
        if kind in ("FloatImm", "TensorLoad", "Broadcast", "Ramp", "StringImm"):
            return None
        dtype = node.ty.dtype if hasattr(node.ty, "dtype") else None
        if dtype is None or int(dtype.lanes) > 1 or str(dtype).startswith(("float", "bfloat")):
            return None
        if kind == "Cast":
            return self.find(node.value)
        name, operands = _SAME.get(kind, kind), []
        if kind in ("GT", "GE"):
            name, operands = "LT" if kind == "GT" else "LE", [node.b, node.a]
        elif kind == "Select":
            name = "tirx.if_then_else"
            operands = [node.condition, node.true_value, node.false_value]
        elif kind == "Call":
            name, operands = str(getattr(node.op, "name", "")), list(node.args)
            if name == "tirx.likely":
                return self.find(operands[0])
        elif name in OPERATIONS:
            operands = [node.a] if kind == "Not" else [node.a, node.b]
        if name not in OPERATIONS:
            return None
        parts = [self.find(operand) for operand in operands]
        known = [part for part in parts if part is not None]
        return apply(name, *known) if len(known) == len(parts) else None
