"""The meaning of a merged region by NumPy: that of its parts, one after the other.

Between parts, values are rounded as if they were stored. Only f32 values computed in float64 stay
in float64: kernels add in different orders, and their reference must be more precise than any of
them.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for
from tir_schedules.epilogue.epilogue import epilogue_reference, is_exact

from .sources import sources_of, tensors_of

Evaluate = Callable[[Region, list[np.ndarray]], np.ndarray]
_REAL = ("float32", "float64")


def part_result(part: Region, arrays: list[np.ndarray]) -> np.ndarray:
    """The result of one part.

    Parameters
    ----------
    part : Region
        An ordinary region.
    arrays : list of ndarray
        Its inputs and operands; values of type f32 may be float64.
    """
    inputs, operands = arrays[: len(part.inputs)], arrays[len(part.inputs) :]
    result = template_for(part.op).reference(part, inputs).reshape(part.output.shape)
    if result.dtype == np.float64 and not is_exact(part):
        operands = [x if x.dtype.kind in "biu" else x.astype(np.float64) for x in operands]
    with np.errstate(all="ignore"):
        return as_stored(part, epilogue_reference(part, result, operands))


def parts_flops(region: Region) -> int:
    """Operations of all parts."""
    return sum(template_for(part.op).flops(part) for part in region.parts)


def as_stored(part: Region, value: np.ndarray) -> np.ndarray:
    """A value in the type in which a part's result is stored, f32 as it was computed."""
    dtype = part.output.dtype
    if dtype == "float32" and value.dtype.name in _REAL:
        return value
    with np.errstate(all="ignore"):
        return value.astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))


def chain_reference(
    region: Region, inputs: list[np.ndarray], evaluate: Evaluate = part_result
) -> np.ndarray:
    """The result of a region whose attribute "sources" connects the parts.

    Parameters
    ----------
    region : Region
        The merged region.
    inputs : list of ndarray
        Its inputs, constants unpacked.
    evaluate : callable
        (part, its inputs and operands) -> its result; to see what becomes of an error.
    """
    results: list[np.ndarray] = []
    for part, sources in zip(region.parts, sources_of(region), strict=True):
        arrays = [
            (results if source.part else inputs)[source.number].reshape(tensor.shape)
            for source, tensor in zip(sources, tensors_of(part), strict=True)
        ]
        results.append(evaluate(part, arrays))
    return results[-1].reshape(region.output.shape)
