"""Operators that move elements without looking at them: transposes, splits, triangles, joins."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ...expressions import (
    OUTPUTS,
    Attrs,
    Inputs,
    constant,
    normalize,
    number,
    rank_of,
)
from ..data_sized.sizes import dims_of
from ..operators import operator


@operator("Transpose")
def _transpose(inputs: Inputs, attrs: Attrs) -> Any:
    if not rank_of(inputs[0]):
        return inputs[0]
    order = attrs.get("perm")
    return relax.op.permute_dims(inputs[0], None if order is None else list(order))


@operator("Concat")
def _concat(inputs: Inputs, attrs: Attrs) -> Any:
    return relax.op.concat(list(inputs), axis=attrs["axis"])


@operator("Split")
def _split(inputs: Inputs, attrs: Attrs) -> Any:
    sizes, position = attrs.get("split"), inputs[1]
    if position is not None:
        known = constant(position)
        if known is None:
            raise ValueError("the sizes of the parts are computed at run time")
        sizes = known.tolist()
    axis = attrs.get("axis", 0)
    if sizes is None:
        return relax.op.split(inputs[0], len(attrs[OUTPUTS]), axis)
    return relax.op.split(inputs[0], [int(end) for end in np.cumsum(sizes)[:-1]], axis)


@operator("DepthToSpace")
def _depth_to_space(inputs: Inputs, attrs: Attrs) -> Any:
    batch, channels, height, width = dims_of(inputs[0])
    size, mode = attrs["blocksize"], attrs.get("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise ValueError(f"mode={mode!r} is neither DCR nor CRD")
    left = channels // (size * size)
    if mode == "DCR":
        split, order = (batch, size, size, left, height, width), [0, 3, 4, 1, 5, 2]
    else:
        split, order = (batch, left, size, size, height, width), [0, 1, 4, 2, 5, 3]
    apart = normalize(relax.op.reshape(inputs[0], split))
    moved = normalize(relax.op.permute_dims(apart, order))
    return relax.op.reshape(moved, (batch, left, height * size, width * size))


@operator("Trilu")
def _trilu(inputs: Inputs, attrs: Attrs) -> Any:
    x, above = inputs[0], bool(attrs.get("upper", 1))
    shift = inputs[1]
    diagonal = np.array(0) if shift is None else constant(shift)
    if diagonal is not None:
        return (relax.op.triu if above else relax.op.tril)(x, int(diagonal.item()))
    *_, rows, columns = dims_of(x)
    row, column = (normalize(relax.op.arange(0, size, 1, "int64")) for size in (rows, columns))
    row = normalize(relax.op.reshape(row, (rows, 1)))
    column = normalize(relax.op.reshape(column, (1, columns)))
    distance = normalize(relax.op.subtract(column, row))
    shift = normalize(relax.op.astype(shift, "int64"))
    compare = relax.op.greater_equal if above else relax.op.less_equal
    kept = normalize(compare(distance, shift))
    kept = normalize(relax.op.broadcast_to(kept, relax.ShapeExpr(dims_of(x))))
    return relax.op.where(kept, x, number(x, 0))


@operator("SpaceToDepth")
def _space_to_depth(inputs: Inputs, attrs: Attrs) -> Any:
    batch, channels, height, width = dims_of(inputs[0])
    size, mode = attrs["blocksize"], attrs.get("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise ValueError(f"mode={mode!r} is neither DCR nor CRD")
    blocks = (batch, channels, height // size, size, width // size, size)
    split = normalize(relax.op.reshape(inputs[0], blocks))
    order = [0, 3, 5, 1, 2, 4] if mode == "DCR" else [0, 1, 3, 5, 2, 4]
    moved = normalize(relax.op.permute_dims(split, order))
    return relax.op.reshape(moved, (batch, channels * size * size, height // size, width // size))
