"""Divisions of indices that count down give equal numbers when counted up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tvm import tirx
from tvm.sym import Analyzer

from tir_schedules.generic.expressions import const_int, int64, substitute
from tir_schedules.generic.vector_math import ascending

V, W = tirx.Var("v", "int64"), tirx.Var("w", "int64")
DIVIDE = {"//": tirx.FloorDiv, "%": tirx.FloorMod}


@pytest.mark.parametrize("divide", DIVIDE.values(), ids=DIVIDE)
@pytest.mark.parametrize("size", [1, 2, 5, 10])
@pytest.mark.parametrize("first", [-7, -1, 0, 4, 9, 14])
def test_the_same_numbers(divide: Callable[..., tirx.Expr], size: int, first: int) -> None:
    for dividend in (int64(first) - V, V * int64(-1) + int64(first), int64(first) - V * 2 - W):
        before = divide(dividend, int64(size))
        after = ascending(before)
        assert not isinstance(after, type(before))
        for v in range(11):
            values = {V: int64(v), W: int64(v % 3)}
            found = (
                const_int(Analyzer().simplify(substitute(each, values))) for each in (before, after)
            )
            assert len(set(found)) == 1


def test_what_counts_up_stays() -> None:
    for dividend in (V, V + int64(3), V - W, int64(9)):
        before = tirx.FloorDiv(dividend, int64(5))
        assert ascending(before).same_as(before)
