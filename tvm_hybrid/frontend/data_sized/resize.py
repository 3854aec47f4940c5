"""Resize of images whose sizes are open, to a whole number of times as many rows and columns.

Every element some times over is the only form in which no table depends on the sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from tvm import relax

from ..expressions import Expr, constant, given
from .sizes import dims_of


class Resizing(Protocol):
    """What the attributes say."""

    @property
    def mode(self) -> str:
        """Such as "nearest"."""

    @property
    def coordinates(self) -> str:
        """The coordinate transformation mode."""

    @property
    def rounding(self) -> str:
        """The nearest mode."""


# (coordinates, rounding) that take element i // factor for output i.
_WHOLE = {
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
}


def open_resize(inputs: Sequence[Any], attrs: dict[str, Any], how: Resizing) -> Expr:
    """R.image.resize2d by whole factors; ValueError for other forms."""
    x, dims = inputs[0], dims_of(inputs[0])
    scales = constant(inputs[1]) if len(inputs) == 2 else constant(given(inputs, 2))
    form = ("asymmetric", "floor") if len(inputs) == 2 else (how.coordinates, how.rounding)
    if scales is None or scales.size != 4 or len(dims) != 4 or "axes" in attrs:
        raise ValueError("an image of open sizes is resized by four constant scales alone")
    factors = [int(scale) for scale in scales]
    whole = np.array_equal(factors, scales) and factors[:2] == [1, 1] and min(factors) > 0
    if how.mode != "nearest" or form not in _WHOLE or not whole:
        raise ValueError(
            "an image of open sizes is resized to the nearest element and by whole factors alone"
        )
    size = [extent * factor for extent, factor in zip(dims[2:], factors[2:], strict=True)]
    return relax.op.image.resize2d(
        x,
        relax.ShapeExpr(size),
        layout="NCHW",
        method="nearest_neighbor",
        coordinate_transformation_mode="asymmetric",
        rounding_method="floor",
    )
