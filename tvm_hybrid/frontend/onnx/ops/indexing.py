"""Operators that read and write elements at places given by indices or ranges.

Negative indices count from the end, as ONNX says; Relax's operators take none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, tirx

from ...expressions import (
    Attrs,
    Expr,
    Inputs,
    cast,
    constant,
    dtype_of,
    literal,
    normalize,
    static_dims,
)
from ..data_sized.index_grids import index_grid
from ..data_sized.requests import requested_sizes
from ..data_sized.sizes import dims_of, index, reshaped_to, scalar_of
from ..data_sized.slices import from_the_front, gather, open_slice
from ..operators import operator

MAX_DEPTH = 2**31 - 1
_REDUCTIONS = ("none", "add", "mul", "min", "max")


def _reduction(attrs: Attrs) -> str:
    name = attrs.get("reduction", "none")
    if name not in _REDUCTIONS:
        raise ValueError(f"reduction={name!r} is none of {', '.join(_REDUCTIONS)}")
    return "update" if name == "none" else name


@operator("Scatter", static=True)
@operator("ScatterElements")
def _scatter_elements(inputs: Inputs, attrs: Attrs) -> Any:
    data, indices, updates = inputs
    axis = attrs.get("axis", 0)
    return relax.op.scatter_elements(data, indices, updates, axis, _reduction(attrs))


@operator("ScatterND")
def _scatter_nd(inputs: Inputs, attrs: Attrs) -> Any:
    data, indices, updates = inputs
    reduction = _reduction(attrs)
    if not isinstance(dims_of(indices)[-1], tirx.IntImm):
        raise ValueError("how many coordinates an index has must be known")
    indices = from_the_front(data, indices, 0)
    return relax.op.scatter_nd(data, indices, updates, reduction)


@operator("Gather")
def _gather(inputs: Inputs, attrs: Attrs) -> Any:
    data, indices = inputs[0], inputs[1]
    dims = dims_of(data)
    axis = attrs.get("axis", 0) % len(dims)
    if not isinstance(dims[axis], tirx.IntImm):
        return gather(inputs, attrs)
    extent = int(dims[axis])
    if not extent and static_dims(indices) is None:
        return gather(inputs, attrs)
    values = constant(indices)
    if values is not None:
        if values.size and not (-extent <= values.min() and values.max() < extent):
            raise ValueError(
                f"indices from {values.min()} to {values.max()} are outside an axis of {extent}"
            )
        fixed = np.where(values < 0, values + extent, values).astype(np.int64)
        result = (*dims[:axis], *fixed.shape, *dims[axis + 1 :])
        if fixed.size and (np.diff(fixed.ravel()) == 1).all():
            first = int(fixed.ravel()[0])
            part = relax.op.strided_slice(data, [axis], [first], [first + fixed.size])
            return relax.op.reshape(normalize(part), result)
        return relax.op.take(data, literal(fixed), axis, mode="clip")
    grid = index_grid(indices)
    run = None if grid is None else grid.run(dims_of(indices), extent)
    if run is not None:
        part = relax.op.strided_slice(data, [axis], [run[0]], [run[1]], assume_inbound=True)
        shape = [*dims[:axis], *dims_of(indices), *dims[axis + 1 :]]
        return relax.op.reshape(normalize(part), relax.ShapeExpr(shape))
    dtype = dtype_of(indices)
    if not dtype.startswith("uint"):
        # ONNX counts negative indices from the end.
        wrapped = relax.op.add(indices, literal(np.array(extent, dtype)))
        negative = relax.op.less(indices, literal(np.array(0, dtype)))
        indices = normalize(relax.op.where(negative, wrapped, indices))
    # Indices come from the user's feeds: clip keeps a bad one from reading foreign memory.
    return relax.op.take(data, indices, axis, mode="clip")


@operator("Slice")
def _slice(inputs: Inputs, attrs: Attrs) -> Any:
    data = inputs[0]
    dims = static_dims(data)
    if dims is None:
        return open_slice(inputs, attrs)
    given = [constant(inputs[i]) if i < len(inputs) and inputs[i] is not None else None
             for i in range(1, 5)]  # fmt: skip
    if any(value is not None and given[i] is None for i, value in enumerate(inputs[1:5])):
        return open_slice(inputs, attrs)  # bounds that are computed
    starts = given[0] if given[0] is not None else np.array(attrs["starts"])
    ends = given[1] if given[1] is not None else np.array(attrs["ends"])
    default = np.array(attrs.get("axes", range(len(starts))))
    axes = given[2] if given[2] is not None else default
    steps = given[3] if given[3] is not None else np.ones(len(starts), np.int64)
    forward: list[tuple[int, int, int, int]] = []
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        position = int(axis) % len(dims)
        bounds = slice(int(start), int(end), int(step)).indices(dims[position])
        if bounds[2] > 0:
            forward.append((position, *bounds))
        else:
            taken = literal(np.arange(*bounds, dtype=np.int64))
            data = normalize(relax.op.take(data, taken, position, mode="clip"))
    if not forward:
        return data
    along, begins, stops, strides = (list(column) for column in zip(*forward, strict=True))
    stops = list(map(max, begins, stops))
    return relax.op.strided_slice(data, along, begins, stops, strides)


@operator("OneHot")
def _one_hot(inputs: Inputs, attrs: Attrs) -> Any:
    """A comparison with all classes.

        OneHot(indices, depth, [off, on], axis)
            ->  where(expand_dims(indices, axis) == [0, 1, ..., depth - 1], on, off)

    Negative indices count from the end; what is outside is equal to no class. The depth may follow
    from sizes, or be found in data. All sizes may be open.
    """
    indices, given, values = inputs
    depth = constant(given)
    if depth is not None and (depth.size != 1 or not 0 <= depth.item() <= MAX_DEPTH):
        raise ValueError(f"its depth is {depth.tolist()}")
    dims = dims_of(indices)
    rank = len(dims) + 1
    axis = attrs.get("axis", -1)
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} of a result of rank {rank}")
    axis %= rank
    (count,) = requested_sizes(given) if depth is None else [index(int(depth.item()))]
    number = cast(indices, "int64")
    if not dtype_of(indices).startswith("uint"):
        total = literal(np.array(int(count))) if depth is not None else scalar_of(count)
        negative = relax.op.less(number, literal(np.array(0)))
        number = normalize(relax.op.where(negative, relax.op.add(number, total), number))
    number = reshaped_to(number, [*dims[:axis], index(1), *dims[axis:]])
    behind = [index(1)] * (rank - 1 - axis)
    if depth is not None:
        every: Expr = literal(np.arange(int(count)).reshape(-1, *[1] * len(behind)))
    else:
        every = relax.op.arange(0, count, 1, "int64")
        every = reshaped_to(normalize(every), [count, *behind])
    off, on = (_element(values, place) for place in (0, 1))
    return relax.op.where(relax.op.equal(number, every), on, off)


def _element(values: Expr, place: int) -> Expr:
    array = constant(values)
    if array is not None:
        return literal(np.asarray(array[place]))
    return normalize(_gather(Inputs([values, literal(np.array(place))]), {}))
