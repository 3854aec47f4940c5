"""Converts Hardmax, along an axis of any size.

TVM's converter takes axes of known sizes only, and compares in int64.

    Hardmax(x: [n, m], axis=1)    ->    argmax(x, 1): [n, 1] == arange(m), as x's type

Of equal elements the first one is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from .data_sized.sizes import dims_of
from .expressions import Converter, cast, dtype_of


def _hardmax(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    x, dims = inputs[0], dims_of(inputs[0])
    axis = attrs.get("axis", -1) % len(dims)
    first = builder.normalize(relax.op.argmax(x, axis, keepdims=True))
    first = cast(builder, first, "int32")
    places = builder.normalize(relax.op.arange(0, dims[axis], 1, "int32"))
    column = relax.ShapeExpr([dims[axis], *[1] * (len(dims) - 1 - axis)])
    every = builder.normalize(relax.op.reshape(places, column))
    return relax.op.astype(builder.normalize(relax.op.equal(first, every)), dtype_of(x))


HARDMAX_CONVERTERS: dict[str, Converter] = {"Hardmax": _hardmax}
