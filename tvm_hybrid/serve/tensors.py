"""Tensors of the inference protocol, version 2, and NumPy arrays.

    {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1.0, 2.0, 3.0]}

`data` is flat in row-major order, or nested like the shape. JSON has no NaN and no infinity. A
tensor with the parameter `binary_data_size` has no `data`: this number of bytes, little-endian and
in row-major order, follows the JSON text, in the order of the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from microkernels.base.errors import FeedError

from ..runtime.tensors import numpy_dtype
from ..session.onnxruntime_api.model_surface import NodeArg

VERSION = "1"
"""The only version of every model."""

_TYPES = {
    "bool": "BOOL",
    **{f"uint{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
    **{f"int{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
    "bfloat16": "BF16",
}
_DTYPES = {name: dtype for dtype, name in _TYPES.items()}


class Parameters(msgspec.Struct):
    """Parameters of a request or tensor about bytes after the JSON text."""

    binary_data_size: int | None = None
    binary_data: bool | None = None
    binary_data_output: bool = False


class InputTensor(msgspec.Struct):
    """A tensor of a request."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any] | None = None
    parameters: Parameters = msgspec.field(default_factory=Parameters)


class WantedOutput(msgspec.Struct):
    """An output that a request asks for."""

    name: str
    parameters: Parameters = msgspec.field(default_factory=Parameters)


class InferRequest(msgspec.Struct):
    """An inference request."""

    inputs: list[InputTensor]
    id: str = ""
    outputs: list[WantedOutput] | None = None
    parameters: Parameters = msgspec.field(default_factory=Parameters)


def read_request(body: bytes, text: int) -> tuple[InferRequest, dict[str, np.ndarray]]:
    """Parses a request and its inputs.

    Parameters
    ----------
    body : bytes
    text : int
        Number of bytes of JSON; bytes of tensors follow.

    Raises
    ------
    FeedError
        If it is not an inference request, or an input is inconsistent.
    """
    try:
        request = msgspec.json.decode(body[:text], type=InferRequest)
    except msgspec.DecodeError as error:
        raise FeedError(f"the request is not one of the inference protocol: {error}") from error
    feeds: dict[str, np.ndarray] = {}
    position = text
    for tensor in request.inputs:
        size = tensor.parameters.binary_data_size
        if size is None:
            feeds[tensor.name] = array_of(tensor)
        else:
            feeds[tensor.name] = array_of(tensor, body[position : position + max(size, 0)])
            position += size
    if len(feeds) != len(request.inputs):
        raise FeedError("an input is given twice")
    behind, used = len(body) - text, position - text
    if behind != used:
        raise FeedError(f"the request has {behind} bytes behind its text, its inputs {used}")
    return request, feeds


def array_of(tensor: InputTensor, data: bytes | None = None) -> np.ndarray:
    """Converts a tensor to an array.

    Parameters
    ----------
    tensor : InputTensor
    data : bytes or None
        Its elements; None if they are in the tensor.

    Raises
    ------
    FeedError
        If type, shape and data do not fit each other.
    """
    if tensor.datatype not in _DTYPES:
        raise FeedError(
            f"input {tensor.name!r}: datatype {tensor.datatype!r} is not one of "
            f"{', '.join(_DTYPES)}"
        )
    dtype = numpy_dtype(_DTYPES[tensor.datatype])
    try:
        if data is not None:
            return np.frombuffer(data, dtype).reshape(tensor.shape).copy()
        if tensor.data is None:
            raise ValueError("there are none")
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
    """Whether a type can hold JSON numbers: no fractions in integers, no value out of range."""
    if "float" in dtype.name:
        return values.dtype.kind in "fiu"
    if dtype.kind == "b" or values.dtype.kind not in "iu":
        return values.dtype.kind == "b" == dtype.kind
    limits = np.iinfo(dtype)
    return int(values.min()) >= limits.min and int(values.max()) <= limits.max


def answer(
    model: str, request: InferRequest, results: Mapping[str, np.ndarray]
) -> tuple[bytes, list[bytes]]:
    """Makes the response: JSON, and the bytes that follow it.

    NaN and infinity become null in JSON.
    """
    asked = {each.name: each.parameters.binary_data for each in request.outputs or ()}
    outputs: list[dict[str, Any]] = []
    behind: list[bytes] = []
    for name, array in results.items():
        binary = asked.get(name)
        found = {
            "name": name,
            "shape": list(array.shape),
            "datatype": _TYPES.get(array.dtype.name, array.dtype.name),
        }
        if request.parameters.binary_data_output if binary is None else binary:
            behind.append(array.tobytes())
            outputs.append({**found, "parameters": {"binary_data_size": array.nbytes}})
        else:
            outputs.append({**found, "data": _plain(array).ravel().tolist()})
    text: dict[str, Any] = {"model_name": model, "model_version": VERSION, "outputs": outputs}
    return msgspec.json.encode({**text, "id": request.id} if request.id else text), behind


def _plain(array: np.ndarray) -> np.ndarray:
    """Converts to a type that becomes Python numbers."""
    return array if array.dtype.kind in "biuf" else array.astype(np.float32)


def metadata(args: Sequence[NodeArg]) -> list[Mapping[str, Any]]:
    """Names, types and shapes of inputs or outputs; a dynamic size is -1."""
    return [
        {
            "name": arg.name,
            "datatype": _TYPES.get(arg.dtype or "", arg.dtype),
            "shape": [size if isinstance(size, int) else -1 for size in arg.shape or [-1]],
        }
        for arg in args
    ]
