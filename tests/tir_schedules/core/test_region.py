"""The description of a region as text."""

from __future__ import annotations

import math

import pytest

from tir_schedules.core.region import Region, Step, Tensor

F = "float32"


@pytest.mark.parametrize("number", [0.1, -0.0, math.inf, -math.inf, math.nan])
def test_json_keeps_every_number(number: float) -> None:
    part = Region(
        op="matmul",
        inputs=(Tensor((2, 3), F), Tensor((3, 4), "bfloat16", True)),
        output=Tensor((2, 4), F),
        operands=(Tensor((), F),),
        attrs={"axis": 1, "epsilon": 0.5, "rounded": "bfloat16", "flag": True},
        epilogue=(Step("constant", value=number), Step("add", (0, 2))),
    )
    for region in (part, part.replace(op="chain", parts=(part, part))):
        again = Region.from_json(region.to_json())
        assert again.key == region.key and again.to_json() == region.to_json()
        steps = [*again.epilogue, *(step for part in again.parts for step in part.epilogue)]
        values = [step.value for step in steps if step.op == "constant"]
        assert all(repr(value) == repr(number) for value in values)
        assert again.attrs == region.attrs and type(again.attrs["flag"]) is bool
