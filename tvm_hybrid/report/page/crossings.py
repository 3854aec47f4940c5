"""Orders the boxes of each layer of a graph such that few edges cross."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

SWEEPS = 8


def order_layers(
    layers: list[list[int]], above: Mapping[int, list[int]], below: Mapping[int, list[int]]
) -> None:
    """Sorts each layer by the mean place of neighbours in the layer before it; keeps the best."""
    best, least = [list(layer) for layer in layers], _crossings(layers, below)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        neighbours = above if down else below
        for level in range(len(layers)) if down else reversed(range(len(layers))):
            other = level - 1 if down else level + 1
            if not 0 <= other < len(layers):
                continue
            place = {box: index for index, box in enumerate(layers[other])}
            own = {box: index for index, box in enumerate(layers[level])}

            def key(
                box: int,
                place: Mapping[int, int] = place,
                own: Mapping[int, int] = own,
                scale: float = len(layers[other]) / max(len(layers[level]), 1),
                neighbours: Mapping[int, list[int]] = neighbours,
            ) -> float:
                found = neighbours.get(box)
                return (
                    sum(map(place.__getitem__, found)) / len(found) if found else own[box] * scale
                )

            layers[level].sort(key=key)
        crossings = _crossings(layers, below)
        if crossings < least:
            best, least = [list(layer) for layer in layers], crossings
    layers[:] = best


def _crossings(layers: Sequence[Sequence[int]], below: Mapping[int, list[int]]) -> int:
    """How many pairs of edges between neighbouring layers cross."""
    total = 0
    for upper, lower in pairwise(layers):
        place = {box: index for index, box in enumerate(lower)}
        ends: list[int] = []
        for box in upper:
            mine = sorted(place[each] for each in below.get(box, []))
            total += sum(1 for end in ends for each in mine if end > each)
            ends += mine
    return total
