"""Configurations of a program's product that no record names: one for each kernel of vectors."""

from __future__ import annotations

import math

from microkernels.base.errors import ConfigError, IsaError
from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.product.best_grid import best_grid
from tir_schedules.product.matmul_config import MatmulConfig
from tir_schedules.product.tile_config import default_tile, tile_cycles

from .anchor import ProgramAnchor
from .tiling import tiling_of


def vector_configs(anchor: ProgramAnchor, machine: Machine) -> list[MatmulConfig]:
    """One configuration for each kernel, the fastest estimated first.

    Parameters
    ----------
    anchor : ProgramAnchor
        What is multiplied.
    machine : Machine
        For which CPU, and how many threads.

    Raises
    ------
    ConfigError
        If no kernel multiplies these types, or no tile fits.
    """
    try:
        kernels = kernels_for(machine.isa, *anchor.dtypes[:2])
    except IsaError as error:
        raise ConfigError(str(error)) from error
    found: list[tuple[float, MatmulConfig]] = []
    reasons: dict[str, None] = {}
    for kernel in kernels:
        if kernel.acc_dtype != anchor.dtypes[2]:
            reasons[f"{kernel.name} adds up {kernel.acc_dtype}, not {anchor.dtypes[2]}"] = None
            continue
        try:
            found.append(_config(anchor, machine, kernel))
        except ConfigError as error:
            reasons[str(error)] = None
    if not found:
        raise ConfigError("; ".join(reasons))
    return [config for _, config in sorted(found, key=lambda item: item[0])]


def _config(
    anchor: ProgramAnchor, machine: Machine, kernel: Microkernel
) -> tuple[float, MatmulConfig]:
    """A kernel's configuration, and the cycles of the equal tiles that a schedule makes of it."""
    m, n, k = anchor.m, anchor.n, anchor.k
    tile = default_tile(kernel, m, n, k, machine)
    grid = best_grid(tile, m, n, k, machine, 2.0 * anchor.products * m * n * k / kernel.kr)
    config = MatmulConfig(**tile, **grid)
    tiling = tiling_of(config, m, n, k, anchor.may_pad)
    sizes = ((m, tiling.rows), (n, tiling.columns), (k, kernel.kr))
    padded = [math.ceil(extent / size) * size for extent, size in sizes]
    equal = {**tile, "rows": tiling.rows, "vectors": tiling.columns // kernel.lanes}
    cycles = tile_cycles(ProductPlan.of(MatmulConfig(**equal), *padded), machine)
    if padded != [m, n, k]:  # copies of all three
        copied = 8 * (m * k + k * n + m * n)  # bytes that are read and written
        cycles += copied / machine.l2_rate * machine.cycles_per_us
    return cycles, config
