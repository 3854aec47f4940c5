"""Arrangements: the order in which axes of a contraction become axes of products of matrices.

    out[b, q, h, k] = sum over d of left[b, h, q, d] * right[b, k, h, d]

    left   [b, h | q | d]       matmul of [batches, rows, steps]
    right  [b, h | d | k]             and [batches, steps, columns]
    out    [b, h | q | k]       gives     [batches, rows, columns]

The template "batch_matmul" reads operands with dimensions in any order and permutes its result, but
columns have to be last there. So an operand is read in place if the axes of each group lie next to
each other in it, in the group's order; else it is copied. Candidates are the orders in which a
group stands in one of its tensors, and the two orders of the operands. The estimate counts copies,
packing, and lanes without a column.
"""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from tir_schedules.core.size import is_dynamic

# A contraction: a sum of products of two tensors, and the role of each of its axes.
#
#     out[b, q, h, k] = sum over d of left[b, h, q, d] * right[b, k, h, d]
#
#     b, h    batches     in both operands and in the result
#     q       rows        in the left one and in the result
#     k       columns     in the right one and in the result
#     d       steps       in both operands, summed
#
# These are the iterators of automatic tensorization (Feng et al., arXiv 2207.04296, section 4.2),
# grouped by the set of tensors in which they stand: all of a group can be fused into one.


Labels = tuple[str, ...]


class RefusedError(Exception):
    """A program is no product that a kernel of ours multiplies; the message says why.

    Never leaves the passes: it becomes a reason of `explain`.
    """


@dataclass(frozen=True)
class Contraction:
    """out = sum of left * right over all axes that `out` does not have.

    Attributes
    ----------
    left, right, out : tuple of str
        The axes of the tensors in the order in which they are stored; each stands once in a tensor.
    extents : mapping of str to int
        The extent of every axis; a symbolic size may stand for one.
    """

    left: Labels
    right: Labels
    out: Labels
    extents: Mapping[str, int]

    @cached_property
    def batches(self) -> Labels:
        """Axes of both operands and of the result."""
        return tuple(x for x in self.out if x in self.left and x in self.right)

    @cached_property
    def rows(self) -> Labels:
        """Axes of the left operand and of the result."""
        return tuple(x for x in self.out if x in self.left and x not in self.right)

    @cached_property
    def columns(self) -> Labels:
        """Axes of the right operand and of the result."""
        return tuple(x for x in self.out if x in self.right and x not in self.left)

    @cached_property
    def steps(self) -> Labels:
        """Axes of both operands that are summed."""
        return tuple(x for x in self.left if x in self.right and x not in self.out)

    @cached_property
    def alone(self) -> tuple[Labels, Labels]:
        """Axes that are summed in one operand alone: of the left one, and of the right one."""
        inside = (*self.out, *self.steps)
        left = tuple(x for x in self.left if x not in inside)
        return left, tuple(x for x in self.right if x not in inside)

    def size(self, labels: Labels) -> int:
        """Number of points that some axes have together."""
        return math.prod(self.extents[label] for label in labels)

    def solid(self, labels: Labels) -> Labels:
        """The axes with more than one point; where other axes stand makes no difference."""
        return tuple(label for label in labels if self.extents[label] != 1)

    def without_alone(self) -> Contraction:
        """The contraction after each operand was summed over the axes that only it has."""
        pairs = zip((self.left, self.right), self.alone, strict=True)
        left, right = (tuple(x for x in labels if x not in own) for labels, own in pairs)
        return Contraction(left, right, self.out, self.extents)

    def swapped(self) -> Contraction:
        """The contraction with its operands exchanged."""
        return Contraction(self.right, self.left, self.out, self.extents)

    def text(self) -> str:
        """The axes by their roles, as text."""
        roles = ("batches", "rows", "columns", "steps")
        named = ((role, getattr(self, role)) for role in roles)
        return ", ".join(f"{role} {' '.join(labels)}" for role, labels in named if labels)


def check(contraction: Contraction, constants: tuple[bool, bool] = (False, False)) -> None:
    """Checks that products of matrices compute a contraction.

    Parameters
    ----------
    contraction : Contraction
        The contraction.
    constants : tuple of bool
        Which operands are constants. A constant matrix is packed beforehand, so that a product by
        one vector is accepted.

    Raises
    ------
    RefusedError
        If they do not, or if they would read every element only once; the message says why.
    """
    known = {*contraction.left, *contraction.right}
    for labels in (contraction.left, contraction.right, contraction.out):
        if len(set(labels)) != len(labels):
            raise RefusedError("an axis stands twice in a tensor")
    strange = [label for label in contraction.out if label not in known]
    if strange:
        raise RefusedError(f"no operand has the axis {strange[0]} of the result")
    if not contraction.steps:
        raise RefusedError("an outer product: no axis of both operands is summed")
    if not contraction.rows and not contraction.columns:
        raise RefusedError("products of vectors: every element is read once")
    if contraction.rows and contraction.columns:
        return
    matrix = constants[0 if contraction.rows else 1]
    if contraction.size(contraction.batches) != 1 or not matrix:
        raise RefusedError("a matrix by a vector: every element of the matrix is read once")


# Vectors of products in a cycle; cycles for an element of a copy that permutes, and of packing.
_VECTORS, _COPIED, _PACKED = 2, 1.0, 0.25
_SAMPLE = 64  # a dynamic extent

Unit = Labels
Units = tuple[Unit, ...]


@dataclass(frozen=True)
class Arrangement:
    """A contraction as matmul(left, right).

    Attributes
    ----------
    contraction : Contraction
        The contraction, with its operands in the order of the product.
    swapped : bool
        Whether the operands were given in the other order.
    batches, rows : tuple of tuple of str
        The axes of the product, each with the axes that it joins.
    columns, steps : tuple of str
        One axis of the product each; columns may be empty.
    copied : tuple of str
        Which of "left", "right" and "result" are copied.
    cycles : float
        Estimated cycles.
    """

    contraction: Contraction
    swapped: bool
    batches: Units
    rows: Units
    columns: Unit
    steps: Unit
    copied: tuple[str, ...]
    cycles: float

    @property
    def left(self) -> Units:
        """The left operand's axes."""
        return (*self.batches, *self.rows, self.steps)

    @property
    def right(self) -> Units:
        """The right operand's axes."""
        return (*self.batches, self.steps, self.columns)

    @property
    def out(self) -> Units:
        """The result's axes."""
        return (*self.batches, *self.rows, self.columns)

    def text(self) -> str:
        """What the arrangement does to the tensors, in words."""
        swapped = "operands swapped, " if self.swapped else ""
        copied = f"{' and '.join(self.copied)} copied" if self.copied else "nothing copied"
        return f"{swapped}{copied}"


def arrangements(
    contraction: Contraction, constants: tuple[bool, bool] = (False, False), lanes: int = 16
) -> list[Arrangement]:
    """Every candidate, the best first.

    Parameters
    ----------
    contraction : Contraction
        A contraction that `check` accepts, without axes that only one operand has.
    constants : tuple of bool
        Which operands are constants: they are permuted and, on the right, packed beforehand.
    lanes : int
        Lanes of a vector.
    """
    found = []
    for swapped in (False, True):
        given = contraction.swapped() if swapped else contraction
        groups = [
            _candidates(given.batches, (given.out,)),
            _candidates(given.rows, (given.left, given.out)),
            _candidates(given.columns, (given.right, given.out)),
            _candidates(given.steps, (given.left, given.right)),
        ]
        left, right = constants[::-1] if swapped else constants
        fixed = {"left": left, "right": right, "result": False}
        for batches, rows, columns, steps in itertools.product(*groups):
            batch_units = tuple((label,) for label in batches)
            row_units: Units = (rows,)
            if rows and not batches:
                # With one right operand for all, rows may have any number of axes: they stay as
                # they are if nothing moves, else they become as few as possible.
                still = (given.left, given.out) == ((*rows, *steps), (*rows, *columns))
                apart = tuple((label,) for label in rows)
                row_units = apart if still else _joined(given, rows, (given.left, given.out))
            tensors = {
                "left": (given.left, (*batch_units, *row_units, steps)),
                "right": (given.right, (*batch_units, steps, columns)),
                "result": (given.out, (*batch_units, *row_units, columns)),
            }
            copied = [name for name, place in tensors.items() if not is_view(given, *place)]
            # The kernel stores whole vectors of columns.
            last = given.solid(given.out)[-1:], given.solid(columns)[-1:]
            if last[1] and last[0] != last[1] and "result" not in copied:
                copied.append("result")
            moved = tuple(name for name in copied if not fixed[name])
            cycles = _COPIED * sum(_points(given, tensors[name][0]) for name in moved)
            if not right:
                cycles += _PACKED * _points(given, given.right)
            vectors = -(-_points(given, columns) // lanes)
            cycles += _points(given, (*batches, *rows, *steps)) * vectors / _VECTORS
            units = batch_units, row_units, columns, steps
            found.append(Arrangement(given, swapped, *units, moved, cycles))
    return sorted(found, key=lambda each: each.cycles)


def _candidates(group: Labels, tensors: Sequence[Labels]) -> list[Labels]:
    """The orders in which the axes of a group stand in tensors."""
    if len(group) < 2:
        return [group]
    standing = dict.fromkeys(tuple(x for x in labels if x in group) for labels in tensors)
    return list(standing)


def _points(given: Contraction, labels: Labels) -> int:
    """Number of points of some axes, with a sample for each dynamic extent."""
    extents = (given.extents[label] for label in labels)
    return math.prod(_SAMPLE if is_dynamic([extent]) else int(extent) for extent in extents)


def _joined(given: Contraction, group: Labels, tensors: Sequence[Labels]) -> Units:
    """Joins the axes of a group that lie next to each other in all tensors."""
    stored = [given.solid(labels) for labels in tensors]
    units: list[Unit] = []
    for label in group:
        before = given.solid(units[-1])[-1:] if units else ()
        follows = not before or given.extents[label] == 1
        if units and (follows or all(_follows(labels, before[0], label) for labels in stored)):
            units[-1] += (label,)
        else:
            units.append((label,))
    return tuple(units)


def _follows(labels: Labels, first: str, second: str) -> bool:
    return labels.index(second) == labels.index(first) + 1


def is_view(given: Contraction, stored: Labels, units: Units) -> bool:
    """Whether the axes of every unit lie next to each other in a tensor, in the unit's order."""
    places = given.solid(stored)
    return all(
        _follows(places, first, second)
        for unit in units
        for first, second in itertools.pairwise(given.solid(unit))
    )


def in_memory(given: Contraction, stored: Labels, units: Units) -> list[Unit]:
    """Units in the order in which they lie in a tensor that is a view of them."""
    places = given.solid(stored)

    def place(unit: Unit) -> float:
        solid = given.solid(unit)
        if solid:
            return places.index(solid[0])
        before = stored[: stored.index(unit[0])] if unit else stored
        return len(given.solid(before)) - 0.5

    return sorted(units, key=place)


# ArrangementProblem: the choice among the arrangements of a contraction, for tuning records.
#
#     problem.key             "ab,cb->ac a12 b64 c128 float32 float32 float32"
#     problem.candidates      Arrangement(...), the best by estimate first
#     problem.choice(candidates[1])
#                             ArrangementChoice(swapped=True, batches="", rows="c", columns="a",
#                             steps="b")
#
# Axes have letters in the order in which they first stand in the operands, so that programs that
# differ only in names are one problem.


class ArrangementChoice(NamedTuple):
    """A candidate, by the letters of the axes of each group, in order."""

    swapped: bool
    batches: str
    rows: str
    columns: str
    steps: str


class KnownArrangement(NamedTuple):
    """A choice, and where it comes from."""

    choice: ArrangementChoice
    source: str


@dataclass(frozen=True)
class ArrangementProblem:
    """A contraction with its candidates.

    Attributes
    ----------
    contraction : Contraction
        The contraction, without axes that only one operand has.
    types : tuple of str
        Types of the left operand, the right one and the result.
    constants : tuple of bool
        Which operands are constants.
    candidates : tuple of Arrangement
        All of them, the best by estimate first.
    """

    contraction: Contraction
    types: tuple[str, str, str]
    constants: tuple[bool, bool]
    candidates: tuple[Arrangement, ...]

    @property
    def letters(self) -> dict[str, str]:
        """A letter for each axis; empty if there are too many axes."""
        given = self.contraction
        labels = dict.fromkeys((*given.left, *given.right, *given.out))
        few = len(labels) <= len(string.ascii_letters)
        return dict(zip(labels, string.ascii_letters, strict=False)) if few else {}

    @property
    def has_choice(self) -> bool:
        """Whether there are several candidates, and all sizes are static."""
        known = not is_dynamic(self.contraction.extents.values())
        return known and len(self.candidates) > 1 and bool(self.letters)

    @property
    def key(self) -> str:
        """Equal for contractions of the same structure, sizes, types and constants."""
        given, letters = self.contraction, self.letters
        tensors = given.left, given.right, given.out
        left, right, out = ("".join(map(letters.__getitem__, labels)) for labels in tensors)
        sizes = " ".join(f"{letter}{given.extents[label]}" for label, letter in letters.items())
        names = zip(("left", "right"), self.constants, strict=True)
        constant = "".join(f" constant {name}" for name, known in names if known)
        return f"{left},{right}->{out} {sizes} {' '.join(self.types)}{constant}"

    def choice(self, candidate: Arrangement) -> ArrangementChoice:
        """The choice that identifies a candidate."""

        def text(units: Units) -> str:
            return "".join(self.letters[label] for label in chain.from_iterable(units))

        units = candidate.batches, candidate.rows, (candidate.columns,), (candidate.steps,)
        return ArrangementChoice(candidate.swapped, *map(text, units))

    def best_first(self, choice: ArrangementChoice) -> Sequence[Arrangement]:
        """The candidates, with the chosen one first; empty if the choice is no candidate."""
        first = [each for each in self.candidates if self.choice(each) == choice]
        return [*first, *(each for each in self.candidates if each not in first)] if first else []


ChooseArrangement = Callable[[ArrangementProblem], "KnownArrangement | None"]
"""Returns the choice that a record has for a contraction; None if there is none."""
