"""The weight of a recurrence as its panels hold it.

    [directions, gates * hidden, hidden]
        ->  flat: [direction][product][panel][K / kr][unit][gate][lane][kr]

K is padded with zeros. Elements are of the type that the kernel multiplies: narrow floats are
widened unless it multiplies them. Behind the panels of bytes lie their large pairs (`large_pairs`),
where a kernel adds pairs, and the sums of columns, int32. Other constant inputs, such as biases,
stay as they are.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from microkernels.base.errors import ConfigError
from microkernels.isa import Isa
from microkernels.kernels.byte_pairs import has_pairs
from tir_schedules.core.region import Region

from .config import Panels, RecurrentConfig, check, kernel_of, panels_of
from .large_pairs import LargePairs
from .levels import starts_with_sums
from .problem import RecurrentProblem

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
    kernel = kernel_of(problem, config)
    packed = _panels(problem, config, array.astype(kernel.b_dtype, copy=False))
    if not starts_with_sums(kernel):
        return packed
    large = large_pairs(problem, config)
    if large is not None:
        packed = large.pack(packed)
    sums = array.sum(axis=-1, dtype=np.int32).reshape(-1)
    return np.concatenate([packed, sums.view(packed.dtype)])


def large_pairs(problem: RecurrentProblem, config: RecurrentConfig) -> LargePairs | None:
    """Where pairs lie that bytes cannot add; None if the kernel does not add pairs of bytes."""
    kernel = kernel_of(problem, config)
    if not (starts_with_sums(kernel) and has_pairs(kernel)):
        return None
    (panels,) = panels_of(problem, config)  # only an LSTM has a weight of bytes
    count = problem.directions * panels.count
    return LargePairs(count, panels.steps, panels.vectors, panels.lanes * panels.kr)


def sums_at(problem: RecurrentProblem, config: RecurrentConfig) -> int:
    """Elements before the columns' sums: all panels, and large pairs."""
    large = large_pairs(problem, config)
    if large is not None:
        return large.end
    return problem.directions * sum(panels.size for panels in panels_of(problem, config))


def _panels(problem: RecurrentProblem, config: RecurrentConfig, array: np.ndarray) -> np.ndarray:
    """The elements of all panels; zeros are padding."""
    flat = []
    for side in array:
        for panels in panels_of(problem, config):
            columns = _columns(panels).reshape(panels.count, -1)
            padding = panels.steps * panels.kr - panels.hidden
            rows = np.pad(side[columns], ((0, 0), (0, 0), (0, padding)))
            steps = rows.reshape(*columns.shape, panels.steps, panels.kr)
            flat.append(steps.transpose(0, 2, 1, 3).reshape(-1))
    return np.concatenate(flat)


def unpack(
    region: Region, config: RecurrentConfig, isa: Isa, index: int, expr: relax.Expr
) -> relax.Expr:
    """The weight as a Relax expression of its packed form."""
    if index != WEIGHT:
        return expr
    places = relax.const(_places(region, config, isa))
    large = large_pairs(check(region, config, isa), config)
    if large is not None:
        expr = large.unpack(expr)
    elements = relax.op.take(expr, places, axis=0, mode="fast")
    tensor = region.inputs[index]
    return relax.op.astype(relax.op.reshape(elements, tensor.shape), tensor.dtype)


def express(
    region: Region, config: RecurrentConfig, isa: Isa, index: int, expr: relax.Expr
) -> relax.Expr:
    """The packed weight as a Relax expression of the weight, by moves of whole blocks."""
    if index != WEIGHT:
        return expr
    problem = check(region, config, isa)
    kernel = kernel_of(problem, config)
    if starts_with_sums(kernel):
        raise ConfigError(f"{kernel.name} packs bytes of constants alone, in {region.key}")
    sides, _, hidden = region.inputs[index].shape
    if region.inputs[index].dtype != kernel.b_dtype:
        expr = relax.op.astype(expr, kernel.b_dtype)
    gates = relax.op.reshape(expr, (sides, problem.gates, hidden, hidden))
    parts = [
        relax.op.reshape(_expressed(gates, sides, panels, kernel.b_dtype), (sides, panels.size))
        for panels in panels_of(problem, config)
    ]
    packed = parts[0] if len(parts) == 1 else relax.op.concat(relax.Tuple(parts), axis=1)
    return relax.op.reshape(packed, packed_shape(region, config, isa, index))


def _expressed(gates: relax.Expr, sides: int, panels: Panels, dtype: str) -> relax.Expr:
    """The panels of one product, of a weight [directions, gates, hidden, hidden]."""
    hidden, width, steps = panels.hidden, panels.width, panels.steps
    first, count = panels.gates[0], len(panels.gates)
    whole = hidden // width * width
    # The last panel overlaps the one before it: rows up to the end of the whole ones, then its own.
    pieces = [(0, whole)] + [(hidden - width, hidden)] * (whole < hidden)
    rows = [
        relax.op.strided_slice(gates, [1, 2], [first, start], [first + count, end])
        for start, end in pieces
    ]
    padding = steps * panels.kr - hidden
    joined = rows[0] if len(rows) == 1 else relax.op.concat(relax.Tuple(rows), axis=2)
    if padding:
        zeros = relax.const(np.zeros((sides, count, panels.count * width, padding), dtype))
        joined = relax.op.concat(relax.Tuple([joined, zeros]), axis=3)
    shape = (sides, count, panels.count, panels.units, panels.lanes, steps, panels.kr)
    return relax.op.permute_dims(relax.op.reshape(joined, shape), [0, 2, 5, 3, 1, 4, 6])


def packed_shape(region: Region, config: RecurrentConfig, isa: Isa, index: int) -> tuple[int, ...]:
    """Shape of the packed weight: flat."""
    if index != WEIGHT:
        return region.inputs[index].shape
    problem = check(region, config, isa)
    sums = 4 * problem.directions * problem.gates * problem.hidden
    return (
        sums_at(problem, config) + (sums if starts_with_sums(kernel_of(problem, config)) else 0),
    )


def _numbered(region: Region) -> np.ndarray:
    """The number of each element of the weight."""
    shape = region.inputs[WEIGHT].shape
    return np.arange(np.prod(shape)).reshape(shape)


def _places(region: Region, config: RecurrentConfig, isa: Isa) -> np.ndarray:
    """Where each element of the weight lies in its packed form."""
    sources = _panels(check(region, config, isa), config, _numbered(region) + 1)
    places = np.empty(1 + int(np.prod(region.inputs[WEIGHT].shape)), np.int32)
    places[sources] = np.arange(len(sources))
    return places[1:]  # the first one is of padding
