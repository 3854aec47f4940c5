"""Chooses the tiles of a schedule for one of our configurations.

A template can have smaller tiles at the edges; a schedule has tiles of one size. So the tile is the
largest one that divides the extent. If that tile is much smaller than the configuration's, the
extent is padded instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.sym import Analyzer

from microkernels.base.errors import ConfigError, IsaError
from microkernels.kernels.amx_tiles import AmxMicrokernel
from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for, microkernel_named
from tir_schedules.core.config import Config
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.generic.expressions import const_int, substitute
from tir_schedules.product.best_grid import best_grid
from tir_schedules.product.tile_config import MatmulConfig, default_tile, tile_cycles

from .workload import LAYOUT_FREE, anchor_block

Block = Any
_WEIGHT = 1  # the anchor's second input


@dataclass(frozen=True, kw_only=True)
class ProgramAnchor:
    """The only block of a program with a reduction.

    Attributes
    ----------
    block : SBlockRV
        The block.
    name : str
        Its name.
    leading : int
        Number of axes before rows and columns: batches, or images and their lines.
    m, n, k : int
        Rows, columns and depth; for a convolution: positions of a line, and output/input channels.
    products : int
        Number of products of this size: batches, or lines times taps.
    dtypes : tuple of str
        Types of the first input, the second input and the result.
    stride : int
        Positions between the windows of neighbouring rows; 1 for a product.
    padded : bool
        Whether another block writes an input of the anchor.
    constant : bool
        Whether the second input is a constant that may be packed beforehand.
    may_pad : tuple of bool
        Whether rows, columns and depth may be padded.
    """

    block: Block = None
    name: str = ""
    leading: int = 0
    m: int
    n: int
    k: int
    products: int = 1
    dtypes: tuple[str, str, str]
    stride: int = 1
    padded: bool = False
    constant: bool = False
    may_pad: tuple[bool, bool, bool] = (False, False, False)


def read_anchor(schedule: Schedule) -> ProgramAnchor:
    """The anchor of a program that `workload_of` wrote, or of a similar one.

    Raises
    ------
    ConfigError
        If it has no anchor or several, or the anchor is no product and no ungrouped convolution.
    """
    name = anchor_block(schedule)
    if name is None:
        raise ConfigError("not one block with a reduction")
    block = schedule.get_sblock(name)
    found = schedule.get(block)
    axes = list(found.iter_vars)
    spatial = [axis for axis in axes if axis.iter_type == tirx.IterVar.DataPar]
    reduction = [axis for axis in axes if axis.iter_type == tirx.IterVar.CommReduce]
    if len(spatial) < 2 or not reduction or axes != [*spatial, *reduction]:
        raise ConfigError(f"{len(spatial)} axes and {len(reduction)} reductions")
    if len(found.reads) != 2:
        raise ConfigError(f"a block that reads {len(found.reads)} tensors")
    m, n, k = (_extent(axis) for axis in (spatial[-2], spatial[-1], reduction[-1]))
    others = (*spatial[:-2], *reduction[:-1])
    einsum = len(reduction) == 1
    tensors = (found.reads[0], found.reads[1], found.writes[0])
    a, b, c = (str(region.source.ty.dtype) for region in tensors)
    function, weight = schedule.mod["main"], found.reads[_WEIGHT].source
    free = [int(index) for index in function.attrs.get(LAYOUT_FREE, ())]
    constant = any(function.params[index].same_as(weight) for index in free)
    may_pad = einsum, einsum, einsum
    if b == "bfloat16":
        # Padded copies do not survive TVM's lowering: its bfloat16 legalisation changes their type,
        # but not the type of what reads them as bits. The padding of a constant weight is safe, as
        # packing leaves the program before.
        may_pad = False, einsum and constant, False
    return ProgramAnchor(
        block=block,
        name=name,
        leading=len(spatial) - 2,
        m=m,
        n=n,
        k=k,
        products=math.prod(map(_extent, others)),
        dtypes=(a, b, c),
        stride=1 if einsum else _window_stride(found, spatial, reduction),
        padded=bool(schedule.get_producers(block)),
        constant=constant,
        may_pad=may_pad,
    )


def _extent(axis: tirx.IterVar) -> int:
    extent = const_int(axis.dom.extent)
    if extent is None:
        raise ConfigError(f"{axis.dom.extent} passes, known at run time only")
    return extent


def _window_stride(block: Any, spatial: list[tirx.IterVar], reduction: list[tirx.IterVar]) -> int:
    """Positions between the windows of neighbouring rows.

    Raises
    ------
    ConfigError
        If the anchor is no ungrouped convolution.
    """
    read = block.reads[0].region
    position, channel = (read[index].min for index in (-2, -1))
    at: dict[tirx.Var, Any] = {axis.var: tirx.const(0, axis.var.ty.dtype) for axis in reduction}
    at[spatial[-2].var] = tirx.const(1, spatial[-2].var.ty.dtype)
    stride = const_int(Analyzer().simplify(substitute(position, at)))
    if not stride:
        raise ConfigError("a block that is neither a product nor a convolution")
    if not Analyzer().can_prove_equal(channel, reduction[-1].var):
        raise ConfigError("groups of channels")
    return stride


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
        Row tiles in a block of rows; a block is finished before the next one begins.
    band : int
        Most lines of an image that are finished with one panel before the next panel begins.
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
        """Lines of a band: the largest divisor of `extent` up to `band`."""
        return max(lines for lines in range(1, self.band + 1) if extent % lines == 0)


def tiling_of(config: Config, m: int, n: int, k: int, may_pad: tuple[bool, bool, bool]) -> Tiling:
    """The tiles for a product of m rows, n columns and depth k.

    Parameters
    ----------
    config : Config
        A configuration with the fields `kernel`, `rows` and `vectors`; `m_block`, `k_block` and
        the thread counts are used if it has them.
    may_pad : tuple of bool
        Whether rows, columns and depth may be padded to multiples of the tile.

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
        raise ConfigError(f"{kernel.name} needs tile registers, which a schedule cannot configure")
    # A template's tile may be larger than the kernel's: see `wide_product`.
    rows = _tile(m, min(fields["rows"], kernel.mr, m), 1, may_pad[0])
    if rows == 1:  # the number of rows is prime; the whole may still fit into one tile
        rows = next((size for size in range(2, kernel.mr + 1) if m % size == 0), 1)
    columns = _tile(n, min(fields["vectors"], kernel.vectors), kernel.lanes, may_pad[1])
    if rows < 2 or columns < 2:
        # A loop of extent 1 is removed, so tensorize would not find it.
        raise ConfigError(f"tiles of {rows} rows and {columns} columns; tensorize needs 2 at least")
    if k % kernel.kr and not may_pad[2]:
        raise ConfigError(f"{k} steps, which {kernel.name} takes {kernel.kr} at a time")
    steps = math.ceil(k / kernel.kr)
    blocks = math.ceil(steps / fields.get("k_block", steps))
    depth = next(steps // count for count in range(blocks, steps + 1) if steps % count == 0)
    if 2 * depth < min(steps, fields.get("k_block", steps)):
        depth = steps  # no divisor is near the wanted block; one block is better than many
    threads = tuple(fields.get(f"threads_{axis}", 1) for axis in "mnxk")
    parallel = math.prod(threads) > 1 or bool(fields.get("parallel"))
    tiles = math.ceil(m / rows)
    block = max(1, min(fields.get("m_block", m), math.ceil(m / threads[0])) // rows)
    row_tiles = max(count for count in range(1, tiles + 1) if tiles % count == 0 and count <= block)
    band = fields.get("band", 1)
    return Tiling(kernel, rows, columns, depth * kernel.kr, row_tiles, band, parallel)


def _tile(extent: int, most: int, unit: int, may_pad: bool) -> int:
    """Size of equal tiles that cover an extent: a multiple of `unit`, at most `most` units."""
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
        The tensors to multiply.
    machine : Machine
        The CPU and the number of threads.

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
    """A kernel's configuration, and the estimated cycles with the equal tiles of a schedule."""
    m, n, k = anchor.m, anchor.n, anchor.k
    tile = default_tile(kernel, m, n, k, machine)
    grid = best_grid(tile, m, n, k, machine, 2.0 * anchor.products * m * n * k / kernel.kr)
    config = MatmulConfig(**tile, **grid)
    tiling = tiling_of(config, m, n, k, anchor.may_pad)
    sizes = ((m, tiling.rows), (n, tiling.columns), (k, kernel.kr))
    padded = [math.ceil(extent / size) * size for extent, size in sizes]
    equal = {**tile, "rows": tiling.rows, "vectors": tiling.columns // kernel.lanes}
    cycles = tile_cycles(ProductPlan.of(MatmulConfig(**equal), *padded), machine)
    if padded != [m, n, k]:  # pad_einsum copies all three tensors
        copied = 8 * (m * k + k * n + m * n)  # bytes that are read and written
        cycles += copied / machine.l2_rate * machine.cycles_per_us
    return cycles, config
