"""The inputs of a merged region as its kernel reads them: weights packed as each part packs them.

Operands of epilogues, and inputs of parts that pack nothing, stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from tvm import relax

from microkernels.isa import Isa
from microkernels.registry import microkernel_named
from tir_schedules.core.attributes import Source
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import Packing, template_for
from tir_schedules.product.matmul_config import MatmulConfig

from .sources import sources_of


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


def pack(
    region: Region, config: PartsConfig, isa: Isa, index: int, array: np.ndarray
) -> np.ndarray:
    """A constant as `build` reads it."""
    user = _user(region, config, index)
    if user is None:
        return array
    given = array.reshape(user.part.inputs[user.position].shape)
    return user.packing.pack(user.part, user.config, isa, user.position, given)


def unpack(
    region: Region, config: PartsConfig, isa: Isa, index: int, expr: relax.Expr
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
    region: Region, config: PartsConfig, isa: Isa, index: int, expr: relax.Expr
) -> relax.Expr:
    """The packed input as a Relax expression of one that products read."""
    user = _user(region, config, index)
    if user is None:
        return expr
    assert user.packing.express is not None  # only products have weights that are no constants
    return user.packing.express(user.part, user.config, isa, user.position, expr)


def packed_shape(region: Region, config: PartsConfig, isa: Isa, index: int) -> tuple[int, ...]:
    """Shape of the kernel's parameter for an input."""
    user = _user(region, config, index)
    if user is None:
        return region.inputs[index].shape
    return user.packing.shape(user.part, user.config, isa, user.position)


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
