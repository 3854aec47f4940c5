"""Slice of data whose sizes are open, or with bounds that are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import relax, te, tirx

from ...expressions import (
    Attrs,
    Expr,
    Inputs,
    cast,
    constant,
    dtype_of,
    emit_te,
    known_dims,
    literal,
    normalize,
    reshaped,
)
from ..graph.freeze_shapes import current_sizes
from ..operators import operator
from .elements import Elements, known_elements
from .index_grids import index_grid
from .requests import check
from .sizes import (
    INDEX,
    dims_of,
    emit_kernel,
    holds,
    index,
    is_number,
    is_open,
    product,
    put,
    same_size,
    simplified,
    sizes_in,
)

END = 2**31 - 1  # what exporters write for the end of an axis, or more
LARGEST_SIZE = 1 << 29  # of an axis of an input; the program refuses more where it matters
FAR = 1 << 16  # TVM reserves memory for min(n, bound) elements before it knows n


def open_slice(inputs: Inputs, attrs: Attrs) -> Any:
    """The slice; its axes must be constant."""
    data, dims = inputs[0], dims_of(inputs[0])
    starts, ends = _vector(inputs, attrs, 1, "starts"), _vector(inputs, attrs, 2, "ends")
    assert starts is not None and ends is not None  # the operator's signature wants them
    (count,) = known_dims(starts) or (1,)
    given_axes = _vector(inputs, attrs, 3, "axes")
    axes = np.arange(count) if given_axes is None else constant(given_axes)
    if axes is None:
        raise ValueError("axes must be constant where a size depends on data")
    places = [int(axis) % len(dims) for axis in axes.ravel()]
    steps = _vector(inputs, attrs, 4, "steps") or literal(np.ones(count, np.int64))
    strides = constant(steps)
    bounds = [known_elements(each) for each in (starts, ends)]
    extents = [dims[axis] for axis in places]
    if strides is None or any(each is None or _is_far(each, extents) for each in bounds):
        return _by_data(data, places, [starts, ends, steps])
    if 0 in strides:
        raise ValueError("a step of 0")
    sizes, begins = list(dims), [index(0) for _ in dims]
    stretches = [index(1) for _ in dims]
    columns = [each.ravel() for each in bounds if each is not None]
    fixed = constant(data) is not None
    for axis, start, last, step in zip(places, *columns, strides.ravel().tolist(), strict=True):
        end = last
        if _is_beyond(last, dims[axis]):
            check(dims[axis] <= last)
            end = END
        begins[axis] = _clipped(start, dims[axis], step)
        if fixed and step > 0 and _is_inside(start, end, dims[axis]):
            begins[axis] = index(start) if isinstance(start, int) else start
            sizes[axis] = _count(begins[axis], end, step)
        else:
            sizes[axis] = _count(begins[axis], _clipped(end, dims[axis], step), step)
        stretches[axis] = index(step)
    if all(is_number(step, 1) for step in stretches):
        ends = [simplified(begin + size) for begin, size in zip(begins, sizes, strict=True)]
        first, last = ([each[axis] for axis in places] for each in (begins, ends))
        slice_ = relax.op.strided_slice(data, places, first, last, assume_inbound=True)
        part = normalize(slice_)
        if all(map(same_size, dims_of(part), sizes)):
            return part

    def compute(data: te.Tensor, *lists: list[Expr]) -> te.Tensor:
        sizes, begins, stretches = lists
        return te.compute(
            sizes,
            lambda *i: data(
                *(b + n * s for b, n, s in zip(begins, i, stretches, strict=True)),
            ),
            name="sliced",
        )

    return emit_te(compute, data, sizes, begins, stretches, primfunc_name_hint="slice")


def _vector(inputs: Inputs, attrs: Attrs, position: int, name: str) -> Expr | None:
    """A parameter that is an input, or was an attribute before opset 10."""
    value = inputs[position]
    if value is None and name in attrs:
        return literal(np.array(attrs[name], np.int64))
    return value


def _is_far(bounds: Elements, extents: Sequence[Expr]) -> bool:
    """Whether a bound is a number that would reserve much memory."""
    return any(
        isinstance(bound, int) and FAR < bound < END
        for bound, extent in zip(bounds.ravel(), extents, strict=True)
        if not isinstance(extent, tirx.IntImm) and not _is_beyond(bound, extent)
    )


def _is_beyond(bound: Any, extent: Expr) -> bool:
    """Whether a bound is a number that no size of an input reaches."""
    opened = current_sizes()
    far = isinstance(bound, int) and LARGEST_SIZE <= bound < END
    return far and opened is not None and opened.knows(extent)


def _clipped(bound: Any, extent: Expr, step: int) -> Expr:
    """A bound held inside an axis."""
    if isinstance(bound, int):
        if step > 0 and bound >= END:
            return extent
        place = index(bound) if bound >= 0 else index(bound) + extent
    else:
        place = tirx.Select(bound < 0, bound + extent, bound)
    low, high = (index(0), extent) if step > 0 else (index(-1), extent - 1)
    return simplified(te.max(te.min(place, high), low))


def _is_inside(start: Any, end: Any, extent: Expr) -> bool:
    """Whether a slice of a table may be taken to lie in it: its end is a size of the inputs.

    The program refuses inputs for which it does not.
    """
    opened = current_sizes()
    if opened is None or isinstance(end, int) or not isinstance(extent, tirx.IntImm):
        return False
    first = index(start) if isinstance(start, int) else start
    if not (holds(first >= 0) and holds(end - first >= 0)):
        return False
    if not holds(end <= extent):
        if not opened.limit(end, int(extent)):
            return False
        check(end <= extent)
    return True


def _count(begin: Expr, end: Expr, step: int) -> Expr:
    """How many steps there are from a bound to another."""
    length = end - begin if step > 0 else begin - end
    up = te.max(length, index(0)) + index(abs(step) - 1)
    return simplified(tirx.floordiv(up, index(abs(step))))


def _by_data(data: Expr, axes: Sequence[int], vectors: Sequence[Expr]) -> Expr:
    """Bounds are read and clipped when the program runs."""
    dims = dims_of(data)
    count = len(axes)
    tensors = [reshaped(cast(each, INDEX), (count,)) for each in vectors]

    def body(ins: list[Expr], outs: list[Expr], *extents: Expr) -> None:
        (starts, ends, steps), (begins, counts) = ins, outs
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

    results = [([count], INDEX), ([count + 1], INDEX)]
    extents = [dims[axis] for axis in axes]
    begins, counts = emit_kernel("bounds", tensors, results, body, extents)
    sizes = list(dims)
    for axis, size in zip(axes, sizes_in(counts), strict=True):
        sizes[axis] = size

    def compute(data: te.Tensor, begins: te.Tensor, steps: te.Tensor) -> te.Tensor:
        def element(*i: Expr) -> Expr:
            places = list(i)
            for place, axis in enumerate(axes):
                places[axis] = begins[place] + i[axis] * steps[place]
            return data(*places)

        return te.compute(sizes, element, name="sliced")

    return emit_te(compute, data, begins, tensors[2], primfunc_name_hint="slice")


# Operators that read elements at places that are computed, or from data of open sizes.
#
# Indices come from the user's feeds: each is held inside the data, and data without elements is not
# read.


def gather(inputs: Inputs, attrs: Attrs) -> Any:
    """Slices of open data, or at an open number of places."""
    data, indices = inputs
    before, places = dims_of(data), dims_of(indices)
    axis = attrs.get("axis", 0) % len(before)
    values = constant(indices)
    if values is not None and values.size == 1:
        return _slice_at(data, axis, int(values.item()), places)
    end = axis + len(places)
    shape = [*before[:axis], *places, *before[axis + 1 :]]
    grid = index_grid(indices)
    if grid is not None and grid.counts(places) and same_size(product(places), before[axis]):
        return relax.op.reshape(data, relax.ShapeExpr(shape))
    check_choice([before[axis]], places)

    def compute(data: te.Tensor, indices: te.Tensor) -> te.Tensor:
        def element(*i: Expr) -> Expr:
            place = _held(indices(*i[axis:end]), data.shape[axis])
            return _read(data, [*i[:axis], place, *i[end:]])

        return te.compute(shape, element, name="gathered")

    return emit_te(compute, data, indices, primfunc_name_hint="gather")


def _slice_at(data: Expr, axis: int, place: int, places: Sequence[Expr]) -> Expr:
    """One slice along an open axis, which the program checks to be there."""
    dims = dims_of(data)
    check(dims[axis] > place if place >= 0 else dims[axis] >= -place)
    first = index(place) if place >= 0 else dims[axis] + place
    part = relax.op.strided_slice(data, [axis], [first], [first + 1], assume_inbound=True)
    sizes = [*dims[:axis], *places, *dims[axis + 1 :]]
    return relax.op.reshape(normalize(part), relax.ShapeExpr(sizes))


def from_the_front(data: Expr, indices: Expr, first: int) -> Expr:
    """Places none of which is negative; their last axis stands for axes of `data` from `first`."""
    dtype = dtype_of(indices)
    if dtype.startswith("uint"):
        return indices
    shape = normalize(relax.op.shape_of(data))
    sizes = normalize(relax.op.shape_to_tensor(shape))
    sizes = normalize(
        relax.op.strided_slice(sizes, axes=[0], begin=[first], end=[first + dims_of(indices)[-1]])
    )
    if dtype != "int64":
        sizes = normalize(relax.op.astype(sizes, dtype))
    negative = normalize(relax.op.less(indices, literal(np.array(0, dtype))))
    turned = normalize(relax.op.add(indices, sizes))
    return normalize(relax.op.where(negative, turned, indices))


@operator("GatherElements")
def _gather_elements(inputs: Inputs, attrs: Attrs) -> Any:
    data, indices = inputs
    axis, places = attrs.get("axis", 0) % len(dims_of(data)), constant(indices)
    if not is_open(data) and places is not None:
        size = known_dims(data)[axis]
        fixed = np.where(places < 0, places + size, places).astype(np.int64)
        return relax.op.gather_elements(data, literal(fixed), axis)
    check_choice(dims_of(data), dims_of(indices))

    def compute(data: te.Tensor, indices: te.Tensor) -> te.Tensor:
        def element(*i: Expr) -> Expr:
            places = [_held(place, size) for place, size in zip(i, data.shape, strict=True)]
            places[axis] = _held(indices(*i), data.shape[axis])
            return _read(data, places)

        return te.compute(indices.shape, element, name="gathered")

    return emit_te(compute, data, indices, primfunc_name_hint="gather_elements")


@operator("GatherND")
def _gather_nd(inputs: Inputs, attrs: Attrs) -> Any:
    data, indices = inputs
    before, places = dims_of(data), dims_of(indices)
    batch, depth = attrs.get("batch_dims", 0), places[-1]
    if not isinstance(depth, tirx.IntImm):
        raise ValueError("the number of indices for each place depends on data")
    if not is_open(data) and not is_open(indices):
        return relax.op.gather_nd(data, from_the_front(data, indices, batch), batch)
    first, last = len(places) - 1, batch + int(depth)
    shape = [*places[:-1], *before[last:]]
    check_choice(before[batch:last], places[:-1])

    def compute(data: te.Tensor, indices: te.Tensor) -> te.Tensor:
        def element(*i: Expr) -> Expr:
            found = [
                _held(indices(*i[:first], index(number)), data.shape[batch + number])
                for number in range(int(depth))
            ]
            return _read(data, [*i[:batch], *found, *i[first:]])

        return te.compute(shape, element, name="gathered")

    return emit_te(compute, data, indices, primfunc_name_hint="gather_nd")


def check_choice(extents: Sequence[Expr], places: Sequence[Expr]) -> None:
    """Has the program check that there are elements to choose from, if one is to be chosen."""
    # There are none to be chosen where a size of both is 0.
    rest = [size for size in extents if not any(same_size(size, place) for place in places)]
    check(tirx.any(product(rest) > 0, tirx.EQ(product(places), index(0))))


def check_extreme(data: Expr, axis: int) -> None:
    """Likewise for the place of an extreme element along an axis."""
    check(dims_of(data)[axis] > 0)


def _held(place: Expr, extent: Expr) -> Expr:
    """A place inside an axis; negative ones count from its end."""
    dtype = str(place.ty.dtype)
    place = tirx.Cast(INDEX, place) if dtype != INDEX else place
    wrapped = place if dtype.startswith("u") else tirx.Select(place < 0, place + extent, place)
    return te.max(te.min(wrapped, extent - 1), index(0))


def _read(data: te.Tensor, places: Sequence[Expr]) -> Expr:
    """An element; 0 if there is none."""
    sizes = [size for size in data.shape if not isinstance(size, tirx.IntImm)]
    if not sizes:
        return data(*places)
    some = product(sizes) > 0
    return tirx.if_then_else(some, data(*places), tirx.const(0, str(data.dtype)))
