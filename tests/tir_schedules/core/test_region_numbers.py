"""Numbers of regions: the region without them, and placeholders in their places."""

from __future__ import annotations

from typing import Any

from microkernels.vector.placeholders import Placeholder
from tir_schedules.core.region import (
    EpilogueOp,
    Region,
    Tensor,
    region_form,
    region_numbers,
    traced,
)


def _product(zero_point: int, scale: float, slope: float = 0.5, **changes: Any) -> Region:
    tensor = Tensor((4, 8), "uint8")
    steps = (
        EpilogueOp("cast", (0,)),
        EpilogueOp("constant", value=scale),
        EpilogueOp("multiply", (1, 2)),
        EpilogueOp("constant", value=slope),
        EpilogueOp("leaky_relu", (3, 4)),
    )
    return Region(
        op="matmul",
        inputs=(tensor, Tensor((8, 8), "int8", constant=True)),
        output=Tensor((4, 8), "float32"),
        attrs={"a_zero_point": zero_point, "transpose_b": False},
        epilogue=steps,
    ).replace(**changes)


def test_regions_that_differ_in_numbers_have_one_form() -> None:
    region = _product(3, 0.25)
    assert region_numbers(region) == (3, 0.25, 0.5)
    assert region_form(region) == region_form(_product(4, 0.125, 1.0))
    assert region_form(region) != region_form(_product(3, 0.25, output=Tensor((4, 8), "uint8")))
    assert region_form(region) != region_form(
        _product(3, 0.25, attrs={"a_zero_point": "input", "transpose_b": False})
    )


def test_parts_have_numbers_too() -> None:
    merged = [
        _product(0, 1.0, parts=(_product(zero_point, 0.25), _product(zero_point, 0.5)))
        for zero_point in (3, 4)
    ]
    assert region_numbers(merged[0])[-6:] == (3, 0.25, 0.5, 3, 0.5, 0.5)
    assert region_form(merged[0]) == region_form(merged[1])


def test_only_numbers_that_differ_become_placeholders() -> None:
    others = [_product(3, 0.125), _product(3, 0.5)]
    region, trace = traced(_product(3, 0.25), others)
    numbers = region_numbers(region)
    assert [isinstance(number, Placeholder) for number in numbers] == [False, True, False]
    assert trace.values == (3, 0.25, 0.5)
    assert region.integer("a_zero_point") == 3


def test_zeros_of_either_sign_differ() -> None:
    region, _ = traced(_product(3, 0.0), [_product(3, -0.0)])
    assert isinstance(region.epilogue[1].value, Placeholder)
