"""ModelSurface: what an ONNX model says of itself and its inputs; nodes and weights are skipped."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping
from io import BufferedIOBase
from pathlib import Path
from typing import Any, NamedTuple

import onnx

from ..frontend.wire_format import BYTES, WireError, fields
from ..model_input import is_onnx
from .model_metadata import ModelMetadata

_MODEL, _GRAPH = onnx.ModelProto, onnx.GraphProto
# Fields of a model and of its graph that are read; all others are passed over.
_OF_MODEL = (
    _MODEL.PRODUCER_NAME_FIELD_NUMBER,
    _MODEL.DOMAIN_FIELD_NUMBER,
    _MODEL.MODEL_VERSION_FIELD_NUMBER,
    _MODEL.DOC_STRING_FIELD_NUMBER,
    _MODEL.METADATA_PROPS_FIELD_NUMBER,
)
_OF_GRAPH = (
    _GRAPH.NAME_FIELD_NUMBER,
    _GRAPH.DOC_STRING_FIELD_NUMBER,
    _GRAPH.INPUT_FIELD_NUMBER,
)


class ModelSurface(NamedTuple):
    """What a model says of itself.

    Attributes
    ----------
    metadata : ModelMetadata
        Its texts.
    dimensions : tuple of (str, str)
        Name and denotation of every dimension of its inputs that has a name.
    """

    metadata: ModelMetadata
    dimensions: tuple[tuple[str, str], ...]

    @staticmethod
    def of(model: Any) -> ModelSurface:
        """Reads a path, bytes or a ModelProto; of anything else there is nothing to say.

        What is wrong with a model is said by whoever compiles it.
        """
        try:
            return _surface(_light(model)) if is_onnx(model) else _NOTHING
        except (OSError, ValueError, WireError):
            return _NOTHING

    def sizes(self, by_name: Mapping[str, int], by_denotation: Mapping[str, int]) -> dict[str, int]:
        """Those of the sizes that are for dimensions of the model, by name."""
        sizes = {name: by_denotation[d] for name, d in self.dimensions if d in by_denotation}
        return sizes | {name: by_name[name] for name, _ in self.dimensions if name in by_name}


_NOTHING = ModelSurface(ModelMetadata(), ())


def _surface(model: onnx.ModelProto) -> ModelSurface:
    metadata = ModelMetadata(
        producer_name=model.producer_name,
        graph_name=model.graph.name,
        domain=model.domain,
        description=model.doc_string,
        graph_description=model.graph.doc_string,
        version=model.model_version,
        custom_metadata_map={each.key: each.value for each in model.metadata_props},
    )
    dimensions = tuple(
        (dimension.dim_param, dimension.denotation)
        for value in model.graph.input
        for dimension in value.type.tensor_type.shape.dim
        if dimension.dim_param
    )
    return ModelSurface(metadata, dimensions)


def _light(model: Any) -> onnx.ModelProto:
    """A model of just the fields that are read."""
    if isinstance(model, onnx.ModelProto):
        return model
    if isinstance(model, str | os.PathLike):
        with Path(model).open("rb") as file:
            return _picked(file, os.fstat(file.fileno()).st_size)
    data = bytes(model)
    return _picked(io.BytesIO(data), len(data))


def _picked(file: BufferedIOBase, size: int) -> onnx.ModelProto:
    model, graph = bytearray(), bytearray()
    for field in fields(file, 0, size):
        if field.number == _MODEL.GRAPH_FIELD_NUMBER and field.kind == BYTES:
            inner = fields(file, field.start, field.end)
            graph += _bytes_of(file, (each for each in inner if each.number in _OF_GRAPH))
        elif field.number in _OF_MODEL:
            model += _bytes_of(file, [field])
    try:
        found = _MODEL.FromString(bytes(model))
        found.graph.ParseFromString(bytes(graph))
    except Exception as error:  # protobuf's DecodeError
        raise ValueError(f"this is no ONNX model: {error}") from error
    return found


def _bytes_of(file: BufferedIOBase, found: Iterable[Any]) -> bytes:
    """Fields as they stand in the file."""
    pieces = bytearray()
    for field in found:
        file.seek(field.tag)
        pieces += file.read(field.end - field.tag)
    return bytes(pieces)
