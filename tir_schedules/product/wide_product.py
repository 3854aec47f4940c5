"""Which products multiply operands that were widened in cache before, and how.

    8-bit integers   vpmaddwd multiplies words, where bytes may saturate (see `byte_pairs`)
    bfloat16         without instructions for it, or with slow ones, a product is one of f32

To widen both operands next to every product takes as many instructions as the products. A panel of
the weight is widened once for a block of rows (`wide_panels`), and a row once for all panels. Few
rows widen the weight next to the products, which then is half as many bytes. Products and sums are
the same, in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I

from microkernels.kernels.byte_pairs import word_tile
from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for
from microkernels.tile import LoadA, LoadB, Start, Tile
from microkernels.vector import bfloat16
from microkernels.vector.expressions import Expr, cast, ramp, splat, vector_type
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.core.size import is_open

# Rows of a known number, for which widening the panels pays: of bfloat16, of 8-bit integers.
FEWEST_ROWS, FEWEST_INTEGER_ROWS = 16, 8


@dataclass(frozen=True)
class WideProduct:
    """How widened operands are multiplied.

    Attributes
    ----------
    kernel : Microkernel
        The register tile.
    dtype : str
        Element type of the operands in cache.
    parts : int
        Steps of the tile in one step of the plan.
    """

    kernel: Microkernel
    dtype: str
    parts: int = 1

    def emit(
        self,
        rows: int,
        vectors: int,
        steps: int,
        load_a: LoadA,
        load_b: LoadB,
        init: Start | None,
    ) -> Tile:
        """As `Microkernel.emit`; the loop variables are a step of the plan and a part of it."""
        tile = self.kernel.begin(rows, vectors, init)
        with I.serial(steps) as step:
            for part in range(self.parts):
                at = [step, part]
                self.kernel.accumulate(
                    tile,
                    range(rows),
                    (),
                    lambda i, _, at=at: load_a(i, at),  # type: ignore[misc]
                    lambda j, _, at=at: load_b(j, at),  # type: ignore[misc]
                )
        return tile

    @property
    def fewest_rows(self) -> int:
        """Rows from which on it pays."""
        return FEWEST_INTEGER_ROWS if self.dtype == "int16" else FEWEST_ROWS

    def place(self, first: Expr | int, ks: Sequence[Expr | int]) -> Expr | int:
        """The tile's step of K for loop variables of `emit`, in a block from `first` on."""
        return (first + ks[0]) * self.parts + ks[1]

    def widen(self, value: Expr) -> Expr:
        """Elements as they are multiplied next to few rows, in the wider type."""
        return bfloat16.widen(value) if self.dtype == "float32" else cast(self.dtype, value)

    def spread(self, buffer: Expr, index: Sequence[Expr | int]) -> Expr:
        """A from an element in cache on, as a step of the tile takes it."""
        kernel = self.kernel
        *row, column = index
        lanes, kr = kernel.lanes, kernel.kr
        if kr == 1:
            return kernel.spread(buffer[(*row, ramp(column, 1))])
        pair = I.reinterpret(f"int{16 * kr}", buffer[(*row, ramp(column, kr))])
        return I.reinterpret(vector_type(self.dtype, kr * lanes), splat(pair, lanes))


def wide_product(kernel: Microkernel, m: int, rows: int, vectors: int) -> WideProduct | None:
    """How tiles of so many rows and vectors multiply widened operands; None if they do not.

    Parameters
    ----------
    kernel : Microkernel
        That the weight is packed for.
    m : int
        Rows of the whole product.
    """
    integers = kernel.b_dtype == "int8"
    if kernel.isa_name not in ("avx2", "avx512") or kernel.b_dtype not in ("int8", "bfloat16"):
        return None
    if not is_open((m,)) and m < (FEWEST_INTEGER_ROWS if integers else FEWEST_ROWS):
        return None
    if integers:
        return WideProduct(word_tile(kernel), "int16", 2)
    tiles = float_tiles(kernel)
    fitting = (each for each in tiles if rows <= each.mr and vectors <= each.vectors)
    tile = min(fitting, key=lambda each: each.mr * each.vectors, default=None)
    return None if tile is None else WideProduct(tile, "float32", kernel.kr)


def float_tiles(kernel: Microkernel) -> tuple[Microkernel, ...]:
    """What multiplies f32 on a kernel's instruction set."""
    return kernels_for(kernel.isa, "float32", "float32")


def wide_product_of(plan: ProductPlan) -> WideProduct | None:
    """How a plan's tiles multiply widened operands; None if they do not."""
    return wide_product(plan.kernel, plan.m, plan.rows, plan.vectors)
