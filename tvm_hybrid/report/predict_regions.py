"""The matrix products of a region and its configuration, as the model of AMX takes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from microkernels.amx_tiles import AmxMicrokernel
from tir_schedules.amx_prediction import TilePart
from tir_schedules.batch_operands import BatchProblem
from tir_schedules.config import Config
from tir_schedules.epilogue import Epilogue
from tir_schedules.matmul_config import MatmulConfig, dimensions
from tir_schedules.mlp_chain_config import MlpChainConfig
from tir_schedules.region import Region
from tir_schedules.tile_config import TileConfig
from tir_schedules.zero_points import ZeroPoints, is_integer


def products_of(region: Region, config: Config) -> Iterable[tuple[Region, TileConfig, int]]:
    """(product, its configuration, blocks of rows that it is cut into) of a region."""
    if isinstance(config, MlpChainConfig):
        cut = config.row_blocks if config.mode == "rows" else 1
        for part, found in zip(region.parts, config.of_parts(region), strict=True):
            if isinstance(found, MatmulConfig):
                yield part, found, cut
    elif isinstance(config, TileConfig) and region.op in ("matmul", "batch_matmul"):
        yield region, config, 1


def sizes_of(
    part: Region, config: TileConfig, row_blocks: int, lanes: int
) -> tuple[tuple[int, int, int], int]:
    """Rows, columns and K of the busiest thread's part, and how many such products there are."""
    if part.op == "batch_matmul":
        problem = BatchProblem(part)
        shares = getattr(config, "row_shares", 1)
        return (math.ceil(problem.m / shares), problem.n, problem.k), problem.batches * shares
    assert isinstance(config, MatmulConfig)
    m, n, k = dimensions(part)
    columns = math.ceil(math.ceil(n / lanes) / config.threads_n) * lanes
    rows = math.ceil(m / row_blocks / config.threads_m)
    return (rows, min(n, columns), k), row_blocks


def tile_part(
    kernel: AmxMicrokernel,
    sizes: tuple[int, int, int],
    blocks: Mapping[str, int],
    started: bool,
    epilogue: int | None,
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
    whole = part.output.shape[-1] % kernel.lanes == 0
    plain = not part.epilogue and part.output.dtype == kernel.acc_dtype and whole
    return None if plain else Epilogue(part, ()).cost
