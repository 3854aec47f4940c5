"""Decompositions of operators before the import: torch's table, changed.

    aten.cdist(x, y)  ->  aten.sub, aten.mul, aten.sum.dim_IntList, aten.sqrt
    aten._native_batch_norm_legit_functional(x, weight, bias, mean, var, True, momentum, eps)
        ->  aten.var.correction, aten.mean.dim, ..., and the new statistics

Activations and attention of float16 are kept whole. Operators without a converter, and those that
TVM's converters misread, are decomposed into operators that have one. A function that returns
NotImplemented keeps its operator.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch._decomp import decomposition_table
from torch.backends import cuda

from .functions import WHOLE
from .images import by_gathers
from .scattering import SCATTERING

aten = torch.ops.aten

_ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default
_RESIZES = (aten.upsample_nearest2d.vec, aten.upsample_bilinear2d.vec)
# torch has decompositions of these, but not in its default table.
_OF_TORCH = (
    aten._native_batch_norm_legit_functional.default,
    aten.addmv.default,
    aten.ldexp.Tensor,
    aten.tril_indices.default,
    aten.triu_indices.default,
)


def with_decompositions(table: Any) -> Any:
    """A table of decompositions after which the importer knows all remaining operators.

    Parameters
    ----------
    table : dict or torch.export.decomp_utils.CustomDecompTable
        torch's table; it is changed, and returned.
    """
    for name in WHOLE:
        table.pop(getattr(aten, name).default, None)
    table[_ATTENTION] = _half_attention(table[_ATTENTION])
    table.update({operator: decomposition_table[operator] for operator in _OF_TORCH})
    table.update({operator: functools.partial(by_gathers, operator) for operator in _RESIZES})
    table.update({**_OURS, **SCATTERING})
    return table


def _any(x: Any) -> Any:
    return aten.any.dims(x if x.dtype == torch.bool else x != 0, list(range(x.dim())))


def _kth_value(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Any, Any]:
    if not x.dim():
        return x.clone(), torch.zeros((), dtype=torch.int64)
    both = [each.narrow(dim, k - 1, 1) for each in torch.sort(x, dim)]
    values, places = both if keepdim else [each.squeeze(dim) for each in both]
    return values, places


def _search_number(lines: Any, number: float, **options: Any) -> Any:
    kind = torch.float32 if isinstance(number, float) else lines.dtype
    return torch.searchsorted(lines, torch.full((), number, dtype=kind), **options)


def _pair_distances(x: Any, p: float = 2.0) -> Any:
    if not isinstance(x.shape[0], int):
        return NotImplemented
    one, other = torch.triu_indices(x.shape[0], x.shape[0], 1)
    return _norm(x.index_select(0, one) - x.index_select(0, other), p)


def _norm(difference: Any, p: float) -> Any:
    """The norm along the last axis."""
    size = difference.abs()
    if p == 0:
        return (size != 0).to(size.dtype).sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return (size * size).sum(-1).sqrt()
    return size.amax(-1) if math.isinf(p) else size.pow(p).sum(-1).pow(1 / p)


def _rrelu(
    x: Any, noise: Any, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, *_: Any
) -> Any:
    return NotImplemented if training else F.leaky_relu(x, (lower + upper) / 2)


def _rrelu_and_noise(x: Any, noise: Any, *args: Any, **options: Any) -> Any:
    found = _rrelu(x, noise, *args, **options)
    return found if found is NotImplemented else (found, noise)


def _repeat(x: Any, repeats: Sequence[Any]) -> Any:
    if all(isinstance(count, int) for count in repeats):
        return NotImplemented
    sizes = [1] * (len(repeats) - x.dim()) + list(x.shape)
    apart = [part for size in sizes for part in (1, size)]
    wide = [part for pair in zip(repeats, sizes, strict=True) for part in pair]
    whole = [count * size for count, size in zip(repeats, sizes, strict=True)]
    return x.reshape(apart).expand(wide).reshape(whole)


def _group_norm(x: Any, weight: Any, bias: Any, batch: Any, channels: Any, *sizes: Any) -> Any:
    if weight is not None and bias is not None:
        return NotImplemented
    weight = x.new_ones(channels) if weight is None else weight
    bias = x.new_zeros(channels) if bias is None else bias
    return aten.native_group_norm(x, weight, bias, batch, channels, *sizes)


def _variance_and_mean(
    x: Any, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Any, Any]:
    axes = dim or list(range(x.dim()))
    return x.var(axes, correction=correction, keepdim=keepdim), x.mean(axes, keepdim)


def _embedding_bag(
    weight: Any, indices: Any, offsets: Any, *given: Any
) -> tuple[Any, None, None, None]:
    """The sum, mean (mode 1) or maximum (mode 2) of the rows in each bag; 0 for an empty bag."""
    # scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding_idx.
    missing = (False, 0, False, None, False, -1)[len(given) :]
    _, mode, _, per_sample_weights, include_last_offset, padding_idx = given + missing
    rows = weight.index_select(0, indices)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    count = offsets.shape[0] - include_last_offset
    numbers = torch.arange(indices.shape[0], dtype=offsets.dtype)
    bags = torch.searchsorted(offsets.narrow(0, 0, count), numbers, right=True) - 1
    taken = torch.ones_like(indices) if padding_idx < 0 else (indices != padding_idx).to(indices)
    sizes = offsets.new_zeros(count).scatter_add(0, bags, taken.to(offsets.dtype))
    kept, filled = taken.unsqueeze(-1) != 0, sizes.unsqueeze(-1) != 0
    result = weight.new_zeros(count, weight.shape[1])
    if mode == 2:
        rows = torch.where(kept, rows, -math.inf)
        lines = bags.unsqueeze(-1).expand(rows.shape)
        largest = result.scatter_reduce(0, lines, rows, "amax", include_self=False)
        result = torch.where(filled, largest, 0.0)
    else:
        result = result.index_add(0, bags, torch.where(kept, rows, 0.0))
        if mode == 1:
            result = result / sizes.clamp(min=1).unsqueeze(-1)
    # The other results only serve torch's backward pass: a program that reads one is refused.
    return result, None, None, None


def _trilinear(*given: Any) -> Any:
    """Sum of products of three tensors, by their expanded axes, summed axes and an unroll axis."""
    parts = []
    for part, axes in zip(given[:3], given[3:6], strict=True):
        for axis in sorted(axes):
            part = part.unsqueeze(axis)
        parts.append(part)
    return functools.reduce(torch.mul, parts).sum(list(given[6]))


def _remainder_of_number(number: Any, x: Any) -> Any:
    kind = torch.result_type(number, x)
    return torch.remainder(torch.full_like(x, number, dtype=kind), x.to(kind))


def _half_attention(decompose: Callable[..., Any]) -> Callable[..., Any]:
    """Decomposes attention of float16 into operators of float16.

    aten._scaled_dot_product_flash_attention_for_cpu(q: float16, k: float16, v: float16)
        ->  aten.bmm, aten.add, aten._softmax, aten.bmm, all of float16
    """

    def decomposed(query: Any, *args: Any, **options: Any) -> Any:
        # torch decomposes attention of float32 this way, but puts casts to float32 and back around
        # other types, which no pass could tell from a user's casts. Products of float16 are
        # computed in float32 (`relay_passes.bfloat16.widening`), so no precision is lost.
        # The switch is global: it is set for all threads while torch decomposes.
        before = cuda.fp16_bf16_reduction_math_sdp_allowed()
        cuda.allow_fp16_bf16_reduction_math_sdp(before or query.dtype == torch.float16)
        try:
            return decompose(query, *args, **options)
        finally:
            cuda.allow_fp16_bf16_reduction_math_sdp(before)

    return decomposed


# Windows of tensors, and samples between elements, by operators that have converters.
#
# x.unfold(1, 3, 2)               ->  index_select(x, 1, indices of all windows), unflattened
# adaptive_max_pool2d(x, (3, 2))  ->  windows along both axes, amax
# grid_sampler_3d(x, grid, ...)   ->  a weighted sum of gathers


_NEAREST = 1  # a mode of sampling; 0 is linear
_BORDER, _REFLECTION = 1, 2  # modes of padding; 0 is zeros


def _unfold(x: Any, dimension: int, size: int, step: int) -> Any:
    if not x.dim():
        return x.reshape(1) if size else x.new_empty(0)
    axis = dimension % x.dim()
    count = (x.shape[axis] - size) // step + 1
    places = torch.arange(count).unsqueeze(-1) * step + torch.arange(size)
    found = x.index_select(axis, places.flatten()).unflatten(axis, (count, size))
    return found.movedim(axis + 1, -1)


def _adaptive_max_pool(x: Any, output_size: Sequence[int]) -> tuple[Any, Any]:
    """The largest element of each window, and its index in the image."""
    rank = len(output_size)
    sizes = x.shape[-rank:]
    if not all(isinstance(size, int) for size in sizes):
        return NotImplemented  # dynamic sizes: window extents would differ
    places = [_window_places(*each) for each in zip(sizes, output_size, strict=True)]
    for axis, (size, found) in enumerate(zip(sizes, places, strict=True)):
        at = x.dim() - (rank - axis)
        if size != found.numel():
            x = x.index_select(at, found.flatten())
        x = x.unflatten(at, found.shape)
    # [..., count, extent, count, extent]  ->  [..., count, count, elements of a window]
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
    """The indices of each window's elements; shorter windows repeat their last element."""
    number = torch.arange(count).unsqueeze(-1)
    start, end = (
        torch.div(each, count, rounding_mode="floor")
        for each in (number * size, (number + 1) * size + count - 1)
    )
    extent = max(-(-(n + 1) * size // count) - n * size // count for n in range(count))
    return torch.minimum(start + torch.arange(extent), end - 1)


def _grid_sampler(x: Any, grid: Any, mode: int, padding: int, align_corners: bool) -> Any:
    """Samples [N, C, *sizes] at a grid [N, *places, axes] from -1 to 1, last axis first."""
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
    """Coordinates moved inside by the padding mode; zero padding leaves them as they are."""
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


_OURS: dict[Any, Any] = {
    aten.min.dim: lambda x, *how: (x.amin(*how), x.argmin(*how)),
    aten.any.default: _any,
    aten.kthvalue.default: _kth_value,
    aten.sort.stable: lambda x, *, stable, **how: tuple(torch.sort(x, **how)),
    aten.searchsorted.Scalar: _search_number,
    aten.bucketize.Scalar: lambda number, lines, **how: _search_number(lines, number, **how),
    aten._cdist_forward.default: lambda one, other, p, mode=None: _norm(
        one.unsqueeze(-2) - other.unsqueeze(-3), p
    ),
    aten._pdist_forward.default: _pair_distances,
    aten.rrelu_with_noise.default: _rrelu,
    aten.rrelu_with_noise_functional.default: _rrelu_and_noise,
    aten.repeat.default: _repeat,
    aten.native_group_norm.default: _group_norm,
    aten.var_mean.correction: _variance_and_mean,
    aten._embedding_bag.default: _embedding_bag,
    aten._embedding_bag_forward_only.default: _embedding_bag,
    aten.addbmm.default: lambda x, one, other, *, beta=1, alpha=1: (
        x * beta + torch.bmm(one, other).sum(0) * alpha
    ),
    aten._trilinear.default: _trilinear,
    aten.bitwise_and.Scalar_Tensor: lambda number, x: aten.bitwise_and.Scalar(x, number),
    aten.bitwise_or.Scalar_Tensor: lambda number, x: aten.bitwise_or.Scalar(x, number),
    aten.bitwise_xor.Scalar_Tensor: lambda number, x: aten.bitwise_xor.Scalar(x, number),
    aten.remainder.Scalar_Tensor: _remainder_of_number,
    aten.unfold.default: _unfold,
    aten.adaptive_max_pool2d.default: _adaptive_max_pool,
    aten.adaptive_max_pool3d.default: _adaptive_max_pool,
    aten.grid_sampler_3d.default: _grid_sampler,
}
