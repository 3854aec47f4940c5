"""The file of a program for TVM's virtual machine: functions, memory scopes, constants, code.

TVM 0.27 stores a memory scope for every constant, empty on a CPU, and prints a warning for each
whenever one is written or read. The format has an older form without scopes, which the same reader
takes.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO

from microkernels.base.errors import CompileError

KIND = "relax.VMExecutable"
"""The kind of module that writes and reads such a file."""

WARNING = b"Scope Saving:"
"""Part of every line that TVM prints about scopes."""

# src/runtime/vm/executable.cc
_MAGIC_WITHOUT_SCOPES = 0xD225DE2F4214151D
_MAGIC_WITH_SCOPES = 0xD225DE2F4214151E
# Kinds of constants, from include/tvm/ffi/c_api.h, and how many bytes those of fixed size take.
_TEXT, _SHAPE, _TENSOR = 65, 69, 70
_FIXED = {1: 8, 3: 8, 5: 4}  # integer, float, element type
# A tensor begins with a magic number, a reserved one, the device, the number of dimensions and the
# element type; include/tvm/runtime/tensor.h.
_TENSOR_HEAD = struct.Struct("<QQiiiI")
_TENSOR_MAGIC = 0xDD5E40F096B4A13F


def tensor_places(path: Path, constants: int) -> list[tuple[int, int]]:
    """Where the values of constant tensors lie in a file, as offsets and numbers of bytes.

    `constants` is where constants begin: the offset that `without_scopes` returns. Tensors after a
    constant of an unknown kind are not found.
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


def without_scopes(file: BinaryIO) -> tuple[bytes, int]:
    """Converts the head of a file, which is open at its beginning, to the older form.

    Returns the new head, and the offset where constants begin: from there on the file stays.

    Raises
    ------
    CompileError
        If TVM wrote an unknown form.
    """
    (magic,) = struct.unpack("<Q", file.read(8))
    if magic != _MAGIC_WITH_SCOPES:
        raise CompileError(
            f"TVM wrote a program that begins with {magic:#x} instead of {_MAGIC_WITH_SCOPES:#x}, "
            "as TVM 0.27 does; microkernels/base/tvm_compat/vm_file.py has to learn its form"
        )
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


DATA_SYMBOL = "__tvm_ffi__library_bin"
"""Symbol under which the runtime looks for the data when it opens a library."""

LOADER_PREFIX = "ffi.Module.load_from_bytes."
"""With a module's kind: name of the global function that makes the module from its bytes."""

_OWN_CODE = "_lib"


def library_data(kind: str, has_code: bool) -> bytes:
    """The data of a shared library with one module, in the form that TVM's runtime reads.

    The layout is that of `ProcessLibraryBin` in tvm_ffi's library_module.cc: number of bytes; the
    import tree as two vectors in compressed row form; then each module's kind and bytes, where the
    kind "_lib" stands for the library's own code and has none. A module's bytes cannot be empty:
    here they are one word that nobody reads.

    Parameters
    ----------
    kind : str
        The module's kind.
    has_code : bool
        Whether the module imports the library's own code.
    """
    tree = _vector([0, 1, 1]) + _vector([1]) if has_code else _vector([0, 0]) + _vector([])
    content = tree + _text(kind) + _text("guard") + (_text(_OWN_CODE) if has_code else b"")
    return struct.pack("<Q", len(content)) + content


def _vector(numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers) + 1}Q", len(numbers), *numbers)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()
