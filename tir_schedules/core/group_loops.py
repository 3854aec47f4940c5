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
    _for_share(groups, index, 0, body)


def _for_share(
    groups: Sequence[Group], index: Expr, before: int, body: Callable[[Expr, int], None]
) -> None:
    """`for_share` of the groups after so many pieces."""
    group, *others = groups

    def run() -> None:
        number = index - before if before else index
        start = number * group.size
        body(group.start + start if group.start else start, group.size)

    if not others:
        run()
        return
    with I.If(index < before + group.count):
        with I.Then():
            run()
        with I.Else():
            _for_share(others, index, before + group.count, body)
