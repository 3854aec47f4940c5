"""The tile for a product whose operands are widened to types that another kernel multiplies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel
from tir_schedules.core.size import is_open

from .tile_config import default_tile
from .wide_product import float_tiles, wide_product

# A panel is widened for each block of rows. Blocks of 200 rows that pass from L3 took 3% to 20%
# less time than those in L2 (Zen 3, K from 512 to 4096).
WIDE_ROWS, WIDE_BYTES = 256, 4 << 20
# So many tiles do not cut K: LLVM would keep their sums in registers from one block to the next.
FEW_TILES = 8
# Accumulators of a tile: with 28, whose steps have two parts, it is 2.5 times as slow (AVX-512).
MOST_SUMS = 24


def default_wide_tile(
    kernel: Microkernel, m: int, sample: int, n: int, k: int, machine: Machine
) -> dict[str, Any] | None:
    """As `default_tile`; None if operands are not widened.

    Parameters
    ----------
    kernel : Microkernel
        That the weight is packed for.
    m, sample : int
        Rows, and a sample of them if their number is open.
    n, k : int
        Columns, and elements of K.
    """
    wide = wide_product(kernel, m, 1, 1)
    if wide is None:
        return None
    highest = kernel if wide.dtype == "int16" else _highest(float_tiles(kernel))
    tile = default_tile(highest, sample, n, k, machine, fetches=True)
    block = min(WIDE_ROWS, WIDE_BYTES // (4 * highest.steps(k)))
    rows = max(tile["m_block"], block if is_open((m,)) else min(m, block))
    steps, k_blocks = kernel.steps(k), 1
    if sample > FEW_TILES * tile["rows"]:
        step_bytes = 4 * wide.parts * tile["vectors"] * kernel.lanes
        k_blocks = math.ceil(steps * step_bytes / (machine.l2_bytes // 2))
    k_block = math.ceil(steps / k_blocks)
    return {**tile, "kernel": kernel.name, "m_block": rows, "k_block": k_block}


def _highest(tiles: Sequence[Microkernel]) -> Microkernel:
    fitting = [tile for tile in tiles if tile.mr * tile.vectors <= MOST_SUMS]
    return max(fitting, key=lambda tile: tile.mr)
