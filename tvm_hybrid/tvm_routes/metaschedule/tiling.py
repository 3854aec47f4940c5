"""Which tiles a schedule cuts a program into, for one of our configurations.

A template gives the tiles at the edges other sizes; a schedule has tiles of one size only. So the
tile is the largest that the extent is a multiple of and, if that is much smaller than the
configuration's, the extent is padded instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from microkernels.base.errors import ConfigError, IsaError
from microkernels.kernels.amx_tiles import AmxMicrokernel
from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for, microkernel_named
from tir_schedules.core.config import Config
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.product.best_grid import best_grid
from tir_schedules.product.matmul_config import MatmulConfig
from tir_schedules.product.tile_config import default_tile, tile_cycles

from .anchor import ProgramAnchor


@dataclass(frozen=True)
class Tiling:
    """Sizes of a schedule.

    Attributes
    ----------
    kernel : Microkernel
        The tile's code.
    rows, columns, k : int
        Extents of one tile.
    row_tiles : int
        Row tiles of a block of rows that is finished before the next one is begun.
    band : int
        Most lines of an image that are finished, for one panel, before the next panel is begun.
    parallel : bool
        Whether blocks are shared among threads.
    """

    kernel: Microkernel
    rows: int
    columns: int
    k: int
    row_tiles: int
    band: int
    parallel: bool

    def lines_of(self, extent: int) -> int:
        """Lines of a band: as many as `band` that an image of so many is made of."""
        return max(lines for lines in range(1, self.band + 1) if extent % lines == 0)


def tiling_of(config: Config, m: int, n: int, k: int, may_pad: tuple[bool, bool, bool]) -> Tiling:
    """The tiles for a product of so many rows, columns and steps.

    Parameters
    ----------
    config : Config
        With the fields `kernel`, `rows` and `vectors`; with `m_block`, `k_block` and those of
        threads if it has them.
    may_pad : tuple of bool
        Whether rows, columns, steps may be padded to multiples of the tile.

    Raises
    ------
    ConfigError
        If no tile fits.
    """
    fields = config.to_dict()
    if not {"kernel", "rows", "vectors"} <= fields.keys():
        raise ConfigError(f"a {type(config).__name__} has no register tile")
    kernel = microkernel_named(fields["kernel"])
    if isinstance(kernel, AmxMicrokernel):
        raise ConfigError(f"{kernel.name} keeps its tiles in registers that no schedule configures")
    # A template may multiply by larger tiles than the kernel's: `wide_product`.
    rows = _tile(m, min(fields["rows"], kernel.mr, m), 1, may_pad[0])
    if rows == 1:  # a prime number of rows, perhaps of no more than the kernel has
        rows = next((size for size in range(2, kernel.mr + 1) if m % size == 0), 1)
    columns = _tile(n, min(fields["vectors"], kernel.vectors), kernel.lanes, may_pad[1])
    if rows < 2 or columns < 2:
        # A loop of extent 1 vanishes, and tensorize does not find it.
        raise ConfigError(f"tiles of {rows} rows and {columns} columns; tensorize needs 2 at least")
    if k % kernel.kr and not may_pad[2]:
        raise ConfigError(f"{k} steps, which {kernel.name} takes {kernel.kr} at a time")
    steps = math.ceil(k / kernel.kr)
    blocks = math.ceil(steps / fields.get("k_block", steps))
    depth = next(steps // count for count in range(blocks, steps + 1) if steps % count == 0)
    if 2 * depth < min(steps, fields.get("k_block", steps)):
        depth = steps  # no count of blocks is near; one is better than many
    threads = tuple(fields.get(f"threads_{axis}", 1) for axis in "mnxk")
    parallel = math.prod(threads) > 1 or bool(fields.get("parallel"))
    tiles = math.ceil(m / rows)
    block = max(1, min(fields.get("m_block", m), math.ceil(m / threads[0])) // rows)
    row_tiles = max(count for count in range(1, tiles + 1) if tiles % count == 0 and count <= block)
    band = fields.get("band", 1)
    return Tiling(kernel, rows, columns, depth * kernel.kr, row_tiles, band, parallel)


def _tile(extent: int, most: int, unit: int, may_pad: bool) -> int:
    """Size of equal tiles, `most` units at most, that cover an extent."""
    exact = [count for count in range(1, most + 1) if extent % (count * unit) == 0]
    if exact and (not may_pad or 2 * exact[-1] > most):
        return exact[-1] * unit
    if not may_pad:
        raise ConfigError(f"{extent} is not a multiple of {unit}, and cannot be padded")
    units = math.ceil(extent / unit)
    return math.ceil(units / math.ceil(units / most)) * unit


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
