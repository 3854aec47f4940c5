"""The meaning of a merged region by NumPy: that of its parts, one after the other.

Between parts, values are rounded as if they were stored (`region_reference`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tir_schedules.core.region import Region
from tir_schedules.epilogue.region_reference import region_result

from .sources import sources_of, tensors_of

Evaluate = Callable[[Region, list[np.ndarray]], np.ndarray]


def chain_reference(
    region: Region, inputs: list[np.ndarray], evaluate: Evaluate = region_result
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
