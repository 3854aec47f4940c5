"""Interleaves rows of an image, so that one multiply-add takes kr taps of every channel.

    kr = 4    64 bytes of four rows   ->   4 vectors of 16 channels with 4 taps each
    kr = 2    32 words of two rows    ->   2 vectors of 16 channels with 2 taps each

x86's unpack instructions work within 128 bits. So a vector is staged with its groups of kr
elements in an order from which unpacking makes neighbouring channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm.tirx.script.builder.ir as I
from tvm import DataType

from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr

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
