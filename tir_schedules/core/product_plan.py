"""ProductPlan: how one product A[m, k] B[k, n] is cut; all users of the cuts agree on it.

    loops            blocks of rows, panels of columns, blocks of K, register tiles
    packing of B     panels that no two threads share
    loop nests       the loops as numbers, for tuning
    predictions      tiles and tails of the busiest thread's part

Pieces of one loop differ by at most one (`balanced`); only tile registers have a tail of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import DataType

from microkernels.base.arrays import RANGES
from microkernels.microkernel import Microkernel
from microkernels.registry import microkernel_named
from microkernels.vector.expressions import Index

from .blocking import Group, Panels, balanced, cut_in_units, panel_widths, shares, shares_of_units
from .config import Config
from .region import Region

# The most panels that are prefetched. With few rows a panel is finished before the next one has
# arrived from L3 or memory. Prefetching made whole models of 32 rows 1% to 9% faster (Zen 4). Each
# prefetch needs PRODUCTS_PER_FETCH products to hide it: with a single row, where memory is the
# limit, prefetching was 20% slower.
PANELS_AHEAD, PRODUCTS_PER_FETCH = 2, 8
# For a weight of more bytes, the tiles of a panel share the prefetches of the next panel, for any
# number of rows: the weight leaves the second-level cache between two blocks of rows. A prefetch
# needs PRODUCTS_PER_SHARE products.
FAR_WEIGHT, PRODUCTS_PER_SHARE = 256 << 10, 4
# Rows of a tile that has time to prefetch, with AVX-512.
FETCHING_ROWS = 4
# Most tiles of a panel of 8-bit integers that share the prefetches: with more tiles there is time
# enough, and one more instruction a step would cost a twentieth.
MOST_SHARES = 10
# Bytes of A that stay in L1 from one panel to the next; CPUs with tiles have 48 KB.
STAYS = 32 << 10
Piece = tuple[Index, int]  # first step of K and number of steps


class TileConfig(Config, frozen=True, kw_only=True):
    """Base of the configurations of GEMM-like templates.

    Attributes
    ----------
    kernel : str
        The microkernel.
    rows : int
        Most rows of a register tile.
    vectors : int
        Most vectors of columns of a register tile; with the kernel's lanes, the panel's width.
    m_block : int
        Rows that are finished before the next ones are begun; bounds the part of A in cache.
    k_block : int
        Steps of K (kr elements each) between two visits of the accumulators; bounds the part of a
        panel in cache.
    """

    kernel: str
    rows: int
    vectors: int
    m_block: int
    k_block: int


@dataclass(frozen=True, kw_only=True)
class ProductPlan:
    """The cuts of one product.

    Attributes
    ----------
    kernel : Microkernel
        The register tile.
    m, n, k : int
        Rows, columns, and elements of a run of K.
    rows, vectors : int
        Most rows and vectors of a tile.
    m_block, k_block : int
        Most rows and steps of K of a block.
    threads_m, threads_n : int
        Threads along rows and columns; no more than there are rows or vectors are used.
    threads_k : int
        Threads along a single run of K, whose sums are added in the end; no more than it has units
        are used.
    runs : int
        Runs of K, each padded to whole steps.
    k_align : int
        Every block of K begins at a multiple of this number of steps.
    """

    kernel: Microkernel
    m: int
    n: int
    k: int
    rows: int
    vectors: int
    m_block: int
    k_block: int
    threads_m: int = 1
    threads_n: int = 1
    threads_k: int = 1
    runs: int = 1
    k_align: int = 1

    @staticmethod
    def of(config: TileConfig, m: int, n: int, k: int, **fields: int) -> ProductPlan:
        """The plan of a configuration; `fields` sets further ones."""
        for name in ("rows", "vectors", "m_block", "k_block"):
            fields[name] = getattr(config, name)
        return ProductPlan(kernel=microkernel_named(config.kernel), m=m, n=n, k=k, **fields)

    @property
    def fetches_evenly(self) -> bool:
        """Whether the tiles of a panel share the prefetches of the next panel.

        On AVX2 this is up to 1.5 times as fast, for all types, if the weight is in memory (Zen 3,
        8x512x2048 of 8-bit integers: 194 instead of 303 us). With AVX-512 it is faster for floats,
        from four rows on, if the weight is in L3 (Emerald Rapids, 128x768x3072 of f32: 3.4 instead
        of 4.4 ms); 8-bit integers are as fast either way, one or two rows are slower by 4% to 9%.
        """
        kernel = self.kernel
        step_bytes = kernel.lanes * kernel.kr * int(DataType(kernel.b_dtype).itemsize)
        if step_bytes * self.steps * self.n_vectors <= FAR_WEIGHT:
            return False
        floats = kernel.isa_name == "avx512" and kernel.b_dtype != "int8"
        return kernel.isa_name == "avx2" or (floats and self.rows >= FETCHING_ROWS)

    @property
    def most_shares(self) -> int:
        """Most tiles of a panel that share prefetches, if `fetches_evenly`; 0: no limit."""
        return MOST_SHARES if self.kernel.b_dtype == "int8" else 0

    @property
    def steps(self) -> int:
        """Steps of K, of kr elements each, as the operands are padded."""
        return self.runs * self.kernel.steps(self.k)

    @property
    def n_vectors(self) -> int:
        """Vectors of columns."""
        return math.ceil(self.n / self.kernel.lanes)

    @property
    def panels(self) -> Panels:
        """The layout of packed B."""
        widths = tuple(panel_widths(self.n_vectors, self.threads_n, self.vectors))
        return Panels(self.kernel, self.k, self.n, widths, self.runs)

    @property
    def row_shares(self) -> tuple[Group, ...]:
        """Rows of every thread along the rows."""
        return shares(self.m, min(self.threads_m, self.m))

    @property
    def column_shares(self) -> tuple[Group, ...]:
        """Vectors of columns of every thread along the columns."""
        return shares(self.n_vectors, min(self.threads_n, self.n_vectors))

    @property
    def k_unit(self) -> int:
        """Steps of K that are never cut."""
        return math.lcm(self.k_align, self.kernel.depth)

    @property
    def k_shares(self) -> tuple[Group, ...]:
        """Steps of K of every thread along K; the last unit may be smaller."""
        return shares_of_units(self.steps, self.threads_k, self.k_unit)

    @property
    def busiest(self) -> ProductPlan:
        """The part of the thread with the most rows and columns."""
        columns = math.ceil(self.n_vectors / self.threads_n) * self.kernel.lanes
        m, n = math.ceil(self.m / self.threads_m), min(self.n, columns)
        k = min(self.k, self.k_shares[0].size * self.kernel.kr) if self.runs == 1 else self.k
        return replace(self, m=m, n=n, k=k, threads_m=1, threads_n=1, threads_k=1)

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """The blocks of K."""
        return self.pieces_of(self.steps)

    @property
    def longest_piece(self) -> int:
        """Steps of the longest block of K of any thread."""
        return max(size for share in self.k_shares for _, size in self.pieces_of(share.size))

    def pieces_of(self, steps: int) -> list[tuple[int, int]]:
        """The blocks of `steps` steps of K."""
        groups = self.piece_groups(steps)
        return [(g.start + i * g.size, g.size) for g in groups for i in range(g.count)]

    def piece_groups(self, steps: int) -> Sequence[Group]:
        """`pieces_of`, with blocks of one size in one group."""
        return shares_of_units(steps, math.ceil(steps / self.k_block), self.k_unit)

    def passing(self, rows: int, steps: int) -> str:
        """The operand, "A", "B" or "", whose AMX tiles have left L1 before they are loaded again.

        Parameters
        ----------
        rows, steps : int
            Size of a block of rows and of a piece of K.
        """
        if rows <= self.rows:
            return "B"
        return "" if 4 * rows * steps <= STAYS else "A"

    def bands(self, rows: int) -> list[tuple[int, tuple[Group, ...]]]:
        """Rows as (tile height, blocks): tiles are configured for a height; tails come last."""
        if not self.kernel.by_tiles:
            return [(min(self.rows, rows), balanced(rows, self.m_block))]
        pieces = cut_in_units(rows, self.m_block, self.rows)
        count = len(pieces) - (rows % self.rows > 0)
        found = [(self.rows, pieces[:count])] if count else []
        return found + [(piece.size, (piece,)) for piece in pieces[count:]]


@dataclass(frozen=True, kw_only=True)
class Product:
    """The busiest thread's part of one product.

    Attributes
    ----------
    part : Region
        The product.
    plan : ProductPlan
        How it is cut.
    copies : int
        Number of such products in one call; 0 if it is not known beforehand.
    cycles : float
        Estimated cycles.
    others : callable
        () -> other kernels for the product, each with its estimated cycles.
    name : str
        Name of the product in its region; "" if it is the only one.
    filled : tuple of int or None
        Rows and elements of K that tiles are filled with; None: all of them.
    """

    part: Region
    plan: ProductPlan
    copies: int = 1
    cycles: float
    others: Callable[[], Sequence[tuple[str, float]]]
    name: str = ""
    filled: tuple[int, int] | None = None


# Integer products: a region's attributes for types, zero points and further inputs.
#
# `a_zero_point` and `b_zero_point` are numbers, or "input" for a further input (a scalar for A; one
# int32 for each column of a constant B), or, for A, "range": a f32 input of two elements, scale and
# zero point. Absent means 0. "dynamic" means that the kernel itself finds A's range first.


def is_integer(region: Region) -> bool:
    """Whether a product is one of 8-bit integers."""
    return region.inputs[1].dtype in RANGES


def zero_point_inputs(region: Region) -> list[str]:
    """The kinds of the inputs after A and B, in order: "range", "a", "b"."""
    attrs = region.attrs
    found = []
    if "range" in (attrs.get("a_scale"), attrs.get("a_zero_point")):
        found.append("range")
    return found + [name for name in "ab" if attrs.get(f"{name}_zero_point") == "input"]


def reject_zero_points(region: Region) -> str | None:
    """Why the further inputs of an integer product are inconsistent, or None."""
    names = zero_point_inputs(region)
    if (region.attrs.get("a_zero_point") == "dynamic") != quantizes_dynamically(region):
        return "a zero point that is found without its scale"
    if (names[:1] == ["range"] or quantizes_dynamically(region)) and quantized_dtype(
        region
    ) != "uint8":
        return "a range of int8 values"
    if len(region.inputs) != 2 + len(names):
        return f"{len(region.inputs)} inputs, where the zero points are {names}"
    for name, tensor in zip(names, region.inputs[2:], strict=True):
        if name == "range" and (tensor.shape, tensor.dtype) != ((2,), "float32"):
            return f"scale and zero point in {tensor}"
        if name == "a" and tensor.size != 1:
            return f"a zero point of A in {tensor}"
        if name == "b" and not (tensor.constant and tensor.shape == region.output.shape[-1:]):
            return f"zero points of B in {tensor}"
    return None


def quantized_dtype(region: Region) -> str:
    """The type of A, after the kernel has quantised it if it does."""
    return str(region.attrs.get("a_quantize", region.inputs[0].dtype))


def product_types(region: Region) -> tuple[str, str]:
    """The types that a product multiplies, after the kernel has quantised or rounded them."""
    return quantized_dtype(region), str(region.attrs.get("rounded", region.inputs[1].dtype))


def quantizes_dynamically(region: Region) -> bool:
    """Whether the kernel finds A's scale and zero point itself."""
    return region.attrs.get("a_scale") == "dynamic"
