"""Pads and crops axes of open sizes with elements of the tensor itself.

    Pad(x: [n, 4], [1, 0, m - n, 0], mode=reflect)    ->    R.take(x, i, axis=0): [1 + m, 4]

The table i says which element each place has. The program computes it when it runs.
"""

from __future__ import annotations

import numpy as np
from tvm import relax, te, tirx

from microkernels.base.tvm_compat.relax import OP_PATTERN, OPAQUE
from relay_passes.lower.legalize_places import PLACES

from ..expressions import Expr
from .kernels import index
from .pads import amount
from .requests import check
from .sizes import dims_of, is_number, simplified


def pad_by_table(
    builder: relax.BlockBuilder, x: Expr, axis: int, pads: np.ndarray, mode: str
) -> Expr:
    """A tensor with elements of its own before and behind an axis.

    Parameters
    ----------
    pads : ndarray [2]
        The amounts before and after, numbers and expressions of sizes. Negative ones crop first.
    mode
        "edge", "reflect" or "wrap", as ONNX has them.
    """
    extent, (before, after) = dims_of(x)[axis], map(amount, pads)
    if is_number(before, 0) and is_number(after, 0):
        return x
    cropped = [te.min(each, index(0)) for each in (before, after)]
    kept, size = simplified(extent + cropped[0] + cropped[1]), simplified(extent + before + after)
    check(builder, kept >= 0)  # what is cropped is there
    some = tirx.any(kept > 0, tirx.EQ(size, index(0)))
    check(builder, some, "an axis of no elements is padded by some")

    def compute(size: Expr, kept: Expr, before: Expr) -> te.Tensor:
        def element(place: Expr) -> Expr:
            inner = place - te.max(before, index(0))
            outside = _source(mode, inner, kept)
            behind = tirx.if_then_else(inner < kept, inner, outside)
            return tirx.if_then_else(inner < 0, outside, behind) - te.min(before, index(0))

        return te.compute((size,), element, name="places")

    # By itself: in one kernel with what reads it, it would be computed for every element.
    places = builder.emit_te(
        compute,
        size,
        kept,
        before,
        primfunc_name_hint="pad_places",
        primfunc_attrs={OP_PATTERN: OPAQUE, PLACES: True},
    )
    return builder.normalize(relax.op.take(x, places, axis, mode="clip"))


def _source(mode: str, place: Expr, extent: Expr) -> Expr:
    """The element at a place that may be outside; `pad_converter` has the same for numbers."""
    last = extent - 1
    if mode == "edge":
        return te.max(te.min(place, last), index(0))
    if mode == "wrap":
        return tirx.floormod(place, te.max(extent, index(1)))
    period = te.max(2 * last, index(1))
    inside = tirx.floormod(place, period)
    return te.min(inside, period - inside)
