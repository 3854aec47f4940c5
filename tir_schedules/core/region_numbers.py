"""Takes the numbers out of a region: what is left says which regions may share a kernel.

Before

    matmul(uint8[1x32x128], ...; a_zero_point=129) ... constant(0.0299) ... -> uint8[1x32x128]

After

    matmul(uint8[1x32x128], ...; a_zero_point=0) ... constant(0.0) ... -> uint8[1x32x128]
    129, 0.0299

Numbers are the constants of epilogues, and scales and zero points of products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import structs

from microkernels.vector.placeholders import Trace

from .region import Region, Step

_ATTRIBUTES = ("a_scale", "a_zero_point", "b_zero_point")


def region_numbers(region: Region) -> tuple[float | int, ...]:
    """The numbers of a region, its parts included, in order."""
    found: list[float | int] = []

    def look(number: float | int) -> float | int:
        found.append(number)
        return number

    _with_numbers(region, look)
    return tuple(found)


def region_form(region: Region) -> str:
    """A region without its numbers, as text; equal for regions that differ in nothing else."""
    return _with_numbers(region, lambda number: type(number)(0)).to_json()


def traced(region: Region, others: list[Region]) -> tuple[Region, Trace]:
    """A region with placeholders for the numbers that regions of the same form have not all.

    Parameters
    ----------
    region : Region
        The one that a kernel is built for.
    others : list of Region
        Of the same form.

    Returns
    -------
    Region
        With placeholders among its numbers.
    Trace
        Of all numbers of the region.
    """
    numbers = region_numbers(region)
    rows = [numbers, *map(region_numbers, others)]
    # 0.0 and -0.0 are equal, but not the same.
    differ = [len(set(map(repr, column))) > 1 for column in zip(*rows, strict=True)]
    trace = Trace(numbers)
    placeholders = trace.placeholders()
    given: list[Any] = [
        placeholder if differs else number
        for placeholder, number, differs in zip(placeholders, numbers, differ, strict=True)
    ]
    remaining = iter(given)
    return _with_numbers(region, lambda _number: next(remaining)), trace


def all_traced(region: Region) -> tuple[Region, Trace]:
    """A region with placeholders for all its numbers, and their trace."""
    trace = Trace(region_numbers(region))
    placeholders = iter(trace.placeholders())
    return _with_numbers(region, lambda _number: next(placeholders)), trace


def _with_numbers(region: Region, change: Callable[[float | int], Any]) -> Region:
    """A region with other numbers."""

    def attribute(name: str, value: Any) -> Any:
        known = isinstance(value, (float, int)) and not isinstance(value, bool)
        return change(value) if known and name in _ATTRIBUTES else value

    def step(each: Step) -> Step:
        if each.op != "constant" or each.value is None:
            return each
        return structs.replace(each, value=change(each.value))

    return region.replace(
        attrs={name: attribute(name, value) for name, value in sorted(region.attrs.items())},
        epilogue=tuple(map(step, region.epilogue)),
        parts=tuple(_with_numbers(part, change) for part in region.parts),
    )
