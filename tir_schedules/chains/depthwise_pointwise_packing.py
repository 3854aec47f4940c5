"""Packs the constant inputs of both parts of a depthwise and a pointwise convolution."""

from __future__ import annotations

import numpy as np
from tvm import relax

from microkernels.isa import Isa
from microkernels.microkernel import microkernel_named
from tir_schedules.core.attributes import Source
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import Packing, template_for

from .depthwise_pointwise_config import DepthwisePointwiseConfig
from .sources import sources_of


def packed_uses(region: Region, index: int) -> list[tuple[int, int]]:
    """(part, number of the part's input) wherever a part reads an input in packed form."""
    return [
        (number, position)
        for number, (part, sources) in enumerate(zip(region.parts, sources_of(region), strict=True))
        for position, source in enumerate(sources[: len(part.inputs)])
        if source == Source(False, index) and part.inputs[position].constant
    ]


def pack(
    region: Region, config: DepthwisePointwiseConfig, isa: Isa, index: int, array: np.ndarray
) -> np.ndarray:
    """A constant as `build` reads it."""
    for part, found, position, packing in _users(region, config, index):
        return packing.pack(part, found, isa, position, array.reshape(part.inputs[position].shape))
    return array


def unpack(
    region: Region, config: DepthwisePointwiseConfig, isa: Isa, index: int, expr: relax.Expr
) -> relax.Expr:
    """The constant as a Relax expression of its packed form."""
    for part, found, position, packing in _users(region, config, index):
        whole = packing.unpack(part, found, isa, position, expr)
        shape = region.inputs[index].shape
        return whole if part.inputs[position].shape == shape else relax.op.reshape(whole, shape)
    return expr


def packed_shape(
    region: Region, config: DepthwisePointwiseConfig, isa: Isa, index: int
) -> tuple[int, ...]:
    """Shape of a packed constant."""
    for part, found, position, packing in _users(region, config, index):
        return packing.shape(part, found, isa, position)
    return region.inputs[index].shape


def parameter_dtype(region: Region, config: DepthwisePointwiseConfig, index: int) -> str:
    """Element type of the kernel's parameter for an input."""
    if (1, 1) in packed_uses(region, index):
        return microkernel_named(config.pointwise.kernel).b_dtype
    return region.inputs[index].dtype


def _users(
    region: Region, config: DepthwisePointwiseConfig, index: int
) -> list[tuple[Region, Config, int, Packing]]:
    """Who reads an input in packed form: the part, its numbers, as which input, how it packs."""
    found: list[tuple[Region, Config, int, Packing]] = []
    for number, position in packed_uses(region, index):
        part = region.parts[number]
        packing = template_for(part.op).packing
        assert packing is not None
        found.append((part, config.parts[number], position, packing))
    return found
