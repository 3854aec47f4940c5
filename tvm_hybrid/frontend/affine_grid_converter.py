"""Converts AffineGrid of open sizes; TVM's converter knows only numbers.

of any number of images of known extents    ->    R.image.affine_grid
of extents that follow from other sizes     ->    a kernel with the formula of that operator
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

from .data_sized.kernels import index
from .data_sized.requests import check, check_equal, requested_sizes
from .data_sized.sizes import dims_of, is_open
from .expressions import Converter, Expr, constant, dtype_of

_WIDTH = 2.0 - 1e-7  # from the first corner to the last one, as TVM has it


def _affine_grid(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    theta, size = inputs
    if not is_open(theta) and constant(size) is not None:
        return None
    batch, rows, columns = dims_of(theta)
    images, _, *extents = requested_sizes(builder, size)
    axes = len(extents)
    for found, wanted in ((batch, images), (rows, index(axes)), (columns, index(axes + 1))):
        check_equal(builder, found, wanted, f"theta {theta.ty.shape} for a grid of {axes} axes")
    corners = bool(attrs.get("align_corners", 0))
    if not all(isinstance(extent, tirx.IntImm) for extent in extents):
        return _open_grid(builder, theta, extents, corners)
    wanted = tuple(map(int, extents))
    grid = builder.normalize(relax.op.image.affine_grid(theta, wanted, corners))
    return relax.op.permute_dims(grid, [0, *range(2, axes + 2), 1])


def _open_grid(
    builder: relax.BlockBuilder, theta: Expr, extents: Sequence[Expr], corners: bool
) -> Expr:
    """The grid, [images, *extents, axes]."""
    if corners:
        for extent in extents:  # a single element has no two corners
            check(builder, extent > 1, "align_corners wants two elements along each axis")
    axes, dtype = len(extents), dtype_of(theta)

    def compute(theta: te.Tensor, extents: list[Expr]) -> te.Tensor:
        def element(*place: Expr) -> Expr:
            image, *elements, axis = place
            value = theta(image, axis, index(axes))
            for number, (at, extent) in enumerate(zip(elements, extents, strict=True)):
                coordinate = _coordinate(at, extent, corners, dtype)
                value = value + theta(image, axis, index(axes - 1 - number)) * coordinate
            return value

        shape = [theta.shape[0], *extents, index(axes)]
        return te.compute(shape, element, name="grid")

    return builder.emit_te(compute, theta, list(extents), primfunc_name_hint="affine_grid")


def _coordinate(at: Expr, extent: Expr, corners: bool, dtype: str) -> Expr:
    """Where an element lies, from -1 to 1; constants are rounded from float64, as TVM does it."""
    one = tirx.const(1, "float64")
    if corners:
        steps = te.max(extent - 1, index(1)).astype("float64")
        start, step = tirx.const(-1, "float64"), tirx.const(_WIDTH, "float64") / steps
    else:
        elements = te.max(extent, index(1)).astype("float64")
        start, step = one / elements - one, tirx.const(2, "float64") / elements
    return start.astype(dtype) + at.astype(dtype) * step.astype(dtype)


AFFINE_GRID_CONVERTERS: dict[str, Converter] = {"AffineGrid": _affine_grid}
