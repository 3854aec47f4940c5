"""A model whose shapes are not all known yet: read and checked, to be imported for given shapes."""

from __future__ import annotations

from dataclasses import dataclass

import onnx
from onnx import helper

from microkernels.errors import ShapeError

from ..tensors import OpenTensorInfo
from .check_model import check_model
from .freeze_shapes import declared_dims
from .load_graph import load_graph
from .read_model import ModelLike, read_model


@dataclass(frozen=True)
class OpenModel:
    """A checked model and its interface as declared."""

    proto: onnx.ModelProto
    inputs: tuple[OpenTensorInfo, ...]
    outputs: tuple[OpenTensorInfo, ...]


def open_model(model: ModelLike) -> OpenModel:
    """Reads a model without giving its dimensions values.

    Raises
    ------
    ModelError
        The model cannot be read or is not valid.
    ShapeError
        The model does not tell the rank of an input.
    """
    proto = read_model(model)
    check_model(proto)
    inputs = tuple(_info(item) for item in load_graph(proto).inputs)
    return OpenModel(proto, inputs, tuple(_info(item) for item in proto.graph.output))


def _info(item: onnx.ValueInfoProto) -> OpenTensorInfo:
    dims = declared_dims(item.type)
    if dims is None:
        raise ShapeError(
            f"the rank of {item.name!r} is unknown; give its shape, for example "
            f"shapes={{{item.name!r}: (1, 128)}}"
        )
    dtype = helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type)
    return OpenTensorInfo(item.name, dims, str(dtype))
