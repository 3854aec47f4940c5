"""Describes how results differ from the expected values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .oracle import Expected

Array = NDArray[Any]


def difference(got: Array, expected: Expected, like: Array) -> str:
    """Describes what is wrong with an output; "" if nothing is wrong.

    Parameters
    ----------
    got : numpy.ndarray
        The output.
    expected : Expected
        Value and tolerance.
    like : numpy.ndarray
        An array with the expected shape and type.
    """
    if got.shape != like.shape:
        return f"shape {got.shape}, not {like.shape}"
    if got.dtype != like.dtype:
        return f"type {got.dtype}, not {like.dtype}"
    wrong = wrong_elements(got, expected)
    if not wrong.any():
        return ""
    place = tuple(map(int, np.argwhere(wrong)[0]))
    return (
        f"{int(wrong.sum())} of {got.size} elements; at {place} {got[place]!r} instead of "
        f"{expected.value[place]!r}, within {expected.tolerance[place]:.3g}"
    )


def wrong_elements(got: Array, expected: Expected) -> Array:
    """Mask of the elements that are further away than the tolerance."""
    with np.errstate(all="ignore"):
        ours, wanted = got, expected.value
        if wanted.dtype == np.float64:
            ours = got.astype(np.float64)
        same = ours == wanted
        if wanted.dtype.kind == "f":
            same |= np.isnan(ours) & np.isnan(wanted)
            flipped = (wanted == 0) & (np.signbit(ours) != np.signbit(wanted))
            if expected.signed:
                same &= ~flipped | (expected.tolerance > 0)
        apart = np.abs(ours.astype(np.float64) - wanted.astype(np.float64))
        near = (apart <= expected.tolerance) & (expected.tolerance > 0)
        return ~(same | near | np.isinf(expected.tolerance))
