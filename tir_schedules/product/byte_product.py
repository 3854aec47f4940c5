"""Products of 8-bit integers that take three instructions instead of four where nothing saturates.

    a block of rows, at run time
        all of A at most 127, or the weight's pairs small     vpmaddubsw on bytes
        else                                                  vpmaddwd on widened words

The weight's pairs are looked at when it is packed; the answer lies behind it. A is looked at by each
block: one pass of ORs. Both give the same integers (see `microkernels.kernels.byte_pairs`). Weights
that were quantised to 7 bits for CPUs without VNNI (`reduce_range`), and activations of 7 bits, are
such; so are many blocks of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from microkernels.kernels.byte_pairs import byte_tile
from microkernels.microkernel import LoadA, LoadB, Microkernel, Start, Tile
from microkernels.vector.expressions import Expr
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.core.size import is_open

from .wide_product import wide_product_of


@dataclass(frozen=True)
class ByteProduct:
    """How a tile multiplies bytes of a weight whose steps are pairs; as `WideProduct`.

    Attributes
    ----------
    kernel : Microkernel
        The tile by pairs of bytes. Each of its steps is two of the plan's.
    """

    kernel: Microkernel

    def emit(
        self,
        rows: int,
        vectors: int,
        steps: int,
        load_a: LoadA,
        load_b: LoadB,
        init: Start | None,
    ) -> Tile:
        """As `Microkernel.emit`, for so many steps of the plan."""
        return self.kernel.emit(rows, vectors, (-(-steps // 2),), load_a, load_b, init)

    def place(self, first: Expr | int, ks: Sequence[Expr | int]) -> Expr | int:
        """The plan's step at which a step of the tile begins, in a block from `first` on."""
        return first + ks[0] * 2

    def begun(self, ks: Sequence[Expr | int]) -> list[Expr | int]:
        """The plan's steps, within the block, that a step of the tile takes."""
        return [ks[0] * 2, ks[0] * 2 + 1]


def byte_product_of(plan: ProductPlan) -> ByteProduct | None:
    """How a plan's tiles multiply bytes that fit; None if they never do.

    Where operands are widened in cache, rows are of a known number, and blocks of K are whole steps.
    """
    tile = byte_tile(plan.kernel)
    cut = len(plan.pieces) > 1 and any(steps % 2 for _, steps in plan.pieces)
    shared = len(plan.k_shares) > 1 or plan.k_shares[0].count > 1
    if tile is None or wide_product_of(plan) is None or is_open((plan.m,)) or cut or shared:
        return None
    return ByteProduct(tile)
