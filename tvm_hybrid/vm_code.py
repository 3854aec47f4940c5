"""The virtual machine's code and constants as a file, without the part that makes TVM chatter.

TVM 0.27 stores a memory scope for every constant, empty on a CPU, and prints a warning for each
whenever one is written or read. The format has an older form without scopes, which the same
reader takes; we write that one.
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

# src/runtime/vm/executable.cc
_MAGIC_WITHOUT_SCOPES = 0xD225DE2F4214151D
_MAGIC_WITH_SCOPES = 0xD225DE2F4214151E
_CHATTER = b"Scope Saving:"


def write_code(module: Any, path: Path) -> tuple[bytes, int]:
    """Writes a relax.VMExecutable's code and constants.

    Returns
    -------
    tuple of bytes and int
        The code to use is these bytes, followed by the file from this offset on.
    """
    with _without_chatter():
        module.write_to_file(str(path), "relax.VMExecutable")
    with path.open("rb") as file:
        return _without_scopes(file)


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


@contextmanager
def _without_chatter() -> Iterator[None]:
    """Holds back what C++ code writes to standard error; all but the chatter is let through."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as held:
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
