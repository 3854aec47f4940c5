"""Checks indices of Gather, Scatter and the like when a model runs, where a user asks for it.

    lv = check_indices(indices, n)      # a kernel: an error, or the indices as they are
    R.take(data, lv, axis=0)            # data: [n, 4]

Without the check an index out of range is clipped (relay_passes/canonicalize/clip_indices.py).
Constant indices of static sizes are checked at import.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import tvm.tirx.script.builder.ir as I
from tvm import relax, tirx

from microkernels.base.errors import OUT_OF_RANGE

from .data_sized.kernels import emit_kernel, put
from .data_sized.sizes import dims_of, product
from .expressions import Expr, constant, dtype_of
from .graph import describe, is_standard

_POSITION = 1  # of the indices among the inputs
# The sizes of data that the elements of an index choose from: one, or one for each coordinate.
_Sizes = Callable[[Sequence[Any], dict[str, Any]], list[Expr]]


def _along_axis(inputs: Sequence[Any], attrs: dict[str, Any]) -> list[Expr]:
    dims = dims_of(inputs[0])
    return [dims[attrs.get("axis", 0) % len(dims)]]


def _of_coordinates(inputs: Sequence[Any], attrs: dict[str, Any]) -> list[Expr]:
    first, (*_, count) = attrs.get("batch_dims", 0), dims_of(inputs[_POSITION])
    if not isinstance(count, tirx.IntImm):
        raise ValueError("the number of coordinates depends on data")
    return dims_of(inputs[0])[first : first + int(count)]


_SIZES: dict[str, _Sizes] = {
    "Gather": _along_axis,
    "GatherElements": _along_axis,
    "GatherND": _of_coordinates,
    "Scatter": _along_axis,
    "ScatterElements": _along_axis,
    "ScatterND": _of_coordinates,
}


def with_checked_indices(
    builder: relax.BlockBuilder,
    node: onnx.NodeProto,
    inputs: Sequence[Any],
    attrs: dict[str, Any],
) -> list[Any]:
    """The inputs of a node; its indices, if it has any, are those that the program has checked.

    Raises
    ------
    ValueError
        A constant index is out of range.
    """
    sizes_of = _SIZES.get(node.op_type) if is_standard(node) else None
    if sizes_of is None:
        return list(inputs)
    sizes, indices, values = sizes_of(inputs, attrs), inputs[_POSITION], constant(inputs[_POSITION])
    message = f"{OUT_OF_RANGE}: {describe(node)}: {_allowed(sizes, node.input[0])}"
    if values is not None and all(isinstance(size, tirx.IntImm) for size in sizes):
        extents = np.array([int(size) for size in sizes])
        if np.any(values < -extents) or np.any(values >= extents):
            raise ValueError(message)
        return list(inputs)
    return [inputs[0], _checked(builder, indices, sizes, message), *inputs[_POSITION + 1 :]]


def _allowed(sizes: Sequence[Expr], data: str) -> str:
    """Which indices there are."""
    known = [int(size) if isinstance(size, tirx.IntImm) else None for size in sizes]
    texts = ["-n to n - 1 (n: its size)" if n is None else f"{-n} to {n - 1}" for n in known]
    if len(texts) == 1:
        return f"indices of {data!r} are {texts[0]}"
    return f"coordinates of {data!r} are {'; '.join(texts)}"


def _checked(
    builder: relax.BlockBuilder, indices: Expr, sizes: Sequence[Expr], message: str
) -> Expr:
    """The indices, by a kernel that fails at the first one that is out of range."""
    shape, columns = dims_of(indices), len(sizes)
    rows = product(shape[:-1] if columns > 1 else shape)
    flat = builder.emit(relax.op.reshape(indices, relax.ShapeExpr([rows, columns])))

    def body(ins: list[Expr], outs: list[Expr], *sizes: Expr) -> None:
        with I.serial(ins[0].shape[0]) as row:
            for column, size in enumerate(sizes):
                place = tirx.Cast("int64", ins[0][row, column])
                inside = tirx.all(place >= tirx.const(0, "int64") - size, place < size)
                with I.Assert(inside, message, "ValueError"):
                    pass
                put(outs[0], ins[0][row, column], row, column)

    made = [([rows, columns], dtype_of(indices))]
    (found,) = emit_kernel(builder, "check_indices", [flat], made, body, list(sizes))
    return builder.emit(relax.op.reshape(found, relax.ShapeExpr(shape)))
