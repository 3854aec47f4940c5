"""Places the boxes of each layer of a graph beside each other, near those that they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SWEEPS = 8
GAP = 28.0


def middles_of(
    layers: Sequence[Sequence[int]],
    widths: Sequence[float],
    above: Mapping[int, list[int]],
    below: Mapping[int, list[int]],
) -> list[float]:
    """Where the middle of each box comes, beneath and above its neighbours' if possible."""
    middle = [0.0] * len(widths)
    for layer in layers:
        wanted = [0.0] * len(layer)
        _put(layer, wanted, widths, middle)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            wanted = []
            for box in layer:
                found = [*above.get(box, []), *below.get(box, [])]
                if sweep < SWEEPS - 2:
                    found = (above if down else below).get(box, []) or found
                wanted.append(
                    sum(middle[each] for each in found) / len(found) if found else middle[box]
                )
            _put(layer, wanted, widths, middle)
    return middle


def _put(
    layer: Sequence[int], wanted: Sequence[float], widths: Sequence[float], middle: list[float]
) -> None:
    """The middles next to the wanted ones, in the least squares' sense, that keep distances.

    Boxes that would overlap are put together into blocks, as pools of an isotonic regression.
    """
    offsets, offset = [], 0.0
    for index, box in enumerate(layer):
        if index:
            offset += (widths[layer[index - 1]] + widths[box]) / 2 + GAP
        offsets.append(offset)
    pools: list[tuple[float, int]] = []  # sum and number
    for goal, offset in zip(wanted, offsets, strict=True):
        total, count = goal - offset, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            more, others = pools.pop()
            total, count = total + more, count + others
        pools.append((total, count))
    index = 0
    for total, count in pools:
        for _ in range(count):
            middle[layer[index]] = total / count + offsets[index]
            index += 1
