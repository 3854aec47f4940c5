"""Interleaving rows of an image, so that one multiply-add takes kr taps of every channel.

    kr = 4    64 bytes of four rows   ->   4 vectors of 16 channels with 4 taps each
    kr = 2    32 words of two rows    ->   2 vectors of 16 channels with 2 taps each

x86 unpacks within 128 bits. A vector is therefore staged with its groups of kr elements in such an
order that what comes out of unpacking are neighbouring channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vectors import Expr, bind, lanes_of

_LANE_BITS = 128


def staged_order(vector: Expr, kr: int) -> Expr:
    """A vector of channels in the order that `interleave` takes.

    In a lane of 128 bits stand kr groups of elements, each of which goes to another result.
    """
    if kr == 1:
        return vector
    bits = int(vector.ty.dtype.bits) * lanes_of(vector)
    group, lanes = _LANE_BITS // kr, bits // _LANE_BITS
    if lanes == 1:
        return vector
    words = I.reinterpret(f"int{group}x{lanes * kr}", vector)
    order = [number * lanes + lane for lane in range(lanes) for number in range(kr)]
    return I.reinterpret(str(vector.ty.dtype), _shuffle([bind(words)], order))


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
    count = lanes_of(rows[0])
    within = _LANE_BITS // int(rows[0].ty.dtype.bits)
    if len(rows) == 2:
        halves = range(2)[:wanted]
        return [_unpack(rows[0], rows[1], count, within, 1, half) for half in halves]
    found = []
    for half in range(2)[: (wanted + 1) // 2]:
        upper = bind(_unpack(rows[0], rows[1], count, within, 1, half))
        lower = bind(_unpack(rows[2], rows[3], count, within, 1, half))
        for quarter in range(2)[: wanted - 2 * half]:
            found.append(_unpack(upper, lower, count, within, 2, quarter))
    return found


def _unpack(a: Expr, b: Expr, count: int, within: int, size: int, half: int) -> Expr:
    """Groups of `size` elements by turns from a half of every lane of two vectors."""
    order = [
        source * count + lane + half * within // 2 + first + element
        for lane in range(0, count, within)
        for first in range(0, within // 2, size)
        for source in range(2)
        for element in range(size)
    ]
    return _shuffle([a, b], order)


def _shuffle(vectors: list[Expr], order: list[int]) -> Expr:
    return tirx.Shuffle(vectors, [tirx.const(number, "int32") for number in order])
