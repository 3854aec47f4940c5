"""Products of 8-bit integers that take fewer instructions where nothing saturates, without VNNI.

    a block of rows, at run time
        A at most 127 but for few elements, or the weight's pairs small    bytes
        else                                                               words; digits of few rows

All give the same integers (see `microkernels.kernels.byte_pairs`). The weight's pairs are looked at
when it is packed; the answer lies behind it. A is looked at block by block: `outlier_list` takes
elements beyond 127 apart; where that does not pay, one pass of ORs finds whether there are any.
Weights of 7 bits, which are made for such CPUs (`reduce_range`), and activations of 7 bits always
fit.
"""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.kernels.byte_pairs import byte_tile, has_pairs
from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import Expr, constant, ramp, reinterpret_group
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.epilogue.epilogue import Columns

from .activations import Activations
from .outlier_list import LARGEST

SEARCHED_COLUMNS = 64
_HIGH = 0x80808080 - (1 << 32)  # the highest bit of four bytes, as int32


def searches(plan: ProductPlan) -> bool:
    """Whether A is looked at; with few columns that takes longer than it saves."""
    return plan.n >= SEARCHED_COLUMNS


def by_values(searched: bool, listed: bool = False, offset: int = 0) -> str:
    """What is decided by the values that are multiplied, for `explain`.

    `offset` is that of `outlier_list`, if it is known.
    """
    small = "no element of x is beyond 127 or " if searched else ""
    if listed:
        beyond = f"beyond {LARGEST}"
        if offset > 0:
            beyond = f"(as uint8) not from {offset} to {offset + LARGEST}"
        small = f"few elements of x are {beyond}, whose products are added apart, or "
    return f"pairs of bytes where {small}the weight's pairs are small, else words or digits"


def byte_tile_of(plan: ProductPlan) -> Microkernel | None:
    """What multiplies blocks that fit; None if nothing is faster for them, or threads share K."""
    shared = sum(group.count for group in plan.k_shares) > 1
    return byte_tile(plan.kernel) if has_pairs(plan.kernel) and not shared else None


class HighBits:
    """Searches bytes for one beyond 127; emits the search.

    Parameters
    ----------
    lanes : int
        Bytes that are looked at together, a multiple of four.
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.seen = I.sblock_alloc_buffer((lanes,), "uint8", align=64)

    def clear(self) -> None:
        """Begins a search."""
        I.buffer_store(self.seen, constant(0, "uint8", self.lanes), [ramp(0, self.lanes)])

    def add(self, value: Expr) -> None:
        """Looks at some bytes."""
        everything = [ramp(0, self.lanes)]
        I.buffer_store(self.seen, self.seen[tuple(everything)] | value, everything)

    def none(self) -> Expr:
        """Whether there was none."""
        fours = [
            reinterpret_group("int32", self.seen[ramp(start, 4)], 1)
            for start in range(0, self.lanes, 4)
        ]
        while len(fours) > 1:
            fours = [a | b for a, b in zip(fours[::2], fours[1::2], strict=True)]
        return tirx.EQ(fours[0] & tirx.const(_HIGH, "int32"), tirx.const(0, "int32"))


def weight_fits(weight: Expr, answer: int) -> Expr:
    """What packing found about a weight; the int32 lies at `answer` of the flat buffer."""
    return tirx.NE(reinterpret_group("int32", weight[ramp(answer, 4)], 1), tirx.const(0, "int32"))


def find_high_bits(rows: Activations, first: Expr, count: int | Expr) -> Expr:
    """Whether no byte of a block of rows that have begun, in whole vectors, is beyond 127."""
    search = HighBits(rows.kernel.lanes * rows.kernel.kr)
    vectors = -(-rows.k // search.lanes)
    with opaque_block("find_high_bits"):
        search.clear()
        with I.serial(count) as row, I.serial(vectors) as vector:
            columns = Columns(vector * search.lanes, search.lanes, search.lanes)
            search.add(rows.operand(first + row, columns))
    return search.none()
