"""Interleaves rows of an image, so that one multiply-add takes kr taps of every channel.

    kr = 4    64 bytes of four rows   ->   4 vectors of 16 channels with 4 taps each
    kr = 2    32 words of two rows    ->   2 vectors of 16 channels with 2 taps each

x86's unpack instructions work within 128 bits. So a vector is staged with its groups of kr
elements in an order from which unpacking makes neighbouring channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import DataType

from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr

from .config import DepthwiseProblem


@dataclass(frozen=True)
class Groups:
    """Rows of x in groups of kr, and who wants them.

    A vector of interleaved channels has kr taps of a column in every lane. A tile has R rows of
    pixels, and all of them use the same groups of kr neighbouring rows of x. A pair is a row of the
    tile with such a group; the taps that this row does not use are 0.

        3x3, kr = 4, R = 2    rows 0 to 3 of x, with w0 w1 w2 0 for one result, 0 w0 w1 w2 for the
                              next

    Attributes
    ----------
    offsets : tuple of tuple of int
        Rows of each group, from the first of the window of the tile's first row on.
    pairs : tuple of tuple of int
        (row of the tile, group), in order.
    taps : dict
        Pair -> for each of the kr rows the tap, or None.
    """

    offsets: tuple[tuple[int, ...], ...]
    pairs: tuple[tuple[int, int], ...]
    taps: dict[tuple[int, int], tuple[int | None, ...]]

    @staticmethod
    def of(problem: DepthwiseProblem, rows: int, kr: int) -> Groups:
        """The groups of a tile with so many rows."""
        axis = problem.rows
        if rows == 1:
            needed = [tap * axis.dilation for tap in range(axis.taps)]
        else:
            needed = list(range(axis.span(rows)))
        offsets = tuple(tuple(needed[start : start + kr]) for start in range(0, len(needed), kr))
        taps: dict[tuple[int, int], tuple[int | None, ...]] = {}
        for row in range(rows):
            tap_of = {row * axis.stride + tap * axis.dilation: tap for tap in range(axis.taps)}
            for number, group in enumerate(offsets):
                wanted = [tap_of.get(offset) for offset in group]
                if any(tap is not None for tap in wanted):
                    taps[row, number] = tuple(wanted + [None] * (kr - len(group)))
        return Groups(offsets, tuple(taps), taps)

    def elements(self, problem: DepthwiseProblem, unit: int) -> int:
        """Of an interleaved weight in blocks of so many channels, without what follows."""
        channels = math.ceil(problem.channels / unit) * unit
        return (
            len(self.pairs) * problem.columns.taps * channels * len(next(iter(self.taps.values())))
        )


_LANE_BITS = 128


def staged_order(vector: Expr, kr: int) -> Expr:
    """A vector of channels in the order that `interleave` takes.

    In a lane of 128 bits stand kr groups of elements, each of which goes to another result.
    """
    if kr == 1:
        return vector
    bits = int(vector.ty.dtype.bits) * ex.lanes_of(vector)
    group, lanes = _LANE_BITS // kr, bits // _LANE_BITS
    if lanes == 1:
        return vector
    words = I.reinterpret(f"int{group}x{lanes * kr}", vector)
    order = [number * lanes + lane for lane in range(lanes) for number in range(kr)]
    return I.reinterpret(str(vector.ty.dtype), ex.shuffle([ex.bind(words)], order))


def interleave(rows: Sequence[Expr], wanted: int) -> list[Expr]:
    """kr vectors in staged order as kr vectors of neighbouring channels, kr taps each.

    Parameters
    ----------
    rows : sequence of Expr
        1, 2 or 4 vectors of the same type.
    wanted : int
        How many of the results are needed, from the first on.
    """
    if len(rows) == 1:
        return list(rows)
    if len(rows) == 2:
        halves = range(2)[:wanted]
        return [_unpack(rows[0], rows[1], 1, half) for half in halves]
    found = []
    for half in range(2)[: (wanted + 1) // 2]:
        upper = ex.bind(_unpack(rows[0], rows[1], 1, half))
        lower = ex.bind(_unpack(rows[2], rows[3], 1, half))
        for quarter in range(2)[: wanted - 2 * half]:
            found.append(_unpack(upper, lower, 2, quarter))
    return found


def _unpack(a: Expr, b: Expr, size: int, half: int) -> Expr:
    """Groups of `size` elements by turns from a half of every lane of two vectors."""
    dtype = str(a.ty.dtype)
    # Not a pure call: TVM would put it in the place of its name, however often that is used.
    return I.call_extern(dtype, _name(half, size, int(a.ty.dtype.bits), ex.lanes_of(a)), a, b)


def _name(half: int, size: int, bits: int, count: int) -> str:
    return f"tvm_hybrid_unpack_{'high' if half else 'low'}_{size}_v{count}i{bits}"


def _function(half: int, size: int, bits: int, count: int) -> str:
    """The LLVM function called by that name; one shuffle in it, and one instruction of x86."""
    within = _LANE_BITS // bits
    order = [
        source * count + lane + half * within // 2 + first + element
        for lane in range(0, count, within)
        for first in range(0, within // 2, size)
        for source in range(2)
        for element in range(size)
    ]
    vector = f"<{count} x i{bits}>"
    mask = ", ".join(f"i32 {number}" for number in order)
    return f"""
define linkonce_odr {vector} @{_name(half, size, bits, count)}({vector} %a, {vector} %b) #0 {{
  %mixed = shufflevector {vector} %a, {vector} %b, <{count} x i32> <{mask}>
  ret {vector} %mixed
}}
"""


def unpack_llvm_ir(dtype: str, kr: int, count: int) -> str:
    """LLVM functions that `interleave` calls for vectors of a type; they are always inlined.

    A shuffle of 64 bytes in TIR has 64 numbers, which every pass visits: with these functions a
    kernel compiles in half the time.
    """
    bits = int(DataType(dtype).bits)
    sizes = [1 << level for level in range(kr.bit_length() - 1)]
    found = [_function(half, size, bits, count) for size in sizes for half in range(2)]
    return "".join(found) + "attributes #0 = { alwaysinline nounwind }\n" if found else ""
