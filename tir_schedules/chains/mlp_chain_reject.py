"""Which merged regions are chains that the template "mlp_chain" builds.

Every part works row by row, on as many rows as the first part. No two parts share a weight, because
they may pack it differently.
"""

from __future__ import annotations

from collections.abc import Sequence

from microkernels.base.errors import ConfigError
from microkernels.isa import Isa
from tir_schedules.core.attributes import Source
from tir_schedules.core.integer_product import is_dynamic
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for
from tir_schedules.rows.normalize_view import NORM_OPS

from .mlp_chain_config import rows_of
from .packing import packed_uses
from .sources import sources_of, tensors_of


def reject(region: Region, isa: Isa) -> str | None:
    """Why the template cannot build a region, or None."""
    if len(region.parts) < 2:
        return f"{len(region.parts)} parts"
    try:
        sources = sources_of(region)
    except ConfigError as error:
        return str(error)
    for number, (part, found) in enumerate(zip(region.parts, sources, strict=True)):
        reason = _reject_part(part, isa) or _reject_sources(region, number, found)
        if reason is not None:
            return f"part {number} ({part.op}): {reason}"
    for index, tensor in enumerate(region.inputs):
        uses = packed_uses(region, index)
        everywhere = sum(found.count(Source(False, index)) for found in sources)
        if not everywhere:
            return f"input {index} is not used"
        if uses and (len(uses) > 1 or everywhere > 1 or not tensor.constant):
            return f"input {index} is a weight, and not one part's alone"
    last = region.parts[-1].output
    if (region.output.dtype, region.output.size) != (last.dtype, last.size):
        return f"output {region.output} of a part with {last}"
    return None


def opens(region: Region, isa: Isa) -> str | None:
    """Why the template cannot build a region whose number of rows is open, or None."""
    for number, part in enumerate(region.parts):
        reason = template_for(part.op).opens(part, isa)
        if reason is not None:
            return f"part {number} ({part.op}): {reason}"
    return None


def _reject_part(part: Region, isa: Isa) -> str | None:
    """Why a part cannot run on a block of rows."""
    if part.op == "matmul":
        reason = template_for(part.op).reject(part, isa)
        if reason is None and "window" in part.attrs:
            reason = "rows that are windows of others"
        if reason is None and not part.inputs[1].constant:
            reason = "a weight that is not constant"
        if reason is None and (is_dynamic(part) or any(s.op == "range" for s in part.epilogue)):
            reason = "a range that all rows have together"
    elif part.op in NORM_OPS:
        reason = template_for(part.op).reject(part, isa)
        if reason is None and part.integer("axis") != len(part.inputs[0].shape) - 1:
            reason = f"axis {part.attrs['axis']} of {part.inputs[0]}"
    else:
        reason = "not row by row"
    return reason


def _reject_sources(region: Region, number: int, sources: Sequence[Source]) -> str | None:
    """Why a part cannot read what it is given."""
    part, rows = region.parts[number], rows_of(region.parts[0])
    if rows_of(part) != rows:
        return f"{rows_of(part)} rows, not {rows}"
    for position, (source, tensor) in enumerate(zip(sources, tensors_of(part), strict=True)):
        if not source.part:
            given = region.inputs[source.number]
            if (given.dtype, given.size) != (tensor.dtype, tensor.size):
                return f"{given} where {tensor} is read"
            continue
        given = region.parts[source.number].output
        if 0 < position < len(part.inputs):
            return f"input {position} from another part"
        if (given.dtype, given.size, given.shape[-1:]) != (
            tensor.dtype,
            tensor.size,
            tensor.shape[-1:],
        ):
            return f"{given} where {tensor} is read"
    return None
