"""What the model of AMX takes of a product besides how it is cut."""

from __future__ import annotations

from microkernels.kernels.amx_family import AmxMicrokernel
from tir_schedules.core.integer_product import is_integer
from tir_schedules.core.region import Region
from tir_schedules.epilogue.epilogue import Epilogue
from tir_schedules.product.tile_stores import stores_in_place
from tir_schedules.product.zero_points import ZeroPoints


def starts_loaded(part: Region, kernel: AmxMicrokernel, attention: bool = False) -> bool:
    """Whether zero points make the accumulators start with something other than zero.

    What differs by row is added when results are stored, unless tiles are stored as they are, or
    the product is one of an attention.
    """
    if not is_integer(part):
        return False
    zero_points = ZeroPoints.of(part, kernel)
    if zero_points.needs_row_sums:
        return attention or stores_in_place(part, kernel)
    return zero_points.needs_column_sums


def operations_of(part: Region, kernel: AmxMicrokernel) -> int | None:
    """Operations on every vector of results; None if the tiles are stored in their place."""
    return None if stores_in_place(part, kernel) else Epilogue(part, ()).cost
