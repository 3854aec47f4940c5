"""Pads and crops axes with a number, by amounts that follow from sizes.

    Pad(x: [n, 4], [m - n, 0, 0, 0])    ->    y: [m, 4], y[i, j] = x[i - (m - n), j] if that is in x

An amount below 0 crops.
"""

from __future__ import annotations

import numpy as np
from tvm import relax, te, tirx

from ..expressions import Expr
from .kernels import index
from .requests import check
from .sizes import dims_of, is_number, simplified


def open_pad(builder: relax.BlockBuilder, x: Expr, pads: np.ndarray, number: float) -> Expr:
    """A tensor with a number around it.

    Parameters
    ----------
    pads : ndarray [rank, 2]
        Numbers and expressions of sizes: the amounts before and after each axis.
    """
    dims = dims_of(x)
    amounts = [[amount(each) for each in pair] for pair in pads]
    for extent, pair in zip(dims, amounts, strict=True):  # what is cropped is there
        check(builder, extent + sum(te.min(each, index(0)) for each in pair) >= 0)
    before = [pair[0] for pair in amounts]
    sizes = [
        simplified(extent + sum(pair, start=index(0)))
        for extent, pair in zip(dims, amounts, strict=True)
    ]
    changed = [axis for axis, pair in enumerate(amounts) if not all(is_number(n, 0) for n in pair)]
    if not changed:
        return x

    def compute(x: te.Tensor, sizes: list[Expr], before: list[Expr]) -> te.Tensor:
        def element(*place: Expr) -> Expr:
            at = [i - behind for i, behind in zip(place, before, strict=True)]
            inside = [tirx.all(at[axis] >= 0, at[axis] < x.shape[axis]) for axis in changed]
            outside = tirx.const(number, str(x.dtype))
            return tirx.if_then_else(tirx.all(*inside), x(*at), outside)

        return te.compute(sizes, element, name="padded")

    return builder.emit_te(compute, x, sizes, before, primfunc_name_hint="pad")


def amount(value: object) -> Expr:
    """How much an axis grows at one end: of a number or an expression of sizes."""
    return index(int(value)) if isinstance(value, int | np.integer) else simplified(value)
