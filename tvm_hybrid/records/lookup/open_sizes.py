"""Which numbers the symbols of a region stand for in another one, and how usual these are.

    matmul(float32[batchxseqx384], ...)    matmul(float32[1x128x384], ...)    batch = 1, seq = 128

A region with open sizes has records of the sizes that somebody tuned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from tir_schedules.core.region import Region
from tir_schedules.core.size import SAMPLE, SymbolicSize


def symbols_in(opened: Region, known: Region) -> dict[str, int] | None:
    """Symbol -> its number; None if the regions differ in anything else.

    Parameters
    ----------
    opened : Region
        A region with open sizes.
    known : Region
        One without.
    """
    if known.is_open or _ranks(opened) != _ranks(known):
        return None
    values: dict[str, int] = {}
    symbols: set[str] = set()
    for size, number in _sizes(opened, known):
        if isinstance(size, SymbolicSize):
            symbols.update(size.symbols)
            if size == SymbolicSize.of(size.symbols[0]):
                values[size.symbols[0]] = number
    if symbols != values.keys():
        return None
    return values if opened.with_sizes(values).key == known.key else None


def class_distance(values: Mapping[str, int]) -> float:
    """|log2| of the quotient of the product of symbols and the sample."""
    return abs(math.log2(max(1, math.prod(values.values())) / SAMPLE))


def _ranks(region: Region) -> list[object]:
    """How many sizes there are, and where."""
    return [*(len(tensor.shape) for tensor in region.tensors), *map(_ranks, region.parts)]


def _sizes(opened: Region, known: Region) -> Iterator[tuple[int, int]]:
    """Sizes at the same places."""
    for a, b in zip(opened.tensors, known.tensors, strict=True):
        yield from zip(a.shape, b.shape, strict=True)
    for part, other in zip(opened.parts, known.parts, strict=True):
        yield from _sizes(part, other)
