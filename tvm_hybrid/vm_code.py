"""The virtual machine's code and constants as a file, without the part that makes TVM chatter.

TVM 0.27 stores a memory scope for every constant, empty on a CPU, and prints a warning for each
whenever one is written or read. The format has an older form without scopes, which the same
reader takes; we write that one.
"""

from __future__ import annotations

import os
import shutil
import struct
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

# src/runtime/vm/executable.cc
_MAGIC_WITHOUT_SCOPES = 0xD225DE2F4214151D
_MAGIC_WITH_SCOPES = 0xD225DE2F4214151E
_CHUNK = 1 << 20
_CHATTER = b"Scope Saving:"
# Kinds of constants, from include/tvm/ffi/c_api.h, and how many bytes those of fixed size take.
_TEXT, _SHAPE, _TENSOR = 65, 69, 70
_FIXED = {1: 8, 3: 8, 5: 4}  # integer, float, element type
# A tensor begins with a magic number, a reserved one, the device, the number of dimensions and the
# element type; include/tvm/runtime/tensor.h.
_TENSOR_HEAD = struct.Struct("<QQiiiI")
_TENSOR_MAGIC = 0xDD5E40F096B4A13F


def write_code(module: Any, path: Path) -> tuple[bytes, int]:
    """Writes a relax.VMExecutable's code and constants.

    Returns
    -------
    tuple of bytes and int
        The code to use is these bytes, followed by the file from this offset on.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    with path.open("w+b") as file:
        _write(module, file)
        file.seek(0)
        return _without_scopes(file)


def tensor_places(path: Path, constants: int) -> list[tuple[int, int]]:
    """Where the values of constant tensors lie in a file, as offsets and numbers of bytes.

    `constants` is where constants begin: the offset that `write_code` returns. Tensors behind a
    constant of a kind that we do not know are not found.
    """
    places = []
    with path.open("rb") as file:
        file.seek(constants)
        for _ in range(_number(file)):
            (kind,) = struct.unpack("<i", file.read(4))
            if kind in _FIXED:
                file.seek(_FIXED[kind], os.SEEK_CUR)
            elif kind == _TEXT:
                _skip_text(file)
            elif kind == _SHAPE:
                file.seek(8 * _number(file), os.SEEK_CUR)
            elif kind == _TENSOR:
                magic, _, _, _, dimensions, _ = _TENSOR_HEAD.unpack(file.read(_TENSOR_HEAD.size))
                if magic != _TENSOR_MAGIC:
                    break
                file.seek(8 * dimensions, os.SEEK_CUR)  # shape
                size = _number(file)
                places.append((file.tell(), size))
                file.seek(size, os.SEEK_CUR)
            else:
                break
    return places


def _without_scopes(file: BinaryIO) -> tuple[bytes, int]:
    (magic,) = struct.unpack("<Q", file.read(8))
    if magic != _MAGIC_WITH_SCOPES:
        return b"", 0
    _skip_text(file)  # version
    for _ in range(_number(file)):  # functions
        file.seek(4, os.SEEK_CUR)  # kind
        _skip_text(file)  # name
        file.seek(4 * 8, os.SEEK_CUR)  # first and last instruction, arguments, registers
        for _ in range(_number(file)):  # parameters
            _skip_text(file)
    scopes = file.tell()
    for _ in range(_number(file)):
        file.seek(8, os.SEEK_CUR)  # constant
        _skip_text(file)  # scope
    rest = file.tell()
    file.seek(8)
    return struct.pack("<Q", _MAGIC_WITHOUT_SCOPES) + file.read(scopes - 8), rest


def _number(file: BinaryIO) -> int:
    (number,) = struct.unpack("<Q", file.read(8))
    return number


def _skip_text(file: BinaryIO) -> None:
    file.seek(_number(file), os.SEEK_CUR)


def _write(module: Any, file: BinaryIO) -> None:
    """Through a pipe: TVM does not look whether a disk took what it wrote."""
    reading, writing = os.pipe()
    with ThreadPoolExecutor(1) as pool:
        try:
            copied = pool.submit(_copy, reading, file)
            with _without_chatter():
                module.write_to_file(f"/proc/self/fd/{writing}", "relax.VMExecutable")
        finally:
            os.close(writing)
        copied.result()


def _copy(reading: int, file: BinaryIO) -> None:
    """Copies all that comes out of a pipe; whoever writes into it is never kept waiting."""
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        try:
            shutil.copyfileobj(pipe, file, _CHUNK)
            file.flush()
        finally:
            while pipe.read(_CHUNK):
                pass


@contextmanager
def _without_chatter() -> Iterator[None]:
    """Holds back what C++ code writes to standard error; all but the chatter is let through."""
    sys.stderr.flush()
    saved = os.dup(2)
    with os.fdopen(os.memfd_create("standard error"), "w+b") as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            held.seek(0)
            kept = b"".join(line for line in held if _CHATTER not in line)
            if kept:
                os.write(2, kept)
