"""Remembers what was found for a region, for all regions that differ in numbers only.

    config = FormMemo(lambda region: template.default_config(region, machine))
    config(layer_1)     # asks
    config(layer_2)     # remembers: the same but for scales and zero points, and no answer depends
                        # on those, or they are alike in all that was asked about them

The function is asked with placeholders for all numbers, so its conditions are known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from microkernels.base.errors import TvmHybridError
from microkernels.vector.placeholders import Placeholder, Trace

from .region import Region, all_traced, region_form, region_numbers

T = TypeVar("T")


class FormMemo(Generic[T]):
    """A function of regions that remembers.

    Parameters
    ----------
    function : callable
        Region -> result, which is not changed afterwards. It depends on the region alone.
    """

    def __init__(self, function: Callable[[Region], T]) -> None:
        self.function = function
        self.known: dict[str, list[tuple[Trace, T]]] = {}

    def __call__(self, region: Region) -> T:
        """The result for a region."""
        numbers = region_numbers(region)
        known = self.known.setdefault(region_form(region), [])
        for trace, result in known:
            if trace.holds(numbers):
                return result
        with_placeholders, trace = all_traced(region)
        try:
            result = self.function(with_placeholders)
        except (TvmHybridError, TypeError):  # code that takes nothing but a number
            return self.function(region)
        if _has_placeholder(result):
            return self.function(region)
        known.append((trace, result))
        return result


def _has_placeholder(value: Any) -> bool:
    """Whether a placeholder is anywhere in a result."""
    if dataclasses.is_dataclass(value):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, msgspec.Struct):
        parts = [getattr(value, name) for name in value.__struct_fields__]
    elif isinstance(value, dict):
        parts = [*value, *value.values()]
    elif isinstance(value, (tuple, list, set, frozenset)):
        parts = list(value)
    else:
        return isinstance(value, Placeholder)
    return any(map(_has_placeholder, parts))
