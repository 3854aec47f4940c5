"""Views a normalised tensor as three extents: before, inside and after the normalised axes.

    softmax, axis 1 of (2, 5, 3, 4)        ->  lead (2,), n = 5, inner = 12
    layer_norm, from axis 1 of (2, 5, 4)   ->  lead (2,), n = 20, inner = 1

Leading dimensions stay as they are, so that operands of the epilogue broadcast along them. The
other dimensions are flattened. An operand allows that if it is full or broadcasts over a whole
part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tir_schedules.core.extents import flat_rows
from tir_schedules.core.region import Region, Tensor

SOFTMAX_OPS = ("softmax", "log_softmax")
NORM_OPS = ("layer_norm", "rms_norm")


@dataclass
class View:
    """A region in the form that the loops are written for.

    Attributes
    ----------
    region : Region
        Output and operands flattened after the leading dimensions.
    lead : tuple of int
        The dimensions before the normalised ones.
    n : int
        Numbers that are normalised together.
    inner : int
        Distance between them in memory; 1 if a row is contiguous.
    """

    region: Region
    lead: tuple[int, ...]
    n: int
    inner: int

    def __post_init__(self) -> None:
        # Extent of the leading dimensions together, and the shape of the data in this view.
        self.outer, inner = math.prod(self.lead), (self.inner,) if self.inner != 1 else ()
        self.shape = (*self.lead, self.n, *inner)


def view_of(region: Region) -> View | str:
    """The view of a region, or the reason why it has none."""
    shape, axis = region.inputs[0].shape, region.integer("axis")
    if not 0 <= axis < len(shape):
        return f"axis {axis} of a tensor of rank {len(shape)}"
    end = axis + 1 if region.op in SOFTMAX_OPS else len(shape)
    n, inner = math.prod(shape[axis:end]), math.prod(shape[end:])
    operands, parts = [], [(axis, end), (end, len(shape))][: 1 + (inner != 1)]
    for operand in region.operands:
        padded = (1,) * (len(shape) - len(operand.shape)) + operand.shape
        flat = list(padded[:axis])
        for start, stop in parts:
            extent = math.prod(padded[start:stop])
            if extent not in (1, math.prod(shape[start:stop])):
                return f"operand {operand} broadcasts within the dimensions that are flattened"
            flat.append(extent)
        operands.append(Tensor(tuple(flat), operand.dtype, operand.constant))
    lead = shape[:axis]
    flat_shape = (*lead, n) if inner == 1 else (*lead, n, inner)
    output = Tensor(flat_shape, region.output.dtype)
    return View(region.replace(operands=tuple(operands), output=output), lead, n, inner)


def dynamic_view(view: View) -> View:
    """A view with as few leading dimensions as its operands allow."""
    kept = 1 if view.inner == 1 else 2
    region = flat_rows(view.region, kept)
    return View(region, region.output.shape[:-kept], view.n, view.inner)
