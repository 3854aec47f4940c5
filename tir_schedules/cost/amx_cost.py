"""When AMX tiles pay, and how to block for them: estimates that `explain` can show.

Cycles are those at the clock of vector code; while tiles multiply, the clock may be lower.

Tiles are slower when a product has few rows. A tile takes 16 cycles however many of its rows are
used, and few products then have to pay for the configuration and for storing results to memory.
Tiles gain little where the time is that of fetching the weight from far away.
"""

from __future__ import annotations

import math
from typing import TypedDict

from microkernels.amx.instructions import block_rows
from microkernels.amx.scoreboard import TILE_BYTES
from microkernels.amx.tile_shapes import LAYOUTS, ROW_BYTES, ROWS
from microkernels.kernels.amx_family import AmxMicrokernel
from microkernels.machines.machine import Machine
from tir_schedules.core.blocking import estimate_cycles
from tir_schedules.core.product_plan import ProductPlan

from .amx_prediction import DEPTH, TilePart, level_of, predict
from .work import product_rate

# Tiles have to be this much faster: the estimate cannot tell less, and they cost a thread's state.
LEAST_GAIN = 1.1
CONFIGURED = "so configured, although tiles are estimated faster"


class Blocks(TypedDict):
    """The fields of a `TileConfig` that the estimates choose."""

    rows: int
    vectors: int
    m_block: int
    k_block: int


def amx_cycles(plan: ProductPlan, machine: Machine, fetches: bool = False) -> float:
    """Estimated cycles of one thread for its part of a product on tiles.

    Parameters
    ----------
    plan : ProductPlan
        The thread's part.
    machine : Machine
        Whose caches hold the operands.
    fetches : bool
        As of `TilePart`.
    """
    cycles = predict(TilePart(plan=plan, fetches=fetches), machine).cycles
    return cycles * machine.cycles_per_us / machine.tile_core.clock


def vector_cycles(plan: ProductPlan, machine: Machine) -> float:
    """Estimated cycles of the same part on the vector units of a machine with AMX.

    `estimate_cycles`, but for the time to fetch the weight.
    """
    n_vectors, steps = plan.n_vectors, plan.steps
    part = (plan.m, n_vectors, steps, plan.rows, plan.vectors, plan.k_block)
    computing = estimate_cycles(*part, machine, product_rate(plan.kernel, machine))
    weight = ROW_BYTES * steps * n_vectors
    rates = {"L2": machine.l2_rate, "L3": machine.l3_rate(), "memory": machine.memory_rate()}
    rate = rates.get(level_of(weight, machine))
    fetching = weight / rate * machine.cycles_per_us if rate else 0.0
    least = max(computing, fetching)
    return least + computing / 1000  # decides where fetching is all that counts


def amx_blocks(
    kernel: AmxMicrokernel, m: int, n: int, k: int, machine: Machine, fetches: bool = False
) -> Blocks:
    """The blocking with the fewest estimated cycles; rows and vectors are the layout's.

    One load for a product is as much as L2 can feed only if half of them come from L1. So K is cut
    until a panel's piece fills two thirds of L1, where it stays while A passes: pieces of 1024
    bytes of K were the best of 512 to 3072 on Granite Rapids, by up to 15%. A block of rows is up
    to three quarters of L2: the weight passes from L3 once for each. Where K is cut, it may be so
    low that its sums fill a third of L1, where they rest from one piece to the next.

    Parameters
    ----------
    kernel : AmxMicrokernel
        Of a layout "2x2" or "1x4".
    m, n, k : int
        Rows, columns and elements of K.
    machine : Machine
        Its caches.
    fetches : bool
        As of `TilePart`.
    """
    n_vectors, steps = math.ceil(n / kernel.lanes), kernel.steps(k)
    rows, vectors = min(block_rows(kernel.layout), m), min(LAYOUTS[kernel.layout][1], n_vectors)
    tiles = machine.l1_bytes * 2 // 3 // (TILE_BYTES * vectors)
    # In pieces of equal size, as they will be.
    pieces = math.ceil(steps / (max(tiles, 1) * DEPTH))
    in_l1 = machine.l1_bytes // 3 // (ROW_BYTES * vectors)
    heights = {part // (4 * steps) for part in (machine.l2_bytes // 2, machine.l2_bytes * 3 // 4)}
    found: list[Blocks] = [
        {
            "rows": rows,
            "vectors": vectors,
            "m_block": max(rows, min(m, height)),
            "k_block": k_block,
        }
        for k_block in (steps, math.ceil(steps / DEPTH / pieces) * DEPTH)
        for height in sorted(heights | ({in_l1} if k_block < steps else set()))
    ]

    def cycles(blocks: Blocks) -> float:
        plan = ProductPlan(kernel=kernel, m=m, n=n, k=k, **blocks)
        return amx_cycles(plan, machine, fetches)

    return min(found, key=cycles)


def why_not_amx(
    m: int, tiles: float, vectors: float, kernel: str, k_bytes: int = ROW_BYTES
) -> str | None:
    """Why a product stays on a vector kernel, or None if it goes to tiles.

    Parameters
    ----------
    m : int
        Rows of a thread's part.
    tiles, vectors : float
        `amx_cycles` and `vector_cycles` of the best configuration of each.
    kernel : str
        The vector kernel's name.
    k_bytes : int
        Bytes of K.
    """
    gain = vectors / tiles
    if gain >= LEAST_GAIN:
        return None
    filled = m / (ROWS * math.ceil(m / ROWS))
    size = "1 row" if m == 1 else f"{m} rows"
    if k_bytes % ROW_BYTES:
        filled *= k_bytes / (ROW_BYTES * math.ceil(k_bytes / ROW_BYTES))
        fill = f"{size} and {k_bytes} bytes of K fill {filled:.0%}"
    else:
        fill = f"{size} {'fills' if m == 1 else 'fill'} {filled:.0%}"
    if gain < 1 / LEAST_GAIN:
        rest = f"{kernel} is estimated {1 / gain:.1f}x as fast"
    else:
        rest = f"they are estimated {gain:.2f}x as fast as {kernel}, {LEAST_GAIN}x is asked for"
    return f"{fill} of AMX tiles; {rest}"
