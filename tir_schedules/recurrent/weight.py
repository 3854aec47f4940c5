"""The weight of a recurrence as its panels hold it.

    [directions, gates * hidden, hidden]  ->  flat: [direction][product][panel][k][unit][gate][lane]

Other constant inputs, such as biases, stay as they are.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from microkernels.isa import Isa
from tir_schedules.core.region import Region

from .config import Panels, RecurrentConfig, check, panels_of

WEIGHT = 1
"""Which input it is."""


def _columns(panels: Panels) -> np.ndarray:
    """For every column of all panels the row of a direction's weight, [panel, unit, gate, lane]."""
    first = np.array([panels.first(panel) for panel in range(panels.count)])
    units = np.arange(panels.units) * panels.lanes
    gates = np.array(panels.gates) * panels.hidden
    lanes = np.arange(panels.lanes)
    return (
        first[:, None, None, None]
        + units[:, None, None]
        + gates[None, None, :, None]
        + lanes[None, None, None, :]
    )


def pack(
    region: Region, config: RecurrentConfig, isa: Isa, index: int, array: np.ndarray
) -> np.ndarray:
    """The weight, flat."""
    if index != WEIGHT:
        return array
    problem = check(region, config, isa)
    flat = []
    for side in array:
        for panels in panels_of(problem, config):
            columns = _columns(panels).reshape(panels.count, -1)
            flat.append(side[columns].transpose(0, 2, 1).reshape(-1))
    return np.concatenate(flat)


def unpack(
    region: Region, config: RecurrentConfig, isa: Isa, index: int, expr: relax.Expr
) -> relax.Expr:
    """The weight as a Relax expression of its packed form."""
    if index != WEIGHT:
        return expr
    return relax.op.reshape(
        relax.op.take(expr, relax.const(_places(region, config, isa)), axis=0, mode="fast"),
        region.inputs[index].shape,
    )


def express(
    region: Region, config: RecurrentConfig, isa: Isa, index: int, expr: relax.Expr
) -> relax.Expr:
    """The packed weight as a Relax expression."""
    if index != WEIGHT:
        return expr
    size = int(np.prod(region.inputs[index].shape))
    sources = pack(region, config, isa, index, _numbered(region))
    flat = relax.op.reshape(expr, (size,))
    return relax.op.take(flat, relax.const(sources.astype(np.int32)), axis=0, mode="fast")


def packed_shape(region: Region, config: RecurrentConfig, isa: Isa, index: int) -> tuple[int, ...]:
    """Shape of the packed weight: flat."""
    if index != WEIGHT:
        return region.inputs[index].shape
    problem = check(region, config, isa)
    return (problem.directions * sum(panels.size for panels in panels_of(problem, config)),)


def _numbered(region: Region) -> np.ndarray:
    """The number of each element of the weight."""
    shape = region.inputs[WEIGHT].shape
    return np.arange(np.prod(shape)).reshape(shape)


def _places(region: Region, config: RecurrentConfig, isa: Isa) -> np.ndarray:
    """Where each element of the weight lies in its packed form."""
    sources = pack(region, config, isa, WEIGHT, _numbered(region))
    places = np.empty(int(np.prod(region.inputs[WEIGHT].shape)), np.int32)
    places[sources] = np.arange(len(sources))
    return places
