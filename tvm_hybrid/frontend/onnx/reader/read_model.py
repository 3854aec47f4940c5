"""Reads an ONNX model from a path, bytes or a ModelProto; anything else is a ModelError."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Container, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import TypeAlias

import onnx
from onnx.external_data_helper import load_external_data_for_model, uses_external_data

from microkernels.base.errors import ModelError

from .left_data import LeftData
from .wire_format import LARGE_BYTES, WireError, without_large_data

ModelLike: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview | onnx.ModelProto

_OTHER_FORMATS = {
    b"PK\x03\x04": "a zip archive (a PyTorch checkpoint?)",
    b"\x80\x02": "a Python pickle",
    b"\x80\x04": "a Python pickle",
    b"\x7fELF": "a shared library or program",
    b"\x89HDF": "an HDF5 file",
    b"\x1f\x8b": "a gzip archive",
    b"\x93NUMPY": "an array of NumPy",
    b"GGUF": "a GGUF file",
    b"<": "a web page or XML (a download that failed?)",
    b"version https://git-lfs": "a Git LFS pointer (run `git lfs pull`)",
}


def read_model(model: ModelLike) -> onnx.ModelProto:
    """Reads a model and, if it is given by path, its external tensor data.

    Parameters
    ----------
    model
        Path of an ``.onnx`` file, its bytes, or a ModelProto. A ModelProto is returned as it is
        and never changed.

    Raises
    ------
    ModelError
        There is no such file, it is no ONNX model, or external tensor data cannot be found.
    """
    return _read(model, whole=True)[0]


def read_all_but_large(model: ModelLike) -> tuple[onnx.ModelProto, LeftData]:
    """Reads a model without the data of large initializers, which stay in their files.

    Returns
    -------
    tuple of onnx.ModelProto and LeftData
        The model, and the data, which keeps the model's file open.

    Raises
    ------
    ModelError
        As `read_model`, but not if the data of a large initializer are missing.
    """
    return _read(model, whole=False)


def _read(model: ModelLike, whole: bool) -> tuple[onnx.ModelProto, LeftData]:
    """A model, and the data that it was read without; none if `whole`."""
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        proto, left = light_model(path, whole)
        # Compared with a number of elements: each has a byte, if the declared shape is true.
        large = math.inf if whole else 4 * LARGE_BYTES
        late = {each.name for each in _external_tensors(proto) if math.prod(each.dims) >= large}
        try:
            _load_external(proto, path, late)
        except ModelError:
            left.close()
            raise
        if late:
            left.folder = str(path.parent)
        return proto, left
    left, what = LeftData(), "bytes in memory"
    if isinstance(model, bytes | bytearray | memoryview):
        proto, left = _parsed(io.BytesIO(model), "the given bytes", whole)
    elif isinstance(model, onnx.ModelProto):
        proto, what = model, "a ModelProto in memory"
    else:
        kind = type(model).__name__
        raise ModelError(
            f"a model is a path, bytes or an onnx.ModelProto, not {kind}: {model!r:.80}"
        )
    for tensor in _external_tensors(proto):
        raise ModelError(
            f"initializer {tensor.name!r} has its data in another file, which cannot be found "
            f"from {what}; give the model's path"
        )
    return proto, left


def light_model(path: Path, whole: bool = False) -> tuple[onnx.ModelProto, LeftData]:
    """The model in a file and the data of its large initializers; external files are not read.

    Raises
    ------
    ModelError
        As `read_model`.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a directory; give the .onnx file inside it")
        return _parsed(path.open("rb"), str(path), whole)
    except ModelError:  # it is also a ValueError
        raise
    except FileNotFoundError:
        raise ModelError(f"there is no model file {path}; check the path") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read model file {str(path)!r}: {error}") from error


def _parsed(file: BufferedIOBase, where: str, whole: bool) -> tuple[onnx.ModelProto, LeftData]:
    """A model without large data, and the data, which keeps the file open."""
    size = file.seek(0, os.SEEK_END) if file.seekable() else 0
    if size >= LARGE_BYTES and not whole:
        try:
            data, places = without_large_data(file, size)
            proto = _parse(data, where)
            named = zip(proto.graph.initializer, places, strict=True)
            return proto, LeftData(file, {tensor.name: place for tensor, place in named if place})
        except (WireError, OSError, ModelError):
            pass  # the parser reports what is wrong
    with file:
        if size:
            file.seek(0)
        return _parse(file.read(), where), LeftData()


def _load_external(proto: onnx.ModelProto, path: Path, left: Container[str]) -> None:
    """Reads tensors from external files, except the initializers named in `left`."""
    if not any(True for _ in _external_tensors(proto)):
        return
    kept = [tensor for tensor in proto.graph.initializer if tensor.name in left]
    others = [tensor for tensor in proto.graph.initializer if tensor.name not in left]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(others)
    try:
        load_external_data_for_model(proto, str(path.parent))
    except Exception as error:  # onnx raises many kinds here, C++ errors among them
        tensors = list(_external_tensors(proto))
        names = ", ".join(tensor.name for tensor in tensors[:3])
        files = {each.value for t in tensors for each in t.external_data if each.key == "location"}
        missing = sorted(file for file in files if not (path.parent / file).exists())
        why = f"there is no file {path.parent / missing[0]}; put it there" if missing else error
        raise ModelError(
            f"{path}: the external data of its tensors ({names}, ...) cannot be loaded: {why}"
        ) from (None if missing else error)
    proto.graph.initializer.extend(kept)


def _parse(data: bytes, where: str) -> onnx.ModelProto:
    if not data:
        raise ModelError(f"{where}: empty, not an ONNX model")
    for magic, kind in _OTHER_FORMATS.items():
        if data[:64].lstrip().startswith(magic):
            raise ModelError(f"{where}: this is {kind}, not an ONNX model")
    if data[4:8] == b"TFL3":
        raise ModelError(f"{where}: this is a TensorFlow Lite model, not an ONNX model")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception:  # protobuf's DecodeError, and other errors of its C library
        raise ModelError(
            f"{where}: not an ONNX model, or a damaged or truncated one "
            f"({len(data)} bytes); export it again"
        ) from None
    if not proto.HasField("graph"):
        raise ModelError(f"{where}: holds no graph, so it is not an ONNX model")
    return proto


def _external_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    return (tensor for tensor in proto.graph.initializer if uses_external_data(tensor))
