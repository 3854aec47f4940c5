"""Indexing by several tensors, and scattering, by one index along one axis.

    index(x: [N, C, H, W], [None, None, i, j])  ->  index(x: [N, C, H * W], [None, None, i * W + j])
    scatter_add(x, 1, i, src)                   ->  R.scatter_elements(x, i, src, 1, "add")
    index_put(x, [None, i], v)                  ->  scatter(x, 1, i as [B, K, Q], v as [B, K, Q])
    index_put(x, [mask], v) of one value        ->  where(mask, v, x)
    index_put(x, [None, None, i: [1]], v)       ->  index_copy(x, 2, i, v)
    index_copy(x, 2, arange(n) + start, v)      ->  a kernel that writes rows, in place if possible
    scatter_reduce(.., include_self=False)      ->  scatter(x, .., start), then scatter_reduce

R.scatter_elements visits the indices of one line in order, so that equal indices add twice. TVM's
R.index_put and R.scatter_nd add in parallel, where threads lose sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch.fx.experimental.symbolic_shapes import statically_known_true
from tvm import relax, te

from microkernels.base.errors import UnsupportedOperatorError
from relay_passes.lower.in_place import ROW_UPDATE

from ..expressions import Expr, Place, emit, emit_each

aten = torch.ops.aten

_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}
_OLD_NAMES = {"add": "sum", "multiply": "prod"}
_MASKS = (torch.bool, torch.uint8)


def scatter(node: Any, importer: Any) -> Any:
    """`aten.scatter.src` and `aten.scatter_reduce.two`; only the axis may differ in size."""
    x, axis, index, src, *reduction = importer.retrieve_args(node)
    dtype = str(x.ty.dtype)
    how = _REDUCTIONS[reduction[0]] if reduction else "update"
    # Sums of narrow floats are rounded once; a sum of bool is "or".
    wide = {"float16": "float32", "bfloat16": "float32", "bool": "int8"}.get(dtype, dtype)
    if dtype == "bool":
        how = {"add": "max", "mul": "min"}.get(how, how)
    if how == "update" or wide == dtype:
        return emit(relax.op.scatter_elements(x, index, src, axis, how))
    x, src = (emit(relax.op.astype(each, wide)) for each in (x, src))
    return emit(relax.op.astype(emit(relax.op.scatter_elements(x, index, src, axis, how)), dtype))


def index_copy(node: Any, importer: Any) -> Any:
    """`aten.index_copy` along the rows of a tensor [batch, ..., rows, columns], such as a cache."""
    x, axis, index, new = importer.retrieve_args(node)
    axis %= x.ty.ndim
    if not _is_consecutive(node.args[2]):
        last = emit(relax.op.expand_dims(index, 1))
        places = emit(relax.op.broadcast_to(last, new.ty.shape))
        return emit(relax.op.scatter_elements(x, places, new, axis))
    sizes = x.ty.shape.values
    first = emit(relax.op.strided_slice(index, [0], [0], [1]))
    before = emit(relax.op.broadcast_to(first, sizes[:1]))

    def element(place: Place, new: te.Tensor, before: te.Tensor, past: te.Tensor) -> Expr:
        row = place[axis].astype("int64") - before[place[0]].astype("int64")
        inside = te.all(row >= 0, row < new.shape[axis])
        held = te.max(te.min(row, new.shape[axis] - 1), 0)
        written = new[(*place[:axis], held, *place[axis + 1 :])]
        return te.if_then_else(inside, written, past[place])

    marks = {ROW_UPDATE: [0, 1, 2]}
    return emit_each("rows", sizes, element, new, before, x, hint="index_copy", **marks)


def _is_consecutive(index: Any) -> bool:
    """Whether indices are known to be consecutive, as a single index or `arange(n) + start`."""
    if _same(index.meta["val"].numel(), 1):
        return True
    if index.target is aten.add.Tensor:
        parts = [part for part in index.args if isinstance(part, fx.Node)]
        ranges = [part for part in parts if not _same(part.meta["val"].numel(), 1)]
        return index.kwargs.get("alpha", 1) == 1 and len(ranges) == 1 and _is_consecutive(ranges[0])
    return index.target is aten.arange.start_step and (*index.args, 1)[2] == 1


def _index_copy(x: Any, dim: int, index: Any, source: Any) -> Any:
    """Keeps index_copy along rows whole, so that it can write in place; other axes use indexing."""
    if x.dim() > 2 and index.dim() and dim % x.dim() == x.dim() - 2:
        return NotImplemented
    return decomposition_table[aten.index_copy.default](x, dim, index, source)


def _scatter(x: Any, dim: int, index: Any, src: Any, reduce: str | None = None) -> Any:
    """A scatter whose operands only differ in size along the axis; NotImplemented keeps it."""

    def again(x: Any, dim: int, index: Any, src: Any) -> Any:
        if reduce is None:
            return aten.scatter.src(x, dim, index, src)
        return aten.scatter_reduce.two(x, dim, index, src, reduce)

    if statically_known_true(index.numel() == 0):
        return x.clone()
    if not x.dim():
        return again(x.reshape(1), 0, index.reshape(1), src.reshape(1)).reshape(())
    index, src = (each.reshape(1) if not each.dim() else each for each in (index, src))
    axes = range(x.dim())
    longer = [axis for axis in axes if not _same(src.shape[axis], index.shape[axis])]
    for axis in longer:
        src = src.narrow(axis, 0, index.shape[axis])
    along = dim % x.dim()
    if all(axis == along or _same(index.shape[axis], x.shape[axis]) for axis in axes):
        return again(x, along, index, src) if longer else NotImplemented
    places = _flat_places(
        [
            index.clamp(0, size - 1)
            if axis == along
            else _spread(torch.arange(index.shape[axis]), axis, x.dim())
            for axis, size in enumerate(x.shape)
        ],
        x.shape,
    )
    return again(x.flatten(), 0, places.flatten(), src.flatten()).view(x.shape)


def _scatter_by_old_name(x: Any, dim: int, index: Any, src: Any, *, reduce: str) -> Any:
    if not isinstance(src, torch.Tensor):
        src = _everywhere(src, index, x.dtype)
    return aten.scatter_reduce.two(x, dim, index, src, _OLD_NAMES[reduce])


def _scatter_reduce(
    x: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True
) -> Any:
    if reduce == "mean":
        ones = torch.ones_like(index, dtype=torch.int64)
        counts = torch.full_like(x, int(include_self), dtype=torch.int64)
        counts = counts.scatter_add(dim, index, ones).clamp(min=1)
        total = x.scatter_reduce(dim, index, src, "sum", include_self=include_self)
        if x.is_floating_point():
            return total / counts.to(x.dtype)
        return torch.div(total, counts.to(x.dtype), rounding_mode="floor")
    if not include_self:
        start = x.scatter(dim, index, _start(reduce, x.dtype))
        return start.scatter_reduce(dim, index, src, reduce)
    return _scatter(x, dim, index, src, reduce)


def _start(reduce: str, dtype: torch.dtype) -> float | int | bool:
    """The initial value of a reduction."""
    if reduce in ("sum", "prod"):
        return int(reduce == "prod")
    if dtype == torch.bool:
        return reduce == "amin"
    if dtype.is_floating_point:
        return math.inf if reduce == "amin" else -math.inf
    limits = torch.iinfo(dtype)
    return limits.max if reduce == "amin" else limits.min


def _index_put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    masks = [(axis, index) for axis, index in given if index.dtype in _MASKS]
    if not given:
        return x + values if accumulate else values.expand(x.shape).clone()
    if len(masks) == len(given) == 1:
        return _put_by_mask(x, *masks[0], values, accumulate)
    if masks:
        raise UnsupportedOperatorError(
            "operator index_put with a mask beside other indices cannot be imported; "
            "use mask.nonzero() outside of the model, or torch.where"
        )
    axes, rows = [axis for axis, _ in given], _rows(x, given)
    first, last = axes[0], axes[-1]
    is_row = len(axes) == 1 and x.dim() > 2 and first == x.dim() - 2
    if is_row and not accumulate and _same(rows.numel(), 1):
        place = torch.where(rows < 0, rows + x.shape[first], rows).reshape(1)
        values = values.expand(*x.shape[:first], *rows.shape, x.shape[-1])
        return aten.index_copy(x, first, place, values.reshape(*x.shape[:first], 1, x.shape[-1]))
    if last - first + 1 != len(axes):  # not adjacent: the indexed axes come first in `values`
        moved, order = _in_front(x, axes)
        lines = moved.flatten(0, len(axes) - 1)
        moved = _index_put(lines, [rows], values, accumulate).view(moved.shape)
        return moved.permute([order.index(axis) for axis in range(x.dim())])
    before, after = x.shape[:first], x.shape[last + 1 :]
    values = values.expand(*before, *rows.shape, *after)
    # One row for each index: [*before, indices, *after].
    lines = (*before, rows.numel(), *after)
    along = _spread(rows.reshape(-1), first, len(lines)).expand(lines)
    flat = x.flatten(first, last)
    put = flat.scatter_add if accumulate else flat.scatter
    return put(first, along, values.reshape(lines)).view(x.shape)


def _index(x: Any, indices: Sequence[Any]) -> Any:
    """Indexes several adjacent axes by one index into the flattened axis."""
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) < 2 or len(given) == len(indices):
        return NotImplemented
    if any(index.dtype in _MASKS for _, index in given):
        return NotImplemented
    axes, rows = [axis for axis, _ in given], _rows(x, given)
    first, last = axes[0], axes[-1]
    if last - first + 1 != len(axes):
        return aten.index(_in_front(x, axes)[0].flatten(0, len(axes) - 1), [rows])
    return aten.index(x.flatten(first, last), [*[None] * first, rows])


def _rows(x: Any, given: Sequence[tuple[int, Any]]) -> Any:
    """Combines several indices into one index of their flattened axes."""
    if len(given) == 1:
        return given[0][1]
    sizes = [x.shape[axis] for axis, _ in given]
    found = torch.broadcast_tensors(*(index for _, index in given))
    counted = [
        torch.where(index < 0, index + size, index).clamp(0, size - 1)
        for index, size in zip(found, sizes, strict=True)
    ]
    return _flat_places(counted, sizes)


def _in_front(x: Any, axes: Sequence[int]) -> tuple[Any, list[int]]:
    """Moves some axes to the front; also returns the new order of axes."""
    order = [*axes, *(axis for axis in range(x.dim()) if axis not in axes)]
    return x.permute(order), order


def _put_by_mask(x: Any, first: int, mask: Any, values: Any, accumulate: bool) -> Any:
    """Puts one value, or one per position, where a mask over adjacent axes is true."""
    mask, count = mask.to(torch.bool), mask.dim()
    after = x.dim() - first - count
    kept = values.dim() - after
    if kept > 0 and not _same(values.shape[kept - 1], 1):
        shape = (*x.shape[:first], values.shape[kept - 1], *x.shape[first + count :])
        values = _at_places(mask, values.expand(shape), first)
    elif kept > 0:
        values = values.reshape(*values.shape[: kept - 1], *[1] * count, *values.shape[kept:])
    wide = mask.reshape(*mask.shape, *[1] * after)
    return torch.where(wide, x + values if accumulate else values, x)


def _at_places(mask: Any, values: Any, axis: int) -> Any:
    """Spreads values along an axis to a mask's true positions; other positions are arbitrary."""
    places = (mask.flatten().to(torch.int64).cumsum(0) - 1).clamp(min=0)
    # If there are no values, none is chosen, but the index still reads one.
    more = values.new_zeros([1 if each == axis else size for each, size in enumerate(values.shape)])
    chosen = torch.cat([values, more], axis).index_select(axis, places)
    return chosen.unflatten(axis, mask.shape)


def _index_reduce(
    x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    along = _spread(index, dim % x.dim(), x.dim()).expand(source.shape)
    return x.scatter_reduce(dim, along, source, reduce, include_self=include_self)


def _put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    flat, values = x.flatten(), source.flatten()
    return aten.index_put(flat, [index.flatten()], values, accumulate).view(x.shape)


def _masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    x, mask = torch.broadcast_tensors(x, mask)
    return torch.where(mask, _at_places(mask, source.flatten(), 0), x)


def _diagonal_scatter(x: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    places = torch.arange(x.numel()).view(x.shape).diagonal(offset, dim1, dim2)
    return x.flatten().scatter(0, places.flatten(), src.flatten()).view(x.shape)


def _everywhere(value: Any, index: Any, dtype: torch.dtype) -> Any:
    """A tensor of one number for each index; the number may be infinite, unlike R.full's in TVM."""
    return torch.scalar_tensor(value, dtype=dtype).expand(index.shape)


def _flat_places(coordinates: Sequence[Any], sizes: Sequence[Any]) -> Any:
    """The indices of elements in the flattened tensor."""
    places = coordinates[0]
    for coordinate, size in zip(coordinates[1:], sizes[1:], strict=True):
        places = places * size + coordinate
    return places


def _spread(vector: Any, axis: int, rank: int) -> Any:
    """Reshapes a vector to lie along one of `rank` axes."""
    return vector.view([-1 if each == axis else 1 for each in range(rank)])


def _same(one: Any, other: Any) -> bool:
    """Whether two sizes are known to be equal, without adding a guard."""
    return bool(statically_known_true(one == other))


SCATTERING: dict[Any, Any] = {
    aten.scatter.src: _scatter,
    aten.scatter.value: lambda x, dim, index, value: aten.scatter.src(
        x, dim, index, _everywhere(value, index, x.dtype)
    ),
    aten.scatter.reduce: _scatter_by_old_name,
    aten.scatter.value_reduce: _scatter_by_old_name,
    aten.scatter_add.default: lambda *given: aten.scatter_reduce.two(*given, "sum"),
    aten.scatter_reduce.two: _scatter_reduce,
    aten.index.Tensor: _index,
    aten.index_copy.default: _index_copy,
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
    aten.index_reduce.default: _index_reduce,
    aten.put.default: _put,
    aten.masked_scatter.default: _masked_scatter,
    aten.diagonal_scatter.default: _diagonal_scatter,
}
"""Decompositions of operators that read or write at indices or masks."""
