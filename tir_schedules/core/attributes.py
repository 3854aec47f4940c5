"""Attributes of regions: their types, their text in keys, and their form in records.

    strides = (2, 2)                                 strides=2,2
    sources = ((i0, i1, i2), (p0, i3, i4))           sources=i0,i1,i2;p0,i3,i4

Records hold lists; those of earlier versions hold the text of the key.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from microkernels.base.errors import ConfigError

from .size import SymbolicSize, size_from

Scalar = bool | int | float | str
Numbers = tuple[int, ...]
_SOURCE = re.compile(r"([ip])(\d+)")


class Source(NamedTuple):
    """An input of a merged region, or (`part`) the result of one of its parts."""

    part: bool
    number: int

    def __str__(self) -> str:
        return f"{'p' if self.part else 'i'}{self.number}"


Sources = tuple[tuple[Source, ...], ...]
Attribute = Scalar | Numbers | Sources

SOURCES = "sources"
CAUSAL = "causal"  # a number or a symbolic size
LISTS_OF_NUMBERS = {
    *("strides", "padding", "dilation"),
    *("a_axes", "b_axes", "out_axes"),
    *("batch", "q_strides", "k_strides", "v_strides", "out_strides", "sink_strides"),
}


def typed(name: str, value: Any) -> Attribute:
    """Converts an attribute to its type, from any of its forms.

    Raises
    ------
    ConfigError
        If that is impossible.
    """
    try:
        if name == CAUSAL:
            return _number(value)
        if name in LISTS_OF_NUMBERS:
            items = value.split(",") if isinstance(value, str) else value
            return tuple(_number(item) for item in items if item != "")
        if name == SOURCES:
            parts = value.split(";") if isinstance(value, str) else value
            return tuple(
                tuple(map(_source, part.split(",") if isinstance(part, str) else part))
                for part in parts
            )
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a region's attribute {name} cannot be {value!r}") from error
    return value


def _number(item: Any) -> int:
    """A number of a list; a symbolic size stays one."""
    if isinstance(item, SymbolicSize):
        return item
    return size_from(item) if isinstance(item, str) else int(item)


def attribute_text(value: Attribute) -> str:
    """The text of an attribute in a key."""
    if not isinstance(value, tuple):
        return str(value)
    if any(isinstance(item, tuple) and not isinstance(item, Source) for item in value):
        return ";".join(",".join(map(str, part)) for part in value if isinstance(part, tuple))
    return ",".join(map(str, value))


def _source(item: Any) -> Source:
    """A source from its text, or from its form in JSON."""
    if not isinstance(item, str):
        part, number = item
        return Source(bool(part), int(number))
    match = _SOURCE.fullmatch(item)
    if match is None:
        raise ValueError(f"{item!r} is no source")
    return Source(match[1] == "p", int(match[2]))
