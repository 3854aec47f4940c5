"""Tensors of the inference protocol, version 2, as JSON, and NumPy arrays.

    {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1.0, 2.0, 3.0]}

`data` is flat in row-major order, or nested as the shape is. JSON has no NaN and no infinity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from microkernels.base.errors import FeedError

from ..runtime.tensors import numpy_dtype
from ..session.node_arg import NodeArg

_TYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "bfloat16": "BF16",
}
_DTYPES = {name: dtype for dtype, name in _TYPES.items()}


class InputTensor(msgspec.Struct):
    """A tensor of a request."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any]


class WantedOutput(msgspec.Struct):
    """An output that a request asks for."""

    name: str


class InferRequest(msgspec.Struct):
    """What is sent to be inferred."""

    inputs: list[InputTensor]
    id: str = ""
    outputs: list[WantedOutput] | None = None


def read_request(body: bytes) -> InferRequest:
    """A request from JSON.

    Raises
    ------
    FeedError
        If it is no JSON, or not what the protocol says.
    """
    try:
        return msgspec.json.decode(body, type=InferRequest)
    except msgspec.DecodeError as error:
        raise FeedError(f"the request is not one of the inference protocol: {error}") from error


def array_of(tensor: InputTensor) -> np.ndarray:
    """A tensor as an array.

    Raises
    ------
    FeedError
        If type, shape and data do not go together.
    """
    if tensor.datatype not in _DTYPES:
        raise FeedError(
            f"input {tensor.name!r}: datatype {tensor.datatype!r} is not one of "
            f"{', '.join(_DTYPES)}"
        )
    dtype = numpy_dtype(_DTYPES[tensor.datatype])
    try:
        found = np.asarray(tensor.data)
        if found.size and not _holds(dtype, found):
            raise ValueError(f"{found.dtype} values do not fit into {tensor.datatype}")
        return found.astype(dtype).reshape(tensor.shape)
    except (ValueError, OverflowError) as error:
        raise FeedError(
            f"input {tensor.name!r}: data do not make {tensor.datatype} of shape {tensor.shape}: "
            f"{error}"
        ) from error


def _holds(dtype: np.dtype[Any], values: np.ndarray) -> bool:
    """Whether a type holds numbers of JSON: no fractions among integers, none out of range."""
    if "float" in dtype.name:
        return values.dtype.kind in "fiu"
    if dtype.kind == "b" or values.dtype.kind not in "iu":
        return values.dtype.kind == "b" == dtype.kind
    limits = np.iinfo(dtype)
    return int(values.min()) >= limits.min and int(values.max()) <= limits.max


def answer(
    model: str, request: InferRequest, names: Sequence[str], arrays: Sequence[np.ndarray]
) -> dict[str, Any]:
    """What is sent back; numbers that JSON does not have become null."""
    outputs = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": _TYPES.get(array.dtype.name, array.dtype.name),
            "data": _plain(array).ravel().tolist(),
        }
        for name, array in zip(names, arrays, strict=True)
    ]
    found = {"model_name": model, "model_version": "1", "outputs": outputs}
    return {**found, "id": request.id} if request.id else found


def _plain(array: np.ndarray) -> np.ndarray:
    """In a type that turns into Python's numbers."""
    return array if array.dtype.kind in "biuf" else array.astype(np.float32)


def metadata(args: Sequence[NodeArg]) -> list[Mapping[str, Any]]:
    """Names, types and shapes of inputs or outputs; an open size is -1."""
    return [
        {
            "name": arg.name,
            "datatype": _TYPES.get(arg.dtype or "", arg.dtype),
            "shape": [size if isinstance(size, int) else -1 for size in arg.shape or [-1]],
        }
        for arg in args
    ]
