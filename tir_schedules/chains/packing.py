"""The inputs of a merged region as its kernel reads them: weights packed as each part packs them.

Operands of epilogues, and inputs of parts that pack nothing, stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from tvm import relax

from microkernels.base.errors import ConfigError
from microkernels.isa import Isa
from microkernels.registry import microkernel_named
from tir_schedules.core.attributes import Source, Sources, attribute_text
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import Packing, template_for
from tir_schedules.product.tile_config import MatmulConfig


class PartsConfig(Protocol):
    """A configuration that has one for every part."""

    def of_parts(self, region: Region) -> Sequence[Config]:
        """The configuration of every part."""


class _User(NamedTuple):
    """A part that reads an input in packed form, its numbers, as which input, how it packs."""

    part: Region
    config: Config
    position: int
    packing: Packing[Any]


def packed_uses(region: Region, index: int) -> list[tuple[int, int]]:
    """(part, number of the part's input) wherever a part reads an input in packed form."""
    return [
        (number, position)
        for number, (part, sources) in enumerate(zip(region.parts, sources_of(region), strict=True))
        for position, source in enumerate(sources[: len(part.inputs)])
        if source == Source(False, index)
        and part.inputs[position].constant
        and template_for(part.op).packing is not None
    ]


class PartsPacking(Packing[Any]):
    """Weights as each part packs them; what no part packs stays as it is."""

    def pack(
        self, region: Region, config: PartsConfig, isa: Isa, index: int, array: np.ndarray
    ) -> np.ndarray:
        """A constant as `build` reads it."""
        user = _user(region, config, index)
        if user is None:
            return array
        given = array.reshape(user.part.inputs[user.position].shape)
        return user.packing.pack(user.part, user.config, isa, user.position, given)

    def unpack(
        self, region: Region, config: PartsConfig, isa: Isa, index: int, expr: relax.Expr
    ) -> relax.Expr:
        """The constant as a Relax expression of its packed form."""
        user = _user(region, config, index)
        if user is None:
            return expr
        whole = user.packing.unpack(user.part, user.config, isa, user.position, expr)
        shape = region.inputs[index].shape
        same = user.part.inputs[user.position].shape == shape
        return whole if same else relax.op.reshape(whole, shape)

    def express(
        self, region: Region, config: PartsConfig, isa: Isa, index: int, expr: relax.Expr
    ) -> relax.Expr:
        """The packed input as a Relax expression of one that products read."""
        user = _user(region, config, index)
        if user is None:
            return expr
        return user.packing.express(user.part, user.config, isa, user.position, expr)

    def shape(self, region: Region, config: PartsConfig, isa: Isa, index: int) -> tuple[int, ...]:
        """Shape of the kernel's parameter for an input."""
        user = _user(region, config, index)
        if user is None:
            return region.inputs[index].shape
        return user.packing.shape(user.part, user.config, isa, user.position)


PACKING = PartsPacking()


def parameter_dtype(region: Region, config: PartsConfig, index: int) -> str:
    """Element type of the kernel's parameter for an input."""
    user = _user(region, config, index)
    if user is not None and isinstance(user.config, MatmulConfig) and user.position == 1:
        return microkernel_named(user.config.kernel).b_dtype
    return region.inputs[index].dtype


def _user(region: Region, config: PartsConfig, index: int) -> _User | None:
    """Who reads an input in packed form; None if nobody does."""
    for number, position in packed_uses(region, index):
        part = region.parts[number]
        packing = template_for(part.op).packing
        assert packing is not None
        return _User(part, config.of_parts(region)[number], position, packing)
    return None


# Where the parts of a chain get their inputs and operands from: the attribute "sources".
#
#     ((i0, i1, i2), (p0, i3, i4, i0))
#
# Each part lists its inputs, then its operands: iN is input N of the merged region, pN the result
# of part N.


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
