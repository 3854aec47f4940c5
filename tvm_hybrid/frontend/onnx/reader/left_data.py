"""LeftData: data of large initializers that stay where they are until each is needed.

    model.onnx  =  a ModelProto without the data  +  name of initializer -> place of its data

A parser would hold all weights a second time. Here the model is parsed without them, and each is
read from the model's file, or from the file beside it, straight into the memory of a constant.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from io import BufferedIOBase, BytesIO
from typing import NamedTuple

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import (
    ExternalDataInfo,
    load_external_data_for_tensor,
    uses_external_data,
)

from microkernels.base.arrays import aligned_empty
from relay_passes.ir.constants import array_of, memory_of, tensor_over

from .wire_format import BYTES, Field, WireError, fields, message

LARGE_BYTES = 1 << 18
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # of ModelProto, GraphProto, TensorProto
# A tensor of these fields (dims, type, name, data, text) is what it seems to be.
_PLAIN = {1, 2, 8, 9, 12}
# What NumPy has, and as many bits in the file as in memory.
_READ_STRAIGHT = {
    *(TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16),
    *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
    *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
}


class Place(NamedTuple):
    """Where data lie in a file."""

    start: int
    end: int


class LeftData(AbstractContextManager["LeftData"]):
    """The data that a ModelProto was parsed without.

    Parameters
    ----------
    file : file or None
        The model. It is closed with this object.
    places : list of Place or None
        Of the data of each initializer, None where the ModelProto has them.
    """

    def __init__(
        self, file: BufferedIOBase | None = None, places: list[Place | None] | None = None
    ) -> None:
        self.folder = ""
        self._file = file
        self._places = places or []
        self._by_name: dict[str, Place] = {}

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
        place = self._by_name.get(tensor.name)
        if place is None or self._file is None:
            return _of_other_file(tensor, self.folder)
        self._file.seek(place.start)
        size = place.end - place.start
        if tensor.data_type in _READ_STRAIGHT:
            dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
            if math.prod(tensor.dims) * dtype.itemsize == size:
                return _read(self._file, tuple(tensor.dims), dtype)
        whole = TensorProto(raw_data=self._file.read(size))
        whole.MergeFrom(tensor)
        return numpy_helper.to_array(whole)


def without_large_data(file: BufferedIOBase, size: int) -> tuple[bytes, LeftData]:
    """A model's file without the data of large initializers, and these.

    Raises
    ------
    WireError
        If it is damaged, or has a form that is not read here.
    OSError
        If it cannot be read.
    """
    places: list[Place | None] = []
    model = bytearray()
    for field in fields(file, 0, size):
        if (field.number, field.kind) == (_GRAPH, BYTES):
            model += message(_GRAPH, bytes(_light_graph(file, field, places)))
        else:
            model += _copied(file, field.tag, field.end)
    return bytes(model), LeftData(file, places)


def _light_graph(file: BufferedIOBase, graph: Field, places: list[Place | None]) -> bytearray:
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
            kept = (_copied(file, each.tag, each.end) for each in _small(inner))
            light += message(_INITIALIZER, b"".join(kept))
    return light


def _small(found: Iterator[Field]) -> Iterator[Field]:
    return (field for field in found if field.number != _RAW_DATA)


def _large_data(file: BufferedIOBase, tensor: Field) -> Place | None:
    """Where the data of a plain tensor are, if they are large; None else."""
    if tensor.kind != BYTES:
        raise WireError("an initializer that is no message")
    if tensor.end - tensor.start < LARGE_BYTES:
        return None
    inner = list(fields(file, tensor.start, tensor.end))
    data = [field for field in inner if field.number == _RAW_DATA]
    if len(data) != 1 or data[0].kind != BYTES or any(f.number not in _PLAIN for f in inner):
        return None
    found = Place(data[0].start, data[0].end)
    return found if found.end - found.start >= LARGE_BYTES else None


def _copied(file: BufferedIOBase, start: int, end: int) -> bytes:
    file.seek(start)
    data = file.read(end - start)
    if len(data) < end - start:
        raise WireError("the file is cut off")
    return data


def _of_other_file(tensor: TensorProto, folder: str) -> np.ndarray:
    """The data of a tensor that has them itself, or in a file beside the model's."""
    if tensor.HasField("raw_data") and tensor.data_type in _READ_STRAIGHT:
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        raw = tensor.raw_data
        if math.prod(tensor.dims) * dtype.itemsize == len(raw) > 0:
            return _read(BytesIO(raw), tuple(tensor.dims), dtype)
    if not uses_external_data(tensor) or tensor.data_type not in _READ_STRAIGHT:
        return numpy_helper.to_array(tensor, folder)
    place = ExternalDataInfo(tensor)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if place.length != math.prod(tensor.dims) * dtype.itemsize or not place.length:
        return numpy_helper.to_array(tensor, folder)
    first = TensorProto()
    first.CopyFrom(tensor)
    for entry in first.external_data:
        if entry.key == "length":
            entry.value = "1"
    load_external_data_for_tensor(first, folder)  # refuses files that a model must not name
    with open(os.path.join(folder, place.location), "rb") as file:
        file.seek(place.offset or 0)
        return _read(file, tuple(tensor.dims), dtype)


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
