"""Operators that make or read shapes, where sizes depend on data."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import relax, te, tirx

from ...expressions import Attrs, Inputs, constant, emit_te, known_dims, literal
from ..operators import operator
from .choice import broadcast, common_size
from .requests import check_equal, requested_sizes, reshaped_sizes
from .sizes import dims_of, index, is_open, product, reshaped_to, scalar_of


@operator("Shape")
def _shape(inputs: Inputs, attrs: Attrs) -> Any:
    sizes = dims_of(inputs[0])[attrs.get("start", 0) : attrs.get("end")]
    return relax.op.shape_to_tensor(relax.ShapeExpr(sizes))


@operator("Size")
def _size(inputs: Inputs, attrs: Attrs) -> Any:
    return scalar_of(product(dims_of(inputs[0])))


@operator("Reshape")
def _reshape(inputs: Inputs, attrs: Attrs) -> Any:
    data, shape = inputs
    wanted = constant(shape)
    if not is_open(data) and wanted is not None:
        literally = attrs.get("allowzero", 0) and not wanted.all()
        sizes = wanted.tolist()
        return relax.op.reshape(data, relax.ShapeExpr(sizes) if literally else sizes)
    sizes = reshaped_sizes(dims_of(data), shape, not attrs.get("allowzero", 0))
    check_equal(product(sizes), product(dims_of(data)))
    return reshaped_to(data, sizes)


@operator("Flatten")
def _flatten(inputs: Inputs, attrs: Attrs) -> Any:
    dims = dims_of(inputs[0])
    axis = attrs.get("axis", 1)
    axis = axis + len(dims) if axis < 0 else axis
    return reshaped_to(inputs[0], [product(dims[:axis]), product(dims[axis:])])


@operator("Unsqueeze")
def _unsqueeze(inputs: Inputs, attrs: Attrs) -> Any:
    axes = _axes(inputs, attrs)
    if axes is None:
        raise ValueError("axes must be constant")
    rank = len(dims_of(inputs[0])) + len(axes)
    return relax.op.expand_dims(inputs[0], sorted(axis % rank for axis in axes))


@operator("Squeeze")
def _squeeze(inputs: Inputs, attrs: Attrs) -> Any:
    opened, axes = is_open(inputs[0]), _axes(inputs, attrs)
    if axes is None and (opened or inputs[1] is not None):
        raise ValueError("axes must be given and constant")
    if axes is None:
        return relax.op.squeeze(inputs[0])
    dims = dims_of(inputs[0])
    if not opened:
        cut = [int(dims[axis]) for axis in axes if int(dims[axis]) != 1]
        if cut:
            raise ValueError(f"an axis of {cut[0]} elements cannot be left out")
        return relax.op.squeeze(inputs[0], [int(axis) for axis in axes])
    dropped = {axis % len(dims) for axis in axes}
    for axis in dropped:
        check_equal(dims[axis], index(1))
    return reshaped_to(inputs[0], [d for i, d in enumerate(dims) if i not in dropped])


def _axes(inputs: Inputs, attrs: Attrs) -> list[int] | None:
    """The axes, from an attribute or a constant input."""
    value = inputs[1]
    found = attrs.get("axes") if value is None else constant(value)
    return None if found is None else [int(axis) for axis in np.ravel(found)]


@operator("Expand")
def _expand(inputs: Inputs, attrs: Attrs) -> Any:
    data, shape = inputs
    wanted = constant(shape)
    if not is_open(data) and wanted is not None:
        full = np.broadcast_shapes(known_dims(data), tuple(wanted))
        return relax.op.broadcast_to(data, relax.ShapeExpr(full))
    dims, asked = dims_of(data), requested_sizes(shape)
    rank = max(len(dims), len(asked))
    rows = [[index(1)] * (rank - len(each)) + each for each in (dims, asked)]
    common = [common_size(pair) for pair in zip(*rows, strict=True)]
    return broadcast(data, common)


@operator("ConstantOfShape")
def _constant_of_shape(inputs: Inputs, attrs: Attrs) -> Any:
    value = numpy_helper.to_array(attrs["value"]) if "value" in attrs else np.zeros(1, np.float32)
    sizes = requested_sizes(inputs[0])
    return broadcast(literal(value.reshape(())), sizes)


@operator("Tile")
def _tile(inputs: Inputs, attrs: Attrs) -> Any:
    data, repeats = inputs
    known = constant(repeats)
    if not is_open(data) and known is not None:
        return relax.op.tile(data, known.tolist())
    dims, counts = dims_of(data), requested_sizes(repeats)
    sizes = [size * count for size, count in zip(dims, counts, strict=True)]

    def compute(data: te.Tensor) -> te.Tensor:
        return te.compute(
            sizes,
            lambda *i: data(
                *(
                    tirx.floormod(place, te.max(size, 1))
                    for place, size in zip(i, dims, strict=True)
                )
            ),
            name="tiled",
        )

    return emit_te(compute, data, primfunc_name_hint="tile")
