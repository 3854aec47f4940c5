"""The constant inputs of a chain as its kernel reads them.

Weights are packed as for "matmul". Operands of epilogues and normalisations stay as they are.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from microkernels.isa import Isa
from tir_schedules.core.attributes import Source
from tir_schedules.core.region import Region
from tir_schedules.product import matmul_weight
from tir_schedules.product.matmul_config import MatmulConfig

from .mlp_chain_config import MlpChainConfig
from .sources import sources_of


def packed_uses(region: Region, index: int) -> list[tuple[int, int]]:
    """(part, number of the part's input) wherever a matmul reads an input in packed form."""
    return [
        (number, position)
        for number, (part, sources) in enumerate(zip(region.parts, sources_of(region), strict=True))
        for position, source in enumerate(sources[: len(part.inputs)])
        if source == Source(False, index) and part.op == "matmul" and part.inputs[position].constant
    ]


def pack(
    region: Region, config: MlpChainConfig, isa: Isa, index: int, array: np.ndarray
) -> np.ndarray:
    """A constant as `build` reads it."""
    found = _user(region, config, index)
    if found is None:
        return array
    part, matmul_config, position = found
    given = array.reshape(part.inputs[position].shape)
    return matmul_weight.pack(part, matmul_config, isa, position, given)


def unpack(
    region: Region, config: MlpChainConfig, isa: Isa, index: int, expr: relax.Expr
) -> relax.Expr:
    """The constant as a Relax expression of its packed form."""
    found = _user(region, config, index)
    if found is None:
        return expr
    part, matmul_config, position = found
    whole = matmul_weight.unpack(part, matmul_config, isa, position, expr)
    shape = region.inputs[index].shape
    return whole if part.inputs[position].shape == shape else relax.op.reshape(whole, shape)


def packed_shape(region: Region, config: MlpChainConfig, isa: Isa, index: int) -> tuple[int, ...]:
    """Shape of a packed constant."""
    found = _user(region, config, index)
    if found is None:
        return region.inputs[index].shape
    part, matmul_config, position = found
    return matmul_weight.packed_shape(part, matmul_config, isa, position)


def _user(
    region: Region, config: MlpChainConfig, index: int
) -> tuple[Region, MatmulConfig, int] | None:
    """The matmul that reads an input in packed form, its configuration, and as which input."""
    for number, position in packed_uses(region, index):
        found = config.of_parts(region)[number]
        assert isinstance(found, MatmulConfig)
        return region.parts[number], found, position
    return None
