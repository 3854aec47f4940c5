"""Reads the axes that calls of operators name, counted from the front."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import relax

from .graph import op_name, static_tensor
from .traits import RESHAPES


def permutation(call: relax.Call) -> tuple[int, ...]:
    """For each axis of an R.permute_dims, which axis of the argument it is."""
    rank, axes = int(call.args[0].ty.ndim), call.attrs.axes
    return tuple(range(rank))[::-1] if axes is None else tuple(int(axis) % rank for axis in axes)


def reduced_axes(call: relax.Call) -> list[int]:
    """The axes that a reduction reduces, ascending."""
    rank, axes = int(call.args[0].ty.ndim), call.attrs.axis
    if axes is None:
        return list(range(rank))
    return sorted(int(axis) % rank for axis in ([axes] if isinstance(axes, int) else axes))


def reshaped_axis(before: Sequence[int], after: Sequence[int], axis: int) -> int | None:
    """Where an axis is after a reshape: it has the same extent and as much before it; else None."""
    leading = math.prod(before[:axis])
    for other, extent in enumerate(after):
        if extent == before[axis] and math.prod(after[:other]) == leading:
            return other
    return None


def view_of(array: np.ndarray, call: relax.Call) -> np.ndarray | None:
    """What a permutation or a reshape makes of an array; None for other calls."""
    if op_name(call) == "relax.permute_dims":
        return array.transpose(permutation(call))
    tensor = static_tensor(call) if op_name(call) in RESHAPES else None
    return None if tensor is None else array.reshape(tensor.shape)
