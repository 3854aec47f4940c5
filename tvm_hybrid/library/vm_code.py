"""Writes the virtual machine's code and constants in a form that TVM reads without warnings.

See `tvm_compat.vm_file`: of the two forms that TVM reads, we write the older one.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from microkernels.base.tvm_compat.vm_file import KIND, WARNING, without_scopes

_CHUNK = 1 << 20


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
    CompileError
        If TVM writes it in a form that we do not know.
    """
    with path.open("w+b") as file:
        _write(module, file)
        file.seek(0)
        return without_scopes(file)


def _write(module: Any, file: BinaryIO) -> None:
    """Through a pipe: TVM does not look whether a disk took what it wrote."""
    reading, writing = os.pipe()
    with ThreadPoolExecutor(1) as pool:
        try:
            copied = pool.submit(_copy, reading, file)
            with _without_chatter():
                module.write_to_file(f"/proc/self/fd/{writing}", KIND)
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
            kept = b"".join(line for line in held if WARNING not in line)
            if kept:
                os.write(2, kept)
