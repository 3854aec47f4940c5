"""LeftData: data of large initializers that stay in their files until they are needed.

    model.onnx  =  a ModelProto without the data  +  name of initializer -> place of its data

A parser would hold all weights a second time. Here the model is parsed without them, and each
weight is read from the model's file or an external file into the memory of a constant.
"""

from __future__ import annotations

import math
import os
from contextlib import AbstractContextManager
from io import BufferedIOBase, BytesIO

import numpy as np
import tvm
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from microkernels.base.arrays import aligned_empty
from relay_passes.ir.constants import array_of, memory_of, tensor_over

from .check_model import SUPPORTED_TYPES
from .wire_format import Field

# Types that NumPy has, with the same number of bits in the file and in memory.
_READ_STRAIGHT = SUPPORTED_TYPES - {TensorProto.BOOL}


class LeftData(AbstractContextManager["LeftData"]):
    """The data that a ModelProto was parsed without.

    Parameters
    ----------
    file : file or None
        The model. It is closed with this object.
    places : dict of str to Field
        Initializer name -> position of its data in the file.
    """

    def __init__(
        self, file: BufferedIOBase | None = None, places: dict[str, Field] | None = None
    ) -> None:
        self.folder = ""
        self._file = file
        self._places = places or {}

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the model's file."""
        if self._file is not None:
            self._file.close()

    def array(self, tensor: TensorProto) -> np.ndarray:
        """The data of an initializer, from the model's file, an external file, or the proto.

        Raises
        ------
        Exception
            Of many kinds, if the data cannot be read or do not fit the shape.
        """
        shape, dtype = tuple(tensor.dims), helper.tensor_dtype_to_np_dtype(tensor.data_type)
        straight = tensor.data_type in _READ_STRAIGHT
        size = math.prod(shape) * dtype.itemsize if straight else -1
        place = self._places.get(tensor.name)
        if place is not None and self._file is not None:
            self._file.seek(place.start)
            if place.end - place.start == size:
                return _read(self._file, shape, dtype)
            whole = TensorProto(raw_data=self._file.read(place.end - place.start))
            whole.MergeFrom(tensor)
            return numpy_helper.to_array(whole)
        raw = tensor.raw_data  # protobuf copies it at each access
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
        # Refuses paths that a model must not name.
        external_data_helper.load_external_data_for_tensor(first, self.folder)
        with open(os.path.join(self.folder, outside.location), "rb") as file:
            file.seek(outside.offset or 0)
            return _read(file, shape, dtype)


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
