"""Where the parts of a chain get their inputs and operands from: the attribute "sources".

    ((i0, i1, i2), (p0, i3, i4, i0))

Each part lists its inputs, then its operands: iN is input N of the merged region, pN the result of
part N.
"""

from __future__ import annotations

from microkernels.base.errors import ConfigError
from tir_schedules.core.attributes import Sources, attribute_text
from tir_schedules.core.region import Region, Tensor


def sources_of(region: Region) -> Sources:
    """The sources of every part's inputs and operands.

    Raises
    ------
    ConfigError
        If the attribute is missing, or does not fit the parts.
    """
    found = region.sources
    if not found:
        raise ConfigError(f"there is no source for any part, in {region.key}")
    wanted = [len(part.inputs) + len(part.operands) for part in region.parts]
    if [len(part) for part in found] != wanted:
        text = attribute_text(found)
        raise ConfigError(f"sources {text!r} for parts of {wanted} inputs and operands")
    for number, part in enumerate(found):
        for source in part:
            if source.number >= (number if source.part else len(region.inputs)):
                raise ConfigError(f"part {number} cannot read {source}, in {region.key}")
    return found


def tensors_of(part: Region) -> tuple[Tensor, ...]:
    """What the sources of a part stand for."""
    return (*part.inputs, *part.operands)
