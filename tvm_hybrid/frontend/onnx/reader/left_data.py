"""LeftData: data of large initializers that stay where they are until each is needed.

    model.onnx  =  a ModelProto without the data  +  name of initializer -> place of its data

A parser would hold all weights a second time. Here the model is parsed without them, and each is
read from the model's file, or from the file beside it, straight into the memory of a constant.
"""

from __future__ import annotations

import math
import os
from contextlib import AbstractContextManager
from io import BufferedIOBase, BytesIO

import numpy as np
import onnx
import tvm
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from microkernels.base.arrays import aligned_empty
from relay_passes.ir.constants import array_of, memory_of, tensor_over

from .check_model import SUPPORTED_TYPES
from .wire_format import BYTES, Field, WireError, fields, message

LARGE_BYTES = 1 << 18
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # of ModelProto, GraphProto, TensorProto
# A tensor of these fields (dims, type, name, data, text) is what it seems to be.
_PLAIN = {1, 2, 8, 9, 12}
# What NumPy has, and as many bits in the file as in memory.
_READ_STRAIGHT = SUPPORTED_TYPES - {TensorProto.BOOL}


class LeftData(AbstractContextManager["LeftData"]):
    """The data that a ModelProto was parsed without.

    Parameters
    ----------
    file : file or None
        The model. It is closed with this object.
    places : list of Field or None
        Of the data of each initializer, None where the ModelProto has them.
    """

    def __init__(
        self, file: BufferedIOBase | None = None, places: list[Field | None] | None = None
    ) -> None:
        self.folder = ""
        self._file = file
        self._places = places or []
        self._by_name: dict[str, Field] = {}

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the model's file."""
        if self._file is not None:
            self._file.close()

    def name(self, proto: onnx.ModelProto) -> None:
        """Takes the names of the initializers from the model."""
        named = zip(proto.graph.initializer, self._places, strict=True)
        self._by_name = {tensor.name: place for tensor, place in named if place is not None}

    def array(self, tensor: TensorProto) -> np.ndarray:
        """The data of an initializer, wherever they are.

        Raises
        ------
        Exception
            Of many kinds, if they cannot be read or do not fit the shape.
        """
        shape, dtype = tuple(tensor.dims), helper.tensor_dtype_to_np_dtype(tensor.data_type)
        straight = tensor.data_type in _READ_STRAIGHT
        size = math.prod(shape) * dtype.itemsize if straight else -1
        place = self._by_name.get(tensor.name)
        if place is not None and self._file is not None:
            self._file.seek(place.start)
            if place.end - place.start == size:
                return _read(self._file, shape, dtype)
            whole = TensorProto(raw_data=self._file.read(place.end - place.start))
            whole.MergeFrom(tensor)
            return numpy_helper.to_array(whole)
        raw = tensor.raw_data  # protobuf copies it each time
        if tensor.HasField("raw_data") and len(raw) == size > 0:
            return _read(BytesIO(raw), shape, dtype)
        outside = external_data_helper.ExternalDataInfo(tensor)
        if not external_data_helper.uses_external_data(tensor) or not outside.length == size > 0:
            return numpy_helper.to_array(tensor, self.folder)
        first = TensorProto()
        first.CopyFrom(tensor)
        for entry in first.external_data:
            if entry.key == "length":
                entry.value = "1"
        # Refuses files that a model must not name.
        external_data_helper.load_external_data_for_tensor(first, self.folder)
        with open(os.path.join(self.folder, outside.location), "rb") as file:
            file.seek(outside.offset or 0)
            return _read(file, shape, dtype)


def without_large_data(file: BufferedIOBase, size: int) -> tuple[bytes, LeftData]:
    """A model's file without the data of large initializers, and these.

    Raises
    ------
    WireError
        If it is damaged, or has a form that is not read here.
    OSError
        If it cannot be read.
    """
    places: list[Field | None] = []
    model = bytearray()
    for field in fields(file, 0, size):
        if (field.number, field.kind) == (_GRAPH, BYTES):
            model += message(_GRAPH, bytes(_light_graph(file, field, places)))
        else:
            model += _copied(file, field.tag, field.end)
    return bytes(model), LeftData(file, places)


def _light_graph(file: BufferedIOBase, graph: Field, places: list[Field | None]) -> bytearray:
    """A graph without large data; `places` receives where those of its initializers are."""
    light = bytearray()
    for field in fields(file, graph.start, graph.end):
        if field.number != _INITIALIZER:
            light += _copied(file, field.tag, field.end)
            continue
        place = _large_data(file, field)
        places.append(place)
        if place is None:
            light += _copied(file, field.tag, field.end)
        else:
            inner = fields(file, field.start, field.end)
            small = (each for each in inner if each.number != _RAW_DATA)
            kept = (_copied(file, each.tag, each.end) for each in small)
            light += message(_INITIALIZER, b"".join(kept))
    return light


def _large_data(file: BufferedIOBase, tensor: Field) -> Field | None:
    """Where the data of a plain tensor are, if they are large; None else."""
    if tensor.kind != BYTES:
        raise WireError("an initializer that is no message")
    if tensor.end - tensor.start < LARGE_BYTES:
        return None
    inner = list(fields(file, tensor.start, tensor.end))
    data = [field for field in inner if field.number == _RAW_DATA]
    if len(data) != 1 or data[0].kind != BYTES or any(f.number not in _PLAIN for f in inner):
        return None
    return data[0] if data[0].end - data[0].start >= LARGE_BYTES else None


def _copied(file: BufferedIOBase, start: int, end: int) -> bytes:
    file.seek(start)
    data = file.read(end - start)
    if len(data) < end - start:
        raise WireError("the file is cut off")
    return data


def _read(file: BufferedIOBase, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    tensor = tensor_over(aligned_empty(shape, dtype))
    if tensor is None:
        tensor = tvm.runtime.empty(shape, str(dtype))
    read, memory = 0, memory_of(tensor)
    while read < len(memory):
        count = file.readinto(memory[read:])
        if not count:
            raise ValueError("the file is cut off")
        read += count
    return array_of(tensor, dtype)
