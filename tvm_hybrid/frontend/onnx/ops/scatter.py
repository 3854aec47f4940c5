"""Operators that write updates at places given by indices.

Negative indices count from the end, as ONNX says; Relax's operators take none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from ..data_sized.slices import from_the_front
from ..graph.expressions import Converter

_REDUCTIONS = ("none", "add", "mul", "min", "max")


def _reduction(attrs: dict[str, Any]) -> str:
    name = attrs.get("reduction", b"none").decode()
    if name not in _REDUCTIONS:
        raise ValueError(f"reduction={name!r} is none of {', '.join(_REDUCTIONS)}")
    return "update" if name == "none" else name


def _scatter_elements(
    builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]
) -> Any:
    data, indices, updates = inputs
    axis = attrs.get("axis", 0)
    return relax.op.scatter_elements(data, indices, updates, axis, _reduction(attrs))


def _scatter_nd(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    data, indices, updates = inputs
    reduction = _reduction(attrs)
    indices = from_the_front(builder, data, indices, 0)
    return relax.op.scatter_nd(data, indices, updates, reduction)


SCATTER_CONVERTERS: dict[str, Converter] = {
    "Scatter": _scatter_elements,  # its name before opset 11
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
}
