"""Rewrites a model of bfloat16 as one of float32, which ONNX Runtime has kernels for on a CPU.

    y: bf16 = MatMul(x: bf16, w: bf16)
    ->
    y: f32 = MatMul(x: f32, w: f32)

Every bfloat16 is a float32, so inputs and weights stay what they are, and what is computed of them
is the exact result next to one that is rounded to bfloat16 on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

_Part: TypeAlias = onnx.TensorProto | onnx.AttributeProto | onnx.ValueInfoProto
# Attributes that name an element type.
_TYPES = frozenset({"to", "dtype", "output_dtype"})


def wide_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in float32; the given one, unchanged, if nothing of it is bfloat16."""
    if not any(_is_narrow(part) for part in _parts(model.graph)):
        return model
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for part in _parts(wide.graph):
        if not _is_narrow(part):
            continue
        if isinstance(part, TensorProto):
            values = numpy_helper.to_array(part).astype(np.float32)
            part.CopyFrom(numpy_helper.from_array(values, part.name))
        elif isinstance(part, AttributeProto):
            part.i = TensorProto.FLOAT
        else:
            part.type.tensor_type.elem_type = TensorProto.FLOAT
    return wide


def _is_narrow(part: _Part) -> bool:
    if isinstance(part, TensorProto):
        return part.data_type == TensorProto.BFLOAT16
    if isinstance(part, AttributeProto):
        return part.name in _TYPES and part.i == TensorProto.BFLOAT16
    return part.type.tensor_type.elem_type == TensorProto.BFLOAT16


def _parts(graph: onnx.GraphProto) -> Iterator[_Part]:
    """All that has a type, in bodies of loops and branches too."""
    yield from (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            elif attribute.type == AttributeProto.GRAPH:
                yield from _parts(attribute.g)
            else:
                yield attribute
