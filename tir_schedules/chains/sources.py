"""Where the parts of a chain get their inputs and operands from: the attribute "sources".

    "i0,i1,i2;p0,i3,i4,i0"

Parts are separated by ";". Each part lists its inputs, then its operands: "iN" is input N of the
merged region, "pN" the result of part N.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from microkernels.errors import ConfigError
from tir_schedules.core.region import Region, Tensor

_SOURCE = re.compile(r"([ip])(\d+)")


class Source(NamedTuple):
    """An input of the merged region, or (`part`) the result of one of its parts."""

    part: bool
    number: int

    def __str__(self) -> str:
        return f"{'p' if self.part else 'i'}{self.number}"


Sources = tuple[tuple[Source, ...], ...]


def sources_text(sources: Sequence[Sequence[Source]]) -> str:
    """The attribute's value."""
    return ";".join(",".join(map(str, part)) for part in sources)


def sources_of(region: Region) -> Sources:
    """The sources of every part's inputs and operands.

    Raises
    ------
    ConfigError
        If the attribute is missing, or does not fit the parts.
    """
    text = str(region.attrs.get("sources", ""))
    found = tuple(
        tuple(_source(item, region) for item in part.split(",")) for part in text.split(";")
    )
    wanted = [len(part.inputs) + len(part.operands) for part in region.parts]
    if [len(part) for part in found] != wanted:
        raise ConfigError(f"sources {text!r} for parts of {wanted} inputs and operands")
    for number, part in enumerate(found):
        for source in part:
            if source.number >= (number if source.part else len(region.inputs)):
                raise ConfigError(f"part {number} cannot read {source}, in {region.key}")
    return found


def tensors_of(part: Region) -> tuple[Tensor, ...]:
    """What the sources of a part stand for."""
    return (*part.inputs, *part.operands)


def _source(item: str, region: Region) -> Source:
    match = _SOURCE.fullmatch(item)
    if match is None:
        raise ConfigError(f"{item!r} is no source, in {region.key}")
    return Source(match[1] == "p", int(match[2]))
