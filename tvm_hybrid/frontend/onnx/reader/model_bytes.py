"""ModelBytes: all bytes of an ONNX model, as a hash."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from microkernels.base.errors import ModelError

from .wire_format import WireError, without_large_data

if TYPE_CHECKING:
    import onnx

_PIECE = 1 << 18  # fits in a core's cache
_COARSE = 2_000_000_000

_IN_MEMORY = bytes | bytearray | memoryview

FileState = tuple[str, int, int, int, int]  # path, bytes, changed, changed or renamed, inode


def is_onnx(model: Any) -> bool:
    """Whether a model is given as ONNX: a path, bytes, or a ModelProto."""
    given = isinstance(model, str | os.PathLike | _IN_MEMORY)
    return given or type(model).__name__ == "ModelProto"


class ModelBytes(NamedTuple):
    """The content of a model at one moment.

    Attributes
    ----------
    digest : str
        SHA-256 of all bytes.
    data : bytes or None
        The model; None if it was given by path.
    files : tuple
        The files that it was read from, with their state at that time.
    """

    digest: str
    data: bytes | None
    files: tuple[FileState, ...]

    @staticmethod
    def of(model: Any) -> ModelBytes:
        """Reads a path, bytes or an onnx.ModelProto.

        Raises
        ------
        OSError
            If a file cannot be read.
        ValueError
            If the model cannot be serialised, as one of more than 2 GB.
        """
        if not isinstance(model, (str, os.PathLike)):
            of_bytes = isinstance(model, _IN_MEMORY)
            try:
                data = bytes(model) if of_bytes else model.SerializeToString(deterministic=True)
            except Exception as error:  # protobuf's EncodeError, and others of its C library
                raise ValueError(f"the model cannot be serialized: {error}") from error
            return ModelBytes(hashlib.sha256(data).hexdigest(), data, ())
        path = Path(model)
        files = [file_state(path)]
        digest = hashlib.sha256()
        _add_file(digest, path)
        # A model with external data contains this key; other models are not parsed.
        others = _other_files(path) if _mentions(path, b"location") else []
        for other in others:
            files.append(file_state(other))
            digest.update(f"\n{other.name} {files[-1][1]}\n".encode())
            _add_file(digest, other)
        return ModelBytes(digest.hexdigest(), None, tuple(files))

    def model(self, given: Any) -> Any:
        """The model with the hashed content; ValueError if that has changed.

        Parameters
        ----------
        given : Any
            The path, bytes or proto that this was made from.

        Raises
        ------
        ModelError
            If a file cannot be read.
        ValueError
            If a file has changed since.
        """
        if self.data is not None:
            return self.data
        from .read_model import read_model

        proto = read_model(given)
        if not are_unchanged(self.files):
            raise ValueError(f"{given} has changed while it was read")
        return proto


def file_state(path: Path) -> FileState:
    """The state of a file: path, size, times and inode, some of which change with the content.

    Raises
    ------
    OSError
        If the file is missing.
    """
    found = path.stat()
    times = found.st_mtime_ns, found.st_ctime_ns
    return str(path.absolute()), found.st_size, *times, found.st_ino


def are_unchanged(files: Iterable[FileState]) -> bool:
    """Whether all files still have the given state."""
    try:
        return all(file_state(Path(state[0])) == state for state in files)
    except OSError:
        return False


def are_older(files: Iterable[FileState], moment: int) -> bool:
    """Whether no file can have changed since a moment without a change of its times.

    Parameters
    ----------
    files : iterable of FileState
        State of the files.
    moment : int
        In nanoseconds since 1970. Times of files may be as coarse as two seconds.
    """
    return all(max(state[2], state[3]) + _COARSE < moment for state in files)


def _add_file(digest: hashlib._Hash, path: Path) -> None:
    """Adds a file to a hash, in pieces."""
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)


def _mentions(path: Path, word: bytes) -> bool:
    """Whether a word is in a model's file, outside the data of large initializers."""
    with path.open("rb") as file:
        try:
            return word in without_large_data(file, os.fstat(file.fileno()).st_size)[0]
        except WireError:  # not a model, or in a form that we do not read
            return word in path.read_bytes()


def _other_files(path: Path) -> list[Path]:
    """The external files with tensors of a model."""
    import onnx

    from .read_model import light_model

    try:
        proto, left = light_model(path)
    except ModelError as error:  # compiling reports what is wrong
        raise ValueError(f"not a model: {error}") from error
    left.close()
    graphs = [proto.graph, *proto.functions]
    names = {
        entry.value
        for tensor in _tensors(graphs)
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return [path.parent / name for name in sorted(names)]


def _tensors(graphs: Iterable[Any]) -> Iterator[onnx.TensorProto]:
    """The tensors in graphs and functions, and in graphs nested inside them."""
    for graph in graphs:
        yield from getattr(graph, "initializer", ())
        for node in graph.node:
            for attribute in node.attribute:
                yield attribute.t
                yield from attribute.tensors
                yield from _tensors([attribute.g, *attribute.graphs])
