"""The weights of exported programs, as they follow the library in its file.

    head: magic | SHA-256 of the list of weights, as text | zeros
    the bytes of the weights, each distinct weight once, aligned to 64 bytes

The head starts at a page boundary, so that a process can map head and weights. The list, with the
SHA-256 of each weight, is in the manifest; the bytes are only checked on demand.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
from tvm.runtime import Tensor

from microkernels.base.errors import ArtifactError
from relay_passes.ir.constants import bytes_of, memory_of
from relay_passes.ir.stages import workers

PAGE = 4096
MAGIC = b"TVMHYBRD weights"
HEAD_BYTES = 128
ALIGNMENT = 64
_CHUNK = 1 << 24


class StoredWeight(msgspec.Struct, frozen=True):
    """Position of a weight's bytes in a library's file.

    Attributes
    ----------
    offset : int
        From the start of the head.
    size : int
        In bytes.
    sha256 : str
        SHA-256 of the bytes.
    """

    offset: int
    size: int
    sha256: str


@dataclass(frozen=True)
class Weight:
    """A weight as a tensor of one program.

    Attributes
    ----------
    offset : int
        Position of its bytes, from the start of the head.
    dtype : tuple of int
        Code, bits and lanes, as in DLPack.
    shape : tuple of int
        Shape of the tensor that kernels read.
    """

    offset: int
    dtype: tuple[int, int, int]
    shape: tuple[int, ...]


class WeightsFile:
    """The weights to write behind a library.

    Parameters
    ----------
    programs : sequence of sequence of tvm.runtime.Tensor
        The weights of each program; their memory must stay valid until they are written.
    """

    def __init__(self, programs: Sequence[Sequence[Tensor]]) -> None:
        tensors = [tensor for program in programs for tensor in program]
        with workers(len(tensors)) as pool:
            hashes = list(pool.map(lambda tensor: hashlib.sha256(memory_of(tensor)), tensors))
        digests = iter([each.hexdigest() for each in hashes])
        self._parts: list[tuple[Tensor, StoredWeight]] = []
        found: dict[str, StoredWeight] = {}
        self.size = HEAD_BYTES if tensors else 0
        self.programs: list[list[Weight]] = []
        for program in programs:
            self.programs.append([])
            for tensor in program:
                digest = next(digests)
                if digest not in found:
                    found[digest] = StoredWeight(self.size, bytes_of(tensor), digest)
                    self._parts.append((tensor, found[digest]))
                    self.size = aligned(self.size + found[digest].size, ALIGNMENT)
                kind = tensor.dtype
                dtype = int(kind.type_code), int(kind.bits), int(kind.lanes)
                shape = tuple(map(int, tensor.shape))
                self.programs[-1].append(Weight(found[digest].offset, dtype, shape))

    @property
    def stored(self) -> tuple[StoredWeight, ...]:
        """The list of weights."""
        return tuple(stored for _, stored in self._parts)

    @property
    def identity(self) -> str:
        """SHA-256 that identifies these weights."""
        return identity_of(self.stored)

    def write(self, file: BinaryIO) -> None:
        """Writes the head and the weights at the file's current position.

        Raises
        ------
        OSError
            If they cannot be written.
        """
        if not self._parts:
            return
        file.write(head_of(self.stored))
        end = HEAD_BYTES
        for tensor, stored in self._parts:
            file.seek(stored.offset - end, os.SEEK_CUR)
            data = memory_of(tensor)
            for start in range(0, stored.size, _CHUNK):
                file.write(data[start : start + _CHUNK])
            end = stored.offset + stored.size
        file.write(bytes(self.size - end))


def head_of(stored: Sequence[StoredWeight]) -> bytes:
    """The head of the weights; empty if there are no weights."""
    text = MAGIC + identity_of(stored).encode()
    return text + bytes(HEAD_BYTES - len(text)) if stored else b""


def identity_of(stored: Sequence[StoredWeight]) -> str:
    """SHA-256 of a list of weights."""
    return hashlib.sha256(msgspec.json.encode(stored)).hexdigest()


def check_weights(path: Path, start: int, stored: Sequence[StoredWeight]) -> None:
    """Reads all weights of a library, and compares them with the list.

    Parameters
    ----------
    path : Path
        The library.
    start : int
        Offset of the head.
    stored : sequence of StoredWeight
        The list in the manifest.

    Raises
    ------
    ArtifactError
        If a weight is damaged.
    OSError
        If the file cannot be read.
    """

    def found(weight: StoredWeight) -> str:
        with path.open("rb") as file:
            return digest_of(file, start + weight.offset, weight.size).hexdigest()

    with workers(len(stored)) as pool:
        for weight, digest in zip(stored, pool.map(found, stored), strict=True):
            if digest != weight.sha256:
                raise ArtifactError(
                    f"{path} is damaged: the {weight.size} bytes of weights at byte "
                    f"{start + weight.offset} are not what was exported; export it again"
                )


def digest_of(
    file: BinaryIO, start: int, size: int, before: hashlib._Hash | None = None
) -> hashlib._Hash:
    """SHA-256 of a range of a file; `before` is a digest to continue."""
    digest = before or hashlib.sha256()
    file.seek(start)
    while size > 0 and (chunk := file.read(min(size, _CHUNK))):
        digest.update(chunk)
        size -= len(chunk)
    return digest


def aligned(number: int, alignment: int) -> int:
    """Rounds up to a multiple of the alignment."""
    return -(-number // alignment) * alignment
