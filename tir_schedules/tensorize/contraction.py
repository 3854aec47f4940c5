"""A contraction: a sum of products of two tensors, and the role of each of its axes.

    out[b, q, h, k] = sum over d of left[b, h, q, d] * right[b, k, h, d]

    b, h    batches     in both operands and in the result
    q       rows        in the left one and in the result
    k       columns     in the right one and in the result
    d       steps       in both operands, summed

These are the iterators of automatic tensorization (Feng et al., arXiv 2207.04296, section 4.2),
grouped by the set of tensors in which they stand: all of a group can be fused into one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

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
        """How many points some axes have together."""
        return math.prod(self.extents[label] for label in labels)

    def solid(self, labels: Labels) -> Labels:
        """The axes that have more than one point: where the others lie makes no difference."""
        return tuple(label for label in labels if self.extents[label] != 1)

    def without_alone(self) -> Contraction:
        """The same after each operand was summed over its own axes."""
        left, right = self.alone
        return Contraction(
            tuple(x for x in self.left if x not in left),
            tuple(x for x in self.right if x not in right),
            self.out,
            self.extents,
        )

    def swapped(self) -> Contraction:
        """The same product with its operands in the other order."""
        return Contraction(self.right, self.left, self.out, self.extents)

    def text(self) -> str:
        """As an einsum, with the roles."""
        roles = ("batches", "rows", "columns", "steps")
        named = ((role, getattr(self, role)) for role in roles)
        return ", ".join(f"{role} {' '.join(labels)}" for role, labels in named if labels)


def check(contraction: Contraction, constants: tuple[bool, bool] = (False, False)) -> None:
    """Whether products of matrices compute a contraction.

    Parameters
    ----------
    contraction : Contraction
        What is to be computed.
    constants : tuple of bool
        Which operands are constants. A constant matrix is packed beforehand, so that one vector is
        enough.

    Raises
    ------
    RefusedError
        If they do not, or if they would read no element twice; says why.
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
