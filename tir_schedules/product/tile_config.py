"""How the tiles and blocks of all GEMM-like templates are chosen and checked; matmul regions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.errors import ConfigError
from microkernels.isa import Isa, isa_named
from microkernels.kernels.amx_tiles import AmxMicrokernel
from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for, microkernel_named, tile_kernels_for
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core.blocking import Box, balanced, estimate_cycles
from tir_schedules.core.config import check_numbers
from tir_schedules.core.product_plan import ProductPlan, TileConfig, product_types
from tir_schedules.core.region import Region
from tir_schedules.cost import amx_cost, cost
from tir_schedules.epilogue.epilogue import rows_and_columns

from .few_rows import static_streams
from .staged_panels import WideProduct, wide_product

RESULT_DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
# Types that the kernel multiplies, by the type of the weight or of the second operand.
KERNEL_TYPES = {
    "float32": ("float32", "float32"),
    "bfloat16": ("bfloat16", "bfloat16"),
    "float16": ("float16", "float16"),
    "int8": ("uint8", "int8"),
    "uint8": ("uint8", "int8"),
}


def product_kernels(isa: Isa, a_dtype: str, b_dtype: str) -> tuple[Microkernel, ...]:
    """The kernels for operands of these types: vector kernels, then AMX tiles.

    Only tiles multiply float16; without them, such products are written in f32.

    Parameters
    ----------
    a_dtype, b_dtype : str
        "float32", "bfloat16", "float16", "int8" or "uint8", as the product is defined; a f32 A is
        rounded to a bfloat16 or float16 B.
    """
    vector = () if b_dtype == "float16" else kernels_for(isa, *KERNEL_TYPES[b_dtype])
    exact = (a_dtype if b_dtype in ("int8", "uint8") else b_dtype, b_dtype)
    return (*vector, *tile_kernels_for(isa, *exact))


def region_kernels(region: Region, isa: Isa) -> tuple[Microkernel, ...]:
    """The kernels for the operands of a region with one product."""
    return product_kernels(isa, *product_types(region))


# Rows of a block where the time to read the weight shows (measured on Granite Rapids: 128x3072x768
# takes 10% less time than with 85 rows, 128x4096x1024 8%).
READING_ROWS = 512
# Least tiles of a block, even if the block exceeds L2, as they share one reading of the weight:
# 128x3072x768 takes a sixth more time with two tiles (Emerald Rapids held to AVX2, blocks for an L2
# of 256 KB).
READING_TILES = 4
NEAR_STEPS = 32  # least K for `rows_near`: less was not measured
# The least height of a tile for a dynamic number of rows. 4 to 16 rows take 10% to 25% longer with
# tiles of 6x64 than of 8x48 (Zen 5, AVX-512), as they are cut into low tiles of few accumulators.
DYNAMIC_HEIGHT = 8
MOVES = 3  # transfers of a line of results: read to be written, written back, and an operand's line
C = TypeVar("C", bound=Any)  # a configuration that names one microkernel
Fields = dict[str, Any]
"""Fields of a TileConfig, by name."""


def worth_trying(kernels: Iterable[Microkernel], m: int) -> list[Microkernel]:
    """The kernels without AMX tiles lower than `m` allows: those load more for each product."""
    kernels = list(kernels)
    highest = max(kernel.mr for kernel in kernels)
    return [kernel for kernel in kernels if not kernel.by_tiles or kernel.mr >= min(m, highest)]


def default_tile(
    kernel: Microkernel, m: int, n: int, k: int, machine: Machine, fetches: bool = False
) -> Fields:
    """The tile and blocks for a product, as fields of a TileConfig.

    Half of L2 is for a block of rows of A, three eighths for the part of a panel in use. If tiles
    wait for a weight from L3 for more than an eighth of a block's time, a block has up to
    `READING_ROWS` rows, although these rows then come from L3, too; the panel gets an eighth of L2.
    A block has at least `READING_TILES` tiles.
    `k` counts elements; a step of K is kr elements, about four bytes of every type. `fetches` says
    whether the template prefetches panels.
    """
    if isinstance(kernel, AmxMicrokernel):
        return {"kernel": kernel.name, **amx_cost.amx_blocks(kernel, m, n, k, machine, fetches)}
    steps = kernel.steps(k)
    vectors = min(kernel.vectors, math.ceil(n / kernel.lanes))
    rows = min(kernel.mr, m)
    step_bytes = 4 * vectors * kernel.lanes
    step_us = rows * vectors / cost.product_rate(kernel, machine) / machine.cycles_per_us
    in_half = machine.l2_bytes // 2 // (4 * steps)
    far = step_bytes * steps * n / (vectors * kernel.lanes) > machine.l2_bytes
    reading_us = step_bytes / machine.l3_rate()
    waits = far and reading_us > step_us and 8 * reading_us > step_us * in_half / rows
    m_block = min(m, READING_ROWS if waits else max(in_half, READING_TILES * rows))
    passes = waits and m_block > in_half
    panel_bytes = machine.l2_bytes // 8 if passes else machine.l2_bytes * 3 // 8
    k_blocks = math.ceil(steps * step_bytes / panel_bytes) if m > rows else 1
    tile = {"kernel": kernel.name, "rows": rows, "vectors": vectors}
    return {**tile, "m_block": m_block, "k_block": math.ceil(steps / k_blocks)}


def rows_near(kernel: Microkernel, m: int, n: int, k: int, machine: Machine) -> int:
    """Most rows of a block whose results stay in L2; all if moving results takes little time.

    Every panel writes a few columns of each row. If moving a row of results from L3 and back takes
    more than a quarter of its products' time, half of L2 has to hold a block's rows of A, of the
    results and of an equally large operand. Measured on Emerald Rapids, in ResNet-50: 3136x64 by
    64x256 with such an operand takes 0.81 instead of 1.00 ms, without it 0.64 instead of 0.70 ms.
    """
    beyond = 4 * m * n > machine.l2_bytes and n > kernel.nr and k >= NEAR_STEPS
    if kernel.b_dtype != "float32" or not beyond:
        return m
    vector_us = MOVES * 4 * kernel.lanes / machine.l3_rate()
    products_us = k / cost.product_rate(kernel, machine) / machine.cycles_per_us
    if 4 * vector_us <= products_us:
        return m
    return max(kernel.mr, machine.l2_bytes // 2 // (4 * (k + 2 * n)))


def neighbouring_tiles(tile: Fields, m: int, k: int) -> Iterator[Fields]:
    """The tile with other legal sizes: lower, narrower, blocks halved or whole."""
    kernel = microkernel_named(tile["kernel"])
    k = kernel.steps(k)
    lower = max(1, tile["rows"] - 1) if not kernel.by_tiles else min(tile["rows"], 16)
    for rows in {tile["rows"], lower, min(kernel.mr, m)}:
        for vectors in {tile["vectors"], max(1, tile["vectors"] - 1)}:
            for m_block in {tile["m_block"], max(rows, tile["m_block"] // 2), m}:
                for k_block in {tile["k_block"], math.ceil(tile["k_block"] / 2), k}:
                    yield dict(tile, rows=rows, vectors=vectors, m_block=m_block, k_block=k_block)


def tile_cycles(plan: ProductPlan, machine: Machine, fetches: bool = False) -> float:
    """Estimated cycles for one thread's part of a product.

    `fetches` says whether panels are prefetched; only such panels are read in several streams.
    """
    if plan.kernel.by_tiles:
        return amx_cost.amx_cycles(plan, machine, fetches)
    if machine.isa.includes(isa_named("amx")):
        return amx_cost.vector_cycles(plan, machine)
    vectors = plan.vectors
    if fetches:
        vectors *= static_streams(plan, plan.m, vectors, plan.n_vectors // vectors)[0]
    part = (plan.m, plan.n_vectors, plan.steps, plan.rows, vectors, plan.k_block)
    return estimate_cycles(*part, machine, cost.product_rate(plan.kernel, machine))


def sum_cycles(plan: ProductPlan, machine: Machine) -> float:
    """Estimated cycles to write a thread's partial sums and to add up those of all threads."""
    shares = sum(group.count for group in plan.k_shares)
    if shares == 1:
        return 0.0
    part = plan.busiest
    us = sums_us(part.m * part.n_vectors * part.kernel.lanes, shares, machine)
    return us * machine.cycles_per_us


def sums_us(results: float, threads_k: int, machine: Machine) -> float:
    """Microseconds to write partial sums of some results and to add up those of `threads_k`."""
    return 4.0 * results * (1 / machine.l2_rate + (threads_k - 1) / machine.foreign_rate)


def fewest_cycles(candidates: Iterable[C], cycles: Callable[[C], float]) -> C:
    """The configuration with the fewest estimated cycles; AMX tiles have to win by a margin."""

    def handicapped(config: C) -> float:
        by_tiles = microkernel_named(config.kernel).by_tiles
        return cycles(config) * (amx_cost.LEAST_GAIN if by_tiles else 1)

    return min(candidates, key=handicapped)


def check_tile(
    region: Region,
    config: TileConfig,
    isa: Isa,
    types: tuple[str, str] | None,
    *positive: str,
    wide: WideProduct | None = None,
) -> Microkernel:
    """The microkernel of a legal configuration.

    Parameters
    ----------
    types : tuple of str or None
        Types that the product multiplies, see `product_kernels`; None to accept any kernel.
    positive : str
        Further fields that have to be at least 1.
    wide : WideProduct or None
        What multiplies in place of the kernel; its tiles may be larger.

    Raises
    ------
    ConfigError
        If a field is out of range.
    """
    kernel = microkernel_named(config.kernel)
    limits = dict.fromkeys(("m_block", "k_block", *positive))
    tile = kernel if wide is None else wide.kernel
    check_numbers(region, config, {"rows": tile.mr, "vectors": tile.vectors, **limits})
    check_kernel(region, kernel, isa, types)
    return kernel


def check_kernel(
    region: Region, kernel: Microkernel, isa: Isa, types: tuple[str, str] | None
) -> None:
    """Raises ConfigError if the target lacks the kernel or it does not multiply `types`."""
    if not isa.includes(kernel.isa):
        raise ConfigError(f"{kernel.name} needs {kernel.isa.name}; the target has {isa.name}")
    multiplied = kernel.a_dtype, kernel.b_dtype
    if types is not None and multiplied not in (KERNEL_TYPES.get(types[1]), types):
        raise ConfigError(
            f"{kernel.name} multiplies {' by '.join(multiplied)}, not {' by '.join(types)}; choose "
            f"another kernel for {region.key}"
        )


PIECES = (1, 2, 4, 8, 16)
"""Numbers of row blocks to try; each block is a pass over the weight."""
K_PIECES = (1, 2, 4, 8)
"""Numbers of blocks of K to try; each block loads and stores the accumulators."""


def register_tiles(
    kernels: Sequence[Microkernel], m: int, n_vectors: int
) -> Iterator[tuple[Microkernel, int, int]]:
    """Every (kernel, rows, vectors) that cuts the rows or the columns into other pieces.

    Vector kernels differ only in their largest tile: each tile comes with the smallest kernel that
    it fits into.
    """
    vector = sorted((k for k in kernels if not k.by_tiles), key=lambda k: (k.mr * k.vectors, k.mr))
    most_rows = max((kernel.mr for kernel in vector), default=0)
    most_vectors = max((kernel.vectors for kernel in vector), default=0)
    for rows in cuts(m, most_rows):
        for vectors in cuts(n_vectors, most_vectors):
            fitting = (k for k in vector if rows <= k.mr and vectors <= k.vectors)
            kernel = next(fitting, None)
            if kernel is not None:
                yield kernel, rows, vectors


def cuts(total: int, most: int) -> list[int]:
    """The sizes up to `most` that cut `total` into different numbers of pieces."""
    return sorted({balanced(total, size)[0].size for size in range(1, min(total, most) + 1)})


def tiles_and_blocks(
    kernels: Sequence[Microkernel], m: int, n_vectors: int, k: int, bases: Sequence[Fields]
) -> Iterator[Fields]:
    """Fields of TileConfigs: every register tile with blocks of rows and of K of several sizes.

    Parameters
    ----------
    kernels : sequence of Microkernel
        The kernels for the operands.
    m, n_vectors, k : int
        Rows, vectors of columns, elements of K.
    bases : sequence of dict
        The default tile of each kernel. AMX tiles come with the neighbours of their default only:
        their blocks follow from the tile registers.
    """
    by_name = {kernel.name: kernel for kernel in kernels}
    m_blocks = {math.ceil(m / pieces) for pieces in PIECES}
    for base in bases:
        kernel = by_name[base["kernel"]]
        if kernel.by_tiles:
            yield from neighbouring_tiles(base, m, k)
        else:
            m_blocks.add(base["m_block"])
    for kernel, rows, vectors in register_tiles(kernels, m, n_vectors):
        steps = kernel.steps(k)
        k_blocks = {math.ceil(steps / pieces) for pieces in K_PIECES}
        k_blocks |= {base["k_block"] for base in bases if not by_name[base["kernel"]].by_tiles}
        tile = {"kernel": kernel.name, "rows": rows, "vectors": vectors}
        for m_block in m_blocks:
            for k_block in k_blocks:
                if m_block >= rows:
                    yield {**tile, "m_block": m_block, "k_block": k_block}


# What a matmul region is, and the numbers that make its template concrete.


# Types of A by the type of the weight; A is converted while it is read.
ACTIVATION_DTYPES = {
    "float32": (*RESULT_DTYPES, "bool"),
    "bfloat16": ("bfloat16", "float32"),
    "float16": ("float16", "float32"),
    "int8": ("uint8", "int8", "float32"),
    "uint8": ("uint8", "int8", "float32"),
}


class MatmulConfig(TileConfig, frozen=True, kw_only=True):
    """Numbers that make the template concrete.

    Attributes
    ----------
    threads_m, threads_n : int
        Threads along rows and along columns.
    threads_k : int
        Threads along K, whose sums are added up at the end.
    whole_rows : int
        Up to this dynamic number of rows, the threads along rows divide panels of columns instead.
    alone_rows : int
        Up to this dynamic number of rows, one thread multiplies all rows.
    """

    threads_m: int = 1
    threads_n: int = 1
    threads_k: int = 1
    whole_rows: int = 0
    alone_rows: int = 0

    @property
    def grid(self) -> Box:
        """Threads along rows, columns and K."""
        return self.threads_m, self.threads_n, self.threads_k

    @property
    def threads(self) -> int:
        """Threads of the grid."""
        return math.prod(self.grid)

    def plan(self, m: int, n: int, k: int, k_align: int = 1) -> ProductPlan:
        """How the configuration cuts a product."""
        return ProductPlan.of(self, m, n, k, k_align=k_align, **on_grid(self.grid))


def on_grid(grid: Box) -> Fields:
    """The fields of a MatmulConfig for threads along rows, columns and K."""
    return dict(zip(("threads_m", "threads_n", "threads_k"), grid, strict=True))


def dimensions(region: Region) -> tuple[int, int, int]:
    """(M, N, K) of a matmul region."""
    *steps, n = region.inputs[1].shape
    window = window_of(region)
    m = rows_and_columns(region.inputs[0])[0] if window is None else window.batch * window.count
    return m, n, math.prod(steps)


def plan_of(region: Region, config: MatmulConfig) -> ProductPlan:
    """How a configuration cuts a matmul region."""
    return config.plan(*dimensions(region))


def check(region: Region, config: MatmulConfig, isa: Isa) -> Microkernel:
    """The microkernel of a legal configuration; ConfigError for an illegal one."""
    threads = "threads_m", "threads_n", "threads_k"
    m, _, k = dimensions(region)
    wide = wide_product(microkernel_named(config.kernel), m, config.rows, config.vectors)
    kernel = check_tile(region, config, isa, product_types(region), *threads, wide=wide)
    if config.threads_k > 1 and not shares_k(kernel, k):
        raise ConfigError(f"threads_k={config.threads_k}: {region.key} has an incomplete tile of K")
    return kernel


def shares_k(kernel: Microkernel, k: int) -> bool:
    """Whether threads may divide K: not if the last AMX tile, which has its own code, is cut."""
    return not kernel.by_tiles or k % (kernel.kr * kernel.depth) == 0


# Rows of a product that are overlapping windows of memory: one-axis convolution, channels last.
#
#     Y[n, t, o] = sum over (tap, c) of X[n, t * stride + tap, c] * W[tap, c, o]
#
# The window of one t is contiguous in X: taps * C elements, beginning at (t * stride) * C. So this
# is a product with K = taps * C. Its rows begin stride * C elements apart and overlap. Nothing is
# copied.


class Window:
    """The geometry of a region with windows."""

    def __init__(self, region: Region) -> None:
        self.batch, length, self.channels = region.inputs[0].shape
        # Positions of a window, and from one window to the next.
        self.taps, self.stride = region.integer("window"), region.integer("stride")
        # Windows of one sample; elements from the start of one row to the start of the next.
        self.count = (length - self.taps) // self.stride + 1
        self.pitch = self.stride * self.channels

    def element(self, row: Expr, step: Index) -> list[Expr]:
        """Indices of X for a flat row of the product and a step of K; they flatten to a sum."""
        sample, start = tirx.const(0, "int32"), row
        if self.batch > 1:
            sample, start = I.floordiv(row, self.count), I.floormod(row, self.count)
        position = start * self.stride + I.floordiv(step, self.channels)
        return [sample, position, I.floormod(step, self.channels)]

    def product(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """The result by numpy, in the type of the arrays."""
        last = self.stride * (self.count - 1) + 1
        taps = (x[:, tap : tap + last : self.stride] @ w[tap] for tap in range(self.taps))
        return np.asarray(sum(taps))


def window_of(region: Region) -> Window | None:
    """The windows of a matmul region; None if its rows are rows of a matrix."""
    return Window(region) if "window" in region.attrs else None
