"""Operators that read and write elements at given indices or ranges.

Negative indices count from the end, as in ONNX; Relax's operators take none. Computed indices come
from the user's feeds: each is clipped to the data, and data without elements are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import relax, te, tirx

from ... import expressions as ex
from ...expressions import Expr, Place
from ..evaluate import computed
from ..graph import sizes as of_sizes
from ..graph.elements import Elements, index_grid, known_elements
from ..graph.freeze_shapes import current_sizes
from ..graph.kernels import emit_kernel, put, reshaped_to, sizes_in
from ..graph.requests import check, check_equal, check_sizes, requested_sizes
from ..graph.sizes import (
    dims_of,
    holds,
    index,
    is_dynamic,
    product,
    same_size,
    scalar_of,
    simplified,
)
from ..operators import operator

MAX_DEPTH = 2**31 - 1
END = 2**31 - 1  # exporters write this, or more, for the end of an axis
LARGEST_SIZE = 1 << 29  # of an input's axis; the program refuses larger ones if it relies on that
FAR = 1 << 16  # TVM reserves memory for min(n, bound) elements before it knows n
_REDUCTIONS = ("none", "add", "mul", "min", "max")


@operator("Gather")
def _gather(data: Expr, indices: Expr, *, axis: int = 0) -> Expr:
    dims, places, values = dims_of(data), dims_of(indices), ex.constant(indices)
    axis %= len(dims)
    end = axis + len(places)
    shape, grid = [*dims[:axis], *places, *dims[axis + 1 :]], index_grid(indices)

    def run(first: Expr | int, last: Expr | int, is_inside: bool) -> Expr:
        """The slices from `first` up to, not including, `last`."""
        part = relax.op.strided_slice(data, [axis], [first], [last], assume_inbound=is_inside)
        return relax.op.reshape(ex.normalize(part), relax.ShapeExpr(shape))

    if isinstance(dims[axis], tirx.IntImm) and (int(dims[axis]) or not is_dynamic(indices)):
        extent = int(dims[axis])
        if values is not None:
            if values.size and not (-extent <= values.min() and values.max() < extent):
                low, high = values.min(), values.max()
                raise ValueError(f"indices from {low} to {high} are outside an axis of {extent}")
            fixed = np.where(values < 0, values + extent, values).astype(np.int64)
            if fixed.size and (np.diff(fixed.ravel()) == 1).all():
                first = int(fixed.ravel()[0])
                return run(first, first + fixed.size, False)
            return relax.op.take(data, ex.literal(fixed), axis, mode="clip")
        bounds = None if grid is None else grid.run(places, extent)
        if bounds is not None:
            return run(*bounds, True)
        return relax.op.take(data, _wrapped(indices, ex.number(indices, extent)), axis, mode="clip")
    if values is not None and values.size == 1:
        place = int(values.item())
        check(dims[axis] > place if place >= 0 else dims[axis] >= -place)
        first = index(place) if place >= 0 else dims[axis] + place
        return run(first, first + 1, True)
    if grid is not None and grid.counts(places) and same_size(product(places), dims[axis]):
        return relax.op.reshape(data, relax.ShapeExpr(shape))
    _check_choice([dims[axis]], places)

    def element(i: Place, data: te.Tensor, indices: te.Tensor) -> Expr:
        place = _held(indices(*i[axis:end]), data.shape[axis])
        return _read(data, [*i[:axis], place, *i[end:]])

    return ex.emit_each("gathered", shape, element, data, indices, hint="gather")


@operator("GatherElements")
def _gather_elements(data: Expr, indices: Expr, *, axis: int = 0) -> Expr:
    axis, places = axis % len(dims_of(data)), ex.constant(indices)
    for place, (size, count) in enumerate(zip(dims_of(data), dims_of(indices), strict=True)):
        if place != axis:
            check(count <= size, f"its indices are more than its data along axis {place}")
    if not is_dynamic(data) and places is not None:
        size = ex.known_dims(data)[axis]
        fixed = np.where(places < 0, places + size, places).astype(np.int64)
        return relax.op.gather_elements(data, ex.literal(fixed), axis)
    _check_choice(dims_of(data), dims_of(indices))

    def element(i: Place, data: te.Tensor, indices: te.Tensor) -> Expr:
        places = [_held(place, size) for place, size in zip(i, data.shape, strict=True)]
        places[axis] = _held(indices(*i), data.shape[axis])
        return _read(data, places)

    shape = dims_of(indices)
    return ex.emit_each("gathered", shape, element, data, indices, hint="gather_elements")


@operator("GatherND")
def _gather_nd(data: Expr, indices: Expr, *, batch_dims: int = 0) -> Expr:
    before, places, batch = dims_of(data), dims_of(indices), batch_dims
    depth = places[-1]
    if not isinstance(depth, tirx.IntImm):
        raise ValueError("the number of indices for each place depends on data")
    misfit = "the batches of its indices are not those of its data"
    check_sizes(before[:batch], places[:batch], misfit)
    if not is_dynamic(data) and not is_dynamic(indices):
        return relax.op.gather_nd(data, _from_the_front(data, indices, batch), batch)
    first, last = len(places) - 1, batch + int(depth)
    shape = [*places[:-1], *before[last:]]
    _check_choice(before[batch:last], places[:-1])

    def element(i: Place, data: te.Tensor, indices: te.Tensor) -> Expr:
        found = [
            _held(indices(*i[:first], index(number)), data.shape[batch + number])
            for number in range(int(depth))
        ]
        return _read(data, [*i[:batch], *found, *i[first:]])

    return ex.emit_each("gathered", shape, element, data, indices, hint="gather_nd")


@operator("Scatter", static=True)
@operator("ScatterElements")
def _scatter_elements(
    data: Expr, indices: Expr, updates: Expr, *, axis: int = 0, reduction: str = "none"
) -> Expr:
    dims, places = dims_of(data), dims_of(indices)
    for place, (size, one, other) in enumerate(zip(dims, places, dims_of(updates), strict=True)):
        check_equal(one, other)
        if place != axis % len(dims):
            check(one <= size)
    _check_choice([dims[axis]], places)
    return relax.op.scatter_elements(data, indices, updates, axis, _reduction(reduction))


@operator("ScatterND")
def _scatter_nd(data: Expr, indices: Expr, updates: Expr, *, reduction: str = "none") -> Expr:
    dims, (*places, depth), name = dims_of(data), dims_of(indices), _reduction(reduction)
    if not isinstance(depth, tirx.IntImm):
        raise ValueError("how many coordinates an index has must be known")
    _check_choice(dims[: int(depth)], places)
    check_sizes(dims_of(updates), [*places, *dims[int(depth) :]])
    return relax.op.scatter_nd(data, _from_the_front(data, indices, 0), updates, name)


def _reduction(name: str) -> str:
    if name not in _REDUCTIONS:
        raise ValueError(f"reduction={name!r} is none of {', '.join(_REDUCTIONS)}")
    return "update" if name == "none" else name


def _from_the_front(data: Expr, indices: Expr, first: int) -> Expr:
    """Makes indices non-negative; their last axis indexes the axes of `data` from `first` on."""
    if ex.dtype_of(indices).startswith("uint"):
        return indices
    shape = ex.normalize(relax.op.shape_of(data))
    sizes, last = relax.op.shape_to_tensor(shape), first + dims_of(indices)[-1]
    sizes = relax.op.strided_slice(sizes, axes=[0], begin=[first], end=[last])
    return _wrapped(indices, ex.cast(sizes, ex.dtype_of(indices)))


def _wrapped(indices: Expr, extents: Expr) -> Expr:
    """Indices with the extent added to negative ones."""
    if ex.dtype_of(indices).startswith("uint"):
        return indices
    negative = indices < ex.number(indices, 0)
    return ex.normalize(relax.op.where(negative, indices + extents, indices))


def _check_choice(extents: Sequence[Expr], places: Sequence[Expr]) -> None:
    """Makes the program check that there are elements to choose from, if any must be chosen."""
    # A size that is in both shapes cancels: if it is 0, nothing is chosen.
    rest = [size for size in extents if not any(same_size(size, place) for place in places)]
    check(tirx.any(product(rest) > 0, tirx.EQ(product(places), index(0))))


def _held(place: Expr, extent: Expr) -> Expr:
    """An index clipped to an axis; negative ones count from the end."""
    dtype = str(place.ty.dtype)
    place = tirx.Cast("int64", place) if dtype != "int64" else place
    wrapped = place if dtype.startswith("u") else tirx.Select(place < 0, place + extent, place)
    return te.max(te.min(wrapped, extent - 1), index(0))


def _read(data: te.Tensor, places: Sequence[Expr]) -> Expr:
    """Reads an element; 0 if the data have no elements."""
    sizes = [size for size in data.shape if not isinstance(size, tirx.IntImm)]
    if not sizes:
        return data(*places)
    return tirx.if_then_else(product(sizes) > 0, data(*places), tirx.const(0, str(data.dtype)))


@operator("Slice")
def _slice(data: Expr, starts: Expr, ends: Expr, axes: Expr, steps: Expr) -> Expr:
    """Slice; bounds are numbers, expressions of sizes, or read at run time."""
    dims, (count,) = dims_of(data), ex.known_dims(starts) or (1,)
    known = np.arange(count) if axes is None else ex.constant(axes)
    if known is None:
        raise ValueError("axes must be constant where a size depends on data")
    places = [int(axis) % len(dims) for axis in known.ravel()]
    steps = steps or ex.literal(np.ones(count, np.int64))
    strides, bounds = ex.constant(steps), [known_elements(each) for each in (starts, ends)]
    extents = [dims[axis] for axis in places]
    if strides is None or any(each is None or _is_far(each, extents) for each in bounds):
        return _slice_by_data(data, places, [starts, ends, steps])
    if 0 in strides:
        raise ValueError("a step of 0")
    columns = [each.ravel() for each in bounds if each is not None]
    fixed = ex.constant(data) is not None
    parts: list[tuple[Expr, Expr, Expr, int]] = []
    for extent, start, end, step in zip(extents, *columns, strides.ravel().tolist(), strict=True):
        if _is_beyond(end, extent):
            check(extent <= end)
            end = END
        if fixed and step > 0 and _is_inside(start, end, extent):
            begin, last = index(start), end
        else:
            begin, last = (_clipped(bound, extent, step) for bound in (start, end))
        length = te.max(last - begin if step > 0 else begin - last, index(0))
        size = simplified(tirx.floordiv(length + index(abs(step) - 1), index(abs(step))))
        parts.append((begin, last, size, step))
    if not is_dynamic(data) and all(
        isinstance(bound, tirx.IntImm) for p in parts for bound in p[:2]
    ):
        forward = []
        for axis, (begin, end, _, step) in zip(places, parts, strict=True):
            first, last = int(begin), int(end)
            if step > 0:
                forward.append((axis, first, max(first, last), step))
            else:
                taken = ex.literal(np.arange(first, last, step, dtype=np.int64))
                data = ex.normalize(relax.op.take(data, taken, axis, mode="clip"))
        ranges: Any = map(list, zip(*forward, strict=True))
        return relax.op.strided_slice(data, *ranges) if forward else data
    sizes, begins, stretches = list(dims), [index(0) for _ in dims], [index(1) for _ in dims]
    for axis, (begin, _, size, step) in zip(places, parts, strict=True):
        begins[axis], sizes[axis], stretches[axis] = begin, size, index(step)
    if all(step == 1 for *_, step in parts):
        ends = [simplified(begin + size) for begin, _, size, _ in parts]
        starts = [part[0] for part in parts]
        part = ex.normalize(relax.op.strided_slice(data, places, starts, ends, assume_inbound=True))
        if all(map(same_size, dims_of(part), sizes)):
            return part

    def element(i: Place, data: te.Tensor, begins: list[Expr], stretches: list[Expr]) -> Expr:
        return data(*(b + n * s for b, n, s in zip(begins, i, stretches, strict=True)))

    return ex.emit_each("sliced", sizes, element, data, begins, stretches, hint="slice")


def _is_far(bounds: Elements, extents: Sequence[Expr]) -> bool:
    """Whether a bound is a number for which TVM would reserve much memory."""
    return any(
        isinstance(bound, int) and FAR < bound < END
        for bound, extent in zip(bounds.ravel(), extents, strict=True)
        if not isinstance(extent, tirx.IntImm) and not _is_beyond(bound, extent)
    )


def _is_beyond(bound: Any, extent: Expr) -> bool:
    """Whether a bound is a number beyond any allowed size of an input."""
    far = isinstance(bound, int) and LARGEST_SIZE <= bound < END
    return far and current_sizes().knows(extent)


def _clipped(bound: Any, extent: Expr, step: int) -> Expr:
    """A bound clipped to an axis."""
    if isinstance(bound, int):
        if step > 0 and bound >= END:
            return extent
        place = index(bound) if bound >= 0 else index(bound) + extent
    else:
        place = tirx.Select(bound < 0, bound + extent, bound)
    low, high = (index(0), extent) if step > 0 else (index(-1), extent - 1)
    return simplified(te.max(te.min(place, high), low))


def _is_inside(start: Any, end: Any, extent: Expr) -> bool:
    """Whether a constant's slice up to a size of the inputs may be assumed to lie inside."""
    dynamic = current_sizes()
    if isinstance(end, int) or not isinstance(extent, tirx.IntImm):
        return False
    if not (holds(index(start) >= 0) and holds(end - index(start) >= 0)):
        return False
    # The program refuses inputs for which the slice would not lie inside.
    if not holds(end <= extent):
        if not dynamic.limit(end, int(extent)):
            return False
        check(end <= extent)
    return True


def _slice_by_data(data: Expr, axes: Sequence[int], vectors: Sequence[Expr]) -> Expr:
    """Slices with bounds that are read and clipped at run time."""
    dims, count = dims_of(data), len(axes)
    tensors = [ex.reshaped(ex.cast(each, "int64"), (count,)) for each in vectors]

    def body(starts: Expr, ends: Expr, steps: Expr, begins: Expr, *others: Expr) -> None:
        counts, *extents = others
        for place, extent in enumerate(extents):
            up = steps[place] > 0
            low, high = tirx.Select(up, index(0), index(-1)), tirx.Select(up, extent, extent - 1)
            first, last = (
                te.max(te.min(tirx.Select(bound < 0, bound + extent, bound), high), low)
                for bound in (starts[place], ends[place])
            )
            put(begins, first, place)
            length = last - begins[place]
            length = te.max(tirx.Select(up, length, index(0) - length), index(0))
            stride = te.max(tirx.Select(up, steps[place], index(0) - steps[place]), index(1))
            put(counts, tirx.floordiv(length + stride - 1, stride), place + 1)
        put(counts, index(1))
        with I.serial(count) as number, I.If(tirx.EQ(steps[number], index(0))), I.Then():
            put(counts, index(0))

    results = [([count], "int64"), ([count + 1], "int64")]
    extents = [dims[axis] for axis in axes]
    begins, counts = emit_kernel("bounds", tensors, results, body, extents)
    sizes = list(dims)
    for axis, size in zip(axes, sizes_in(counts), strict=True):
        sizes[axis] = size

    def element(i: Place, data: te.Tensor, begins: te.Tensor, steps: te.Tensor) -> Expr:
        places = list(i)
        for place, axis in enumerate(axes):
            places[axis] = begins[place] + i[axis] * steps[place]
        return data(*places)

    return ex.emit_each("sliced", sizes, element, data, begins, tensors[2], hint="slice")


@operator("OneHot")
def _one_hot(indices: Expr, depth: Expr, values: Expr, *, axis: int = -1) -> Expr:
    """OneHot: compares the indices with all classes.

    OneHot(indices, depth, [off, on], axis)
        ->  where(expand_dims(indices, axis) == [0, 1, ..., depth - 1], on, off)
    """
    known = ex.constant(depth)
    if known is not None and (known.size != 1 or not 0 <= known.item() <= MAX_DEPTH):
        raise ValueError(f"its depth is {known.tolist()}")
    check_equal(product(dims_of(values)), index(2), "its values are not two")
    dims, rank = dims_of(indices), ex.rank_of(indices) + 1
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} of a result of rank {rank}")
    axis %= rank
    # The depth may follow from sizes, or depend on data. All sizes may be dynamic.
    (count,) = requested_sizes(depth) if known is None else [index(int(known.item()))]
    number = ex.cast(indices, "int64")
    # Negative indices count from the end; an index outside equals no class.
    if not ex.dtype_of(indices).startswith("uint"):
        number = _wrapped(number, scalar_of(count))
    number = reshaped_to(number, [*dims[:axis], index(1), *dims[axis:]])
    column = [count, *[index(1)] * (rank - 1 - axis)]
    every = reshaped_to(of_sizes.counted(*of_sizes.plain([count])), column)
    off, on = (computed("Gather", values, ex.literal(np.array(place))) for place in (0, 1))
    return relax.op.where(relax.op.equal(number, every), on, off)
