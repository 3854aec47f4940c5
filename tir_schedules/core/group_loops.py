"""Loops over pieces of balanced sizes: code is emitted for every size, with exact extents."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm.tirx.script.builder.ir as I

from microkernels.vector.expressions import Expr

from .blocking import Group


def for_groups(groups: Sequence[Group], body: Callable[[Expr | int, int], None]) -> None:
    """Runs `body(start, size)` for every piece; a loop for each group."""
    for group in groups:
        if group.count == 1:
            body(group.start, group.size)
        else:
            with I.serial(group.count) as piece:
                body(group.start + piece * group.size, group.size)


def for_share(groups: Sequence[Group], index: Expr, body: Callable[[Expr, int], None]) -> None:
    """Runs `body(start, size)` for the piece number `index`; one branch for each size."""
    if len(groups) == 1:
        body(index * groups[0].size, groups[0].size)
        return
    larger, smaller = groups
    with I.If(index < larger.count):
        with I.Then():
            body(index * larger.size, larger.size)
        with I.Else():
            body(smaller.start + (index - larger.count) * smaller.size, smaller.size)
