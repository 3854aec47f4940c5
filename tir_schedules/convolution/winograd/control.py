"""Emits conditions, branches and shares of work for the template "conv2d_winograd"."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import Expr, materialise


def all_of(conditions: Sequence[Expr]) -> Expr | None:
    """The conjunction; None of nothing."""
    result = None
    for condition in conditions:
        result = condition if result is None else tirx.And(result, condition)
    return result


def either(
    conditions: Sequence[Expr], then: Callable[[], None], otherwise: Callable[[], None]
) -> None:
    """One of two pieces of code: the first where all conditions hold."""
    condition = all_of(conditions)
    if condition is None:
        then()
        return
    with I.If(condition):
        with I.Then():
            then()
        with I.Else():
            otherwise()


def in_memory(values: Sequence[Expr]) -> list[Expr]:
    """The values, each computed once.

    TVM writes a sum of names out anew for every use of its own name: of the transform along one
    axis in that along the other, ten times as many instructions as there are.
    """
    return [materialise(value) for value in values]


def part_of(count: Expr | int, members: int, member: Expr) -> tuple[Expr | int, Expr | int]:
    """First and end of one member's share of `count` things."""
    if members == 1:
        return 0, count
    return I.floordiv(member * count, members), I.floordiv((member + 1) * count, members)
