"""Places the boxes of a graph in layers, such that edges go down and few of them cross.

After Sugiyama, Tagawa and Toda (IEEE Trans. SMC 11(2), 1981). A box lies below all boxes that it
reads from. An edge over several layers has a joint in each layer, which it shares with other edges
from its box. The order in a layer follows the mean place of the neighbours (barycentre), in several
sweeps down and up. Then boxes move as near to their neighbours as order and distances allow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

JOINT_WIDTH, LAYER_GAP = 10.0, 44.0
# A graph that is longer than wide is cut into columns until it has about this aspect ratio.
ASPECT, LEAST_LAYERS, GUTTER, TURN = 1.5, 8, 72.0, 20.0

Numbers = Sequence[float]
Near = Mapping[int, list[int]]  # box -> its neighbours


@dataclass(frozen=True)
class Layout:
    """Upper left corners of boxes, points of edges (the first and last touch boxes), and extent.

    Columns go from left to right, each is read from top to bottom.
    """

    places: list[tuple[float, float]]
    lines: list[list[tuple[float, float]]]
    width: float
    height: float


def layered(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> Layout:
    """Computes the places of boxes.

    Parameters
    ----------
    sizes : sequence of (float, float)
        Width and height of each box.
    edges : sequence of (int, int)
        Source and target of each edge; a target's number is higher than its source's.
    """
    depth = _depths(len(sizes), edges)
    widths = [width for width, _ in sizes]
    layers: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for box, level in enumerate(depth):
        layers[level].append(box)
    chains = []
    joints: dict[tuple[int, int], int] = {}
    for source, target in edges:
        chain = [source]
        for level in range(depth[source] + 1, depth[target]):
            if (source, level) not in joints:
                joints[source, level] = len(widths)
                layers[level].append(len(widths))
                widths.append(JOINT_WIDTH)
            chain.append(joints[source, level])
        chains.append([*chain, target])
    above: dict[int, list[int]] = {}
    below: dict[int, list[int]] = {}
    pairs = (pair for chain in chains for pair in pairwise(chain))
    for upper, lower in dict.fromkeys(pairs):
        above.setdefault(lower, []).append(upper)
        below.setdefault(upper, []).append(lower)
    order_layers(layers, above, below)
    middle = middles_of(layers, widths, above, below)
    heights = [max((sizes[k][1] for k in layer if k < len(sizes)), default=0.0) for layer in layers]
    left, right = _reach(range(len(widths)), widths, middle)
    columns = _columns(heights, right - left)
    inside: list[list[int]] = [[] for _ in range(max(columns, default=-1) + 1)]
    for column, layer in zip(columns, layers, strict=True):
        inside[column] += layer
    extents = [_reach(boxes, widths, middle) for boxes in inside]
    tops, bottom = _tops(heights, columns)
    # Columns stand side by side; find where each begins.
    begins, total = [], 0.0
    for start, end in extents:
        begins.append(total)
        total += end - start + GUTTER
    total = max(total - GUTTER, 0.0)
    for level, layer in enumerate(layers):
        for box in layer:
            middle[box] += begins[columns[level]] - extents[columns[level]][0]
    places = [
        (middle[k] - wide / 2, tops[depth[k]] + (heights[depth[k]] - high) / 2)
        for k, (wide, high) in enumerate(sizes)
    ]
    lines = []
    for chain in chains:
        first, *between, last = chain
        level = depth[first]
        line = [(middle[first], places[first][1] + sizes[first][1])]
        for box in [*between, last]:
            level += 1
            if columns[level] != columns[level - 1]:
                gutter = begins[columns[level]] - GUTTER / 2
                line += [(line[-1][0], bottom + TURN), (gutter, bottom + TURN)]
                line += [(gutter, -TURN), (middle[box], -TURN)]
            if box != last:
                line += [(middle[box], tops[level]), (middle[box], tops[level] + heights[level])]
        lines.append([*line, (middle[last], places[last][1])])
    return Layout(places, lines, total, bottom)


def _columns(heights: Sequence[float], width: float) -> list[int]:
    """Assigns layers to columns of about equal height."""
    total = sum(heights) + LAYER_GAP * len(heights)
    wanted = round(math.sqrt(ASPECT * total / (width + GUTTER))) if heights else 1
    count = max(1, min(wanted, len(heights) // LEAST_LAYERS))
    found, above = [], 0.0
    for height in heights:
        found.append(min(int((above + height / 2) * count / total), count - 1))
        above += height + LAYER_GAP
    return found


def _reach(boxes: Sequence[int], widths: Numbers, middle: Numbers) -> tuple[float, float]:
    """Left and right end of some boxes."""
    left = min((middle[box] - widths[box] / 2 for box in boxes), default=0.0)
    return left, max((middle[box] + widths[box] / 2 for box in boxes), default=0.0)


def _tops(heights: Sequence[float], columns: Sequence[int]) -> tuple[list[float], float]:
    """Top of each layer, and bottom of the longest column."""
    tops: list[float] = []
    bottom = 0.0
    for level, height in enumerate(heights):
        below = level > 0 and columns[level] == columns[level - 1]
        tops.append(tops[-1] + heights[level - 1] + LAYER_GAP if below else 0.0)
        bottom = max(bottom, tops[-1] + height)
    return tops, bottom


def _depths(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Length of the longest path to each box; a box without inputs goes right above its reader."""
    depth = [0] * count
    incoming = [False] * count
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        depth[target] = max(depth[target], depth[source] + 1)
        incoming[target] = True
    for source in range(count):
        readers = [depth[target] for start, target in edges if start == source]
        if not incoming[source] and readers:
            depth[source] = min(readers) - 1
    return depth


SWEEPS = 8


def order_layers(layers: list[list[int]], above: Near, below: Near) -> None:
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
            scale = len(layers[other]) / max(len(layers[level]), 1)
            means = {
                box: fmean(place[each] for each in found) if found else index * scale
                for index, box in enumerate(layers[level])
                for found in [neighbours.get(box)]
            }
            layers[level].sort(key=means.__getitem__)
        crossings = _crossings(layers, below)
        if crossings < least:
            best, least = [list(layer) for layer in layers], crossings
    layers[:] = best


def _crossings(layers: Sequence[Sequence[int]], below: Mapping[int, list[int]]) -> int:
    """Counts crossing pairs of edges between neighbouring layers."""
    total = 0
    for upper, lower in pairwise(layers):
        place = {box: index for index, box in enumerate(lower)}
        ends: list[int] = []
        for box in upper:
            mine = sorted(place[each] for each in below.get(box, []))
            total += sum(1 for end in ends for each in mine if end > each)
            ends += mine
    return total


GAP = 28.0


def middles_of(
    layers: Sequence[Sequence[int]], widths: Numbers, above: Near, below: Near
) -> list[float]:
    """Computes the middle of each box, above and below its neighbours' middles if possible."""
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


def _put(layer: Sequence[int], wanted: Numbers, widths: Numbers, middle: list[float]) -> None:
    """Finds the middles nearest to the wanted ones, by least squares, that keep distances."""
    offsets, offset = [], 0.0
    for index, box in enumerate(layer):
        if index:
            offset += (widths[layer[index - 1]] + widths[box]) / 2 + GAP
        offsets.append(offset)
    # Boxes that would overlap are joined into blocks, as pools of an isotonic regression.
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
