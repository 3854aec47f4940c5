"""The matrix products of a region, as the model of AMX takes them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from microkernels.kernels.amx_family import AmxMicrokernel
from tir_schedules.core.region import Region
from tir_schedules.cost.amx_prediction import TilePart
from tir_schedules.epilogue.epilogue import Epilogue
from tir_schedules.product.tile_stores import stores_in_place
from tir_schedules.product.zero_points import ZeroPoints, is_integer


def tile_part(
    kernel: AmxMicrokernel,
    sizes: tuple[int, int, int],
    blocks: Mapping[str, int],
    started: bool,
    epilogue: int | None,
    fetches: bool = False,
) -> TilePart:
    """A product of so many rows, columns and K as the model takes it."""
    m, n, k = sizes
    return TilePart(
        layout=kernel.layout,
        m=m,
        n_vectors=math.ceil(n / kernel.lanes),
        steps=kernel.steps(k),
        started=started,
        epilogue=epilogue,
        fetches=fetches,
        rows=blocks["rows"],
        vectors=blocks["vectors"],
        m_block=blocks["m_block"],
        k_block=blocks["k_block"],
    )


def starts_loaded(part: Region, kernel: AmxMicrokernel) -> bool:
    """Whether zero points make the accumulators start with something other than zero."""
    if not is_integer(part):
        return False
    zero_points = ZeroPoints.of(part, kernel)
    return zero_points.needs_column_sums or zero_points.needs_row_sums


def operations_of(part: Region, kernel: AmxMicrokernel) -> int | None:
    """Operations on every vector of results; None if the tiles are stored in their place."""
    return None if stores_in_place(part, kernel) else Epilogue(part, ()).cost
