"""Windows of tensors, and samples between elements, in terms of operators that have converters.

x.unfold(1, 3, 2)               ->  index_select(x, 1, all places of all windows), unflattened
adaptive_max_pool2d(x, (3, 2))  ->  windows along both axes, amax
grid_sampler_3d(x, grid, ...)   ->  a weighted sum of gathers
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten

_NEAREST = 1  # a way to sample; 0 is linear
_BORDER, _REFLECTION = 1, 2  # paddings; 0 are zeros


def windows() -> dict[Any, Any]:
    """Decompositions by operators."""
    return {
        aten.unfold.default: _unfold,
        aten.adaptive_max_pool2d.default: _adaptive_max_pool,
        aten.adaptive_max_pool3d.default: _adaptive_max_pool,
        aten.grid_sampler_3d.default: _grid_sampler,
    }


def _unfold(x: Any, dimension: int, size: int, step: int) -> Any:
    if not x.dim():
        return x.reshape(1) if size else x.new_empty(0)
    axis = dimension % x.dim()
    count = (x.shape[axis] - size) // step + 1
    places = torch.arange(count).unsqueeze(-1) * step + torch.arange(size)
    found = x.index_select(axis, places.flatten()).unflatten(axis, (count, size))
    return found.movedim(axis + 1, -1)


def _adaptive_max_pool(x: Any, output_size: Sequence[int]) -> tuple[Any, Any]:
    """The largest element of each window, and its place in the image."""
    rank = len(output_size)
    sizes = x.shape[-rank:]
    if not all(isinstance(size, int) for size in sizes):
        return NotImplemented  # windows of different extents, which no tensor has
    places = [_window_places(*each) for each in zip(sizes, output_size, strict=True)]
    for axis, (size, found) in enumerate(zip(sizes, places, strict=True)):
        at = x.dim() - (rank - axis)
        if size != found.numel():
            x = x.index_select(at, found.flatten())
        x = x.unflatten(at, found.shape)
    # [..., count, extent, count, extent]  ->  [..., count, count, all of a window]
    first = x.dim() - 2 * rank
    counts, extents = range(first, x.dim(), 2), range(first + 1, x.dim(), 2)
    x = x.permute([*range(first), *counts, *extents]).flatten(first + rank)
    within = x.argmax(-1)
    index: Any = 0
    stride = 1
    for axis in reversed(range(rank)):
        count, extent = places[axis].shape
        number = torch.arange(count).view([-1, *[1] * (rank - 1 - axis)])
        element = number * extent + within.remainder(extent)
        within = torch.div(within, extent, rounding_mode="floor")
        place = places[axis].flatten().index_select(0, element.flatten()).view(element.shape)
        index, stride = index + place * stride, stride * sizes[axis]
    return x.amax(-1), index


def _window_places(size: int, count: int) -> Any:
    """For each window the places of its elements; shorter windows repeat their last element."""
    number = torch.arange(count).unsqueeze(-1)
    start, end = (
        torch.div(each, count, rounding_mode="floor")
        for each in (number * size, (number + 1) * size + count - 1)
    )
    extent = max(-(-(n + 1) * size // count) - n * size // count for n in range(count))
    return torch.minimum(start + torch.arange(extent), end - 1)


def _grid_sampler(x: Any, grid: Any, mode: int, padding: int, align_corners: bool) -> Any:
    """Samples of [N, C, *sizes] at [N, *places, axes]: from -1 to 1, the last axis first."""
    sizes = x.shape[2:]
    flat = x.flatten(2)
    sides: list[list[tuple[Any, Any]]] = []  # by axes: elements beside a sample, and their weights
    for size, coordinate in zip(sizes, reversed(grid.unbind(-1)), strict=True):
        if align_corners:
            at = (coordinate + 1) / 2 * (size - 1)
        else:
            at = ((coordinate + 1) * size - 1) / 2
        at = _padded(at, size, padding, align_corners)
        if mode == _NEAREST:
            sides.append([(at.round(), torch.ones_like(at))])
        else:
            low = at.floor()
            sides.append([(low, low + 1 - at), (low + 1, at - low)])
    total: Any = 0
    for corner in itertools.product(*sides):
        place: Any = 0
        weight = functools.reduce(operator.mul, [share for _, share in corner])
        for size, (element, _) in zip(sizes, corner, strict=True):
            held = element.clamp(0, size - 1)
            weight = torch.where(held == element, weight, 0.0)
            place = place * size + held.to(torch.int64)
        lines = place.flatten(1).unsqueeze(1).expand(-1, x.shape[1], -1)
        total = total + flat.gather(2, lines) * weight.flatten(1).unsqueeze(1)
    return total.unflatten(2, grid.shape[1:-1])


def _padded(at: Any, size: Any, padding: int, align_corners: bool) -> Any:
    """Coordinates inside, but for padding by zeros."""
    if padding == _REFLECTION:
        low, high = (0, 2 * (size - 1)) if align_corners else (-1, 2 * size - 1)
        if size == 1 and align_corners:
            at = torch.zeros_like(at)
        else:
            start, span = low / 2, (high - low) / 2
            distance = (at - start).abs()
            rest = torch.fmod(distance, span)
            turns = (distance / span).floor()
            even = turns - (turns / 2).floor() * 2 == 0
            at = torch.where(even, rest + start, span - rest + start)
    return at.clamp(0, size - 1) if padding in (_BORDER, _REFLECTION) else at
