"""Transposes blocks in registers: a few vectors along one axis become vectors along the other.

Eight rows of sixteen elements, a0 a1 .. a15, b0 .. b15, .. h0 .. h15, become

    a0 b0 c0 .. h0 a1 b1 .. h1,   a2 b2 .. h3,   ...

by rounds that interleave the first half of the rows with the second half. Four bytes, or two 16-bit
elements, are first combined to one, so that every round moves 32 bits at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from microkernels.vector.expressions import (
    Expr,
    bind,
    element_of,
    lanes_of,
    reinterpret,
    reinterpret_group,
)
from microkernels.vector.transpose import transpose_block

from .expressions import shuffle


def bits_element(dtype: str, bits: int) -> str:
    """The element type to move elements of `dtype` as."""
    return dtype if bits == 32 else f"uint{bits}"


def as_bits(value: Expr, bits: int) -> Expr:
    """Lanes of any type as lanes to move."""
    element = bits_element(element_of(value), bits)
    return value if element_of(value) == element else reinterpret(element, value)


def transposed(rows: Sequence[Expr], bits: int) -> list[Expr]:
    """For every lane of the rows, the vector of that lane of all rows.

    Parameters
    ----------
    rows : sequence of Expr
        A power of two of vectors of a power of two of lanes to move, of `bits` bits; at least
        32 / bits rows.
    bits : int
        8, 16 or 32.
    """
    size = len(rows)
    pixels = lanes_of(rows[0])
    element = element_of(rows[0])
    pack = 32 // bits
    words = [_packed(rows[at : at + pack]) for at in range(0, size, pack)]
    if len(words) == pixels:
        columns = transpose_block(words)
    else:
        columns = _regrouped(interleaved(words), len(words), pixels)
    if pack == 1:
        return columns
    return [reinterpret_group(element, column, size) for column in columns]


def _packed(rows: Sequence[Expr]) -> Expr:
    """Rows of less than 32 bits as one vector of words: element 0 of all rows, element 1, ..."""
    if len(rows) == 1:
        return rows[0]
    pixels = lanes_of(rows[0])
    lanes = [row * pixels + at for at in range(pixels) for row in range(len(rows))]
    return bind(reinterpret_group("int32", shuffle(list(rows), lanes), pixels))


def interleaved(rows: Sequence[Expr]) -> list[Expr]:
    """As many vectors: element 0 of all rows, element 1 of all rows, and so on.

    The rows are a power of two.
    """
    values = list(rows)
    pixels = lanes_of(values[0])
    half = len(values) // 2
    rounds = len(values).bit_length() - 1
    for _ in range(rounds):
        mixed = []
        for low, high in zip(values[:half], values[half:], strict=True):
            for start in (0, pixels // 2):
                lanes = [
                    each for at in range(start, start + pixels // 2) for each in (at, pixels + at)
                ]
                mixed.append(bind(shuffle([low, high], lanes)))
        values = mixed
    return values


def interleaved_by_chain(rows: Sequence[Expr]) -> list[Expr]:
    """What `interleaved` makes, of any number of rows, by one shuffle for every row but one."""
    number, pixels = len(rows), lanes_of(rows[0])
    results = []
    for part in range(number):
        wanted = [divmod(part * pixels + lane, number) for lane in range(pixels)]
        value = rows[0]
        for row in range(1, number):
            lanes = [
                pixels + at if source == row else (at if row == 1 else lane)
                for lane, (at, source) in enumerate(wanted)
            ]
            value = bind(shuffle([value, rows[row]], lanes))
        results.append(value)
    return results


def _regrouped(vectors: list[Expr], size: int, pixels: int) -> list[Expr]:
    """The flat sequence of `pixels` groups of `size` elements, a vector for every group."""
    if size > pixels:
        share = size // pixels
        return [
            bind(shuffle(vectors[at * share : (at + 1) * share], range(size)))
            for at in range(pixels)
        ]
    groups = []
    for at in range(pixels):
        vector, first = divmod(at * size, pixels)
        groups.append(bind(shuffle([vectors[vector]], range(first, first + size))))
    return groups
