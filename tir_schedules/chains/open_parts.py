"""The parts of a chain whose number of rows is known at run time only, as matrices.

    matmul [batch, sequence, 384] x [384, 512]  ->  rows of 384, batch * sequence of them

Memory does not change. Between the parts are matrices of a block of rows anyway.
"""

from __future__ import annotations

from tir_schedules.core.flat_rows import as_matrix, flat_rows
from tir_schedules.core.region import Region
from tir_schedules.rows.normalize_view import NORM_OPS


def open_parts(region: Region) -> Region:
    """The chain with parts of as few dimensions as possible."""
    return region.replace(parts=tuple(map(_open_part, region.parts)))


def _open_part(part: Region) -> Region:
    flat = flat_rows(part)
    if part.op in NORM_OPS and len(flat.output.shape) != 2:
        return part  # an operand differs along some of the leading dimensions
    x, *further = part.inputs
    attrs = {**part.attrs, "axis": 1} if part.op in NORM_OPS else part.attrs
    return flat.replace(inputs=(as_matrix(x), *further), attrs=attrs)
