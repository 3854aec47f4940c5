"""The result of a region by NumPy, with its epilogue, rounded as it is stored.

Only f32 values computed in float64 stay in float64: kernels add in different orders, and their
reference must be more precise than any of them.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for

from .epilogue import epilogue_reference, is_exact

_REAL = ("float32", "float64")


def region_result(region: Region, arrays: list[np.ndarray]) -> np.ndarray:
    """The result of an ordinary region.

    Parameters
    ----------
    region : Region
        Not merged of parts.
    arrays : list of ndarray
        Its inputs and operands; values of type f32 may be float64.
    """
    inputs, operands = arrays[: len(region.inputs)], arrays[len(region.inputs) :]
    result = template_for(region.op).reference(region, inputs).reshape(region.output.shape)
    if result.dtype == np.float64 and not is_exact(region):
        operands = [x if x.dtype.kind in "biu" else x.astype(np.float64) for x in operands]
    with np.errstate(all="ignore"):
        return as_stored(region, epilogue_reference(region, result, operands))


def as_stored(region: Region, value: np.ndarray) -> np.ndarray:
    """A value in the type of a region's result, f32 as it was computed."""
    dtype = region.output.dtype
    if dtype == "float32" and value.dtype.name in _REAL:
        return value
    with np.errstate(all="ignore"):
        return value.astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
