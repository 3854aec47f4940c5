"""The description of a region as text."""

from __future__ import annotations

import json
import math

import pytest

from microkernels.base.errors import ConfigError
from tir_schedules.core.attributes import Source
from tir_schedules.core.region import EpilogueOp, Region, Tensor

F = "float32"


@pytest.mark.parametrize("number", [0.1, -0.0, math.inf, -math.inf, math.nan])
def test_json_keeps_every_number(number: float) -> None:
    part = Region(
        op="matmul",
        inputs=(Tensor((2, 3), F), Tensor((3, 4), "bfloat16", True)),
        output=Tensor((2, 4), F),
        operands=(Tensor((), F),),
        attrs={"axis": 1, "epsilon": 0.5, "rounded": "bfloat16", "flag": True},
        epilogue=(EpilogueOp("constant", value=number), EpilogueOp("add", (0, 2))),
    )
    for region in (part, part.replace(op="chain", parts=(part, part))):
        again = Region.from_json(region.to_json())
        assert again.key == region.key and again.to_json() == region.to_json()
        steps = [*again.epilogue, *(step for part in again.parts for step in part.epilogue)]
        values = [step.value for step in steps if step.op == "constant"]
        assert all(repr(value) == repr(number) for value in values)
        assert again.attrs == region.attrs and type(again.attrs["flag"]) is bool


CONV = Region(
    op="conv2d",
    inputs=(Tensor((1, 9, 9, 8), F), Tensor((3, 3, 8, 16), F, True)),
    output=Tensor((1, 4, 4, 16), F),
    attrs={"strides": (2, 2), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1},
)
CHAIN = Region(
    op="mlp_chain",
    inputs=CONV.inputs,
    output=CONV.output,
    attrs={"sources": ((Source(False, 0), Source(False, 1)), (Source(True, 0), Source(False, 12)))},
)
TEXTS = {"strides": "2,2", "padding": "0,0,0,0", "dilation": "1,1", "sources": "i0,i1;p0,i12"}


@pytest.mark.parametrize("region", [CONV, CHAIN], ids=lambda region: region.op)
def test_attributes_have_types_and_records_of_earlier_versions_texts(region: Region) -> None:
    """The key shows both alike, so records of both are found."""
    fields = json.loads(region.to_json())
    assert not any(isinstance(value, str) for value in fields["attrs"].values())
    earlier = {name: TEXTS.get(name, value) for name, value in fields["attrs"].items()}
    for text in (fields, {**fields, "attrs": earlier}):
        again = Region.from_json(json.dumps(text))
        assert again == region and repr(again.attrs) == repr(region.attrs)
    shown = ",".join(f"{name}={earlier[name]}" for name in sorted(earlier))
    assert f"; {shown})" in region.key


@pytest.mark.parametrize(
    ("name", "value"), [("strides", "2;2"), ("batch", 3), ("sources", "x0"), ("sources", "i0,")]
)
def test_attributes_of_other_types_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"attribute {name} cannot be"):
        CONV.replace(attrs={name: value})
