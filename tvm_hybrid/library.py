"""Links a compiled Relax module into one shared library that TVM's runtime alone can run."""

from __future__ import annotations

import hashlib
import shlex
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tvm.support import cc
from tvm_ffi import libinfo

from microkernels.errors import CompileError

from .cpu_guard import guard_source
from .vm_code import write_code

KIND_PREFIX = "tvm_hybrid."


def link_library(output: Path, module: Any, cpu: str, features: tuple[str, ...]) -> str:
    """Writes the library.

    Parameters
    ----------
    output : Path
        The library to write; its folder receives temporary files and should be temporary itself.
    module : tvm.runtime.Module
        A relax.VMExecutable that imports nothing but native code.
    cpu, features
        As in `cpu_guard.guard_source`.

    Returns
    -------
    str
        SHA-256 of the virtual machine's executable and the native code.

    Raises
    ------
    CompileError
        If there is no C++ compiler, it fails, or the module imports something else.
    """
    compiler = cc.get_cc()
    if compiler is None:
        raise CompileError(
            "exporting a library needs a C++ compiler, and none is installed: install g++, or "
            "name one in the environment variable CXX"
        )
    folder = output.parent
    native = _write_native_code(module, folder)
    code = folder / "code.bin"
    prefix, offset = write_code(module, code)
    digest = _digest(prefix, [(code, offset), *((path, 0) for path in native)])
    kind = KIND_PREFIX + digest
    head, tail = folder / "head.bin", folder / "tail.bin"
    _write_frame(kind, prefix, code.stat().st_size - offset, bool(native), head, tail)
    guard = folder / "guard.cc"
    data = [(head, 0), (code, offset), (tail, 0)]
    guard.write_text(guard_source(kind, cpu, features, data), encoding="utf-8")
    command = [
        *shlex.split(compiler),
        *("-shared", "-fPIC", "-O1", "-Wl,--strip-debug"),
        *("-I", libinfo.find_include_path(), "-I", libinfo.find_dlpack_include_path()),
        *("-o", str(output), str(guard), *map(str, native)),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompileError(f"the C++ compiler {compiler!r} does not start: {error}") from error
    if done.returncode != 0:
        raise CompileError(
            f"linking failed with code {done.returncode}: {shlex.join(command)}\n{done.stderr}"
        )
    return digest


def _write_native_code(module: Any, folder: Path) -> list[Path]:
    objects = []
    for index, imported in enumerate(module.imports):
        if imported.kind != "llvm" or imported.imports:
            raise CompileError(
                f"a module of kind {imported.kind!r} cannot be exported; only native code can"
            )
        path = folder / f"code{index}.o"
        imported.write_to_file(str(path), "o")
        objects.append(path)
    return objects


def _write_frame(
    kind: str, prefix: bytes, rest: int, has_code: bool, head: Path, tail: Path
) -> None:
    """Writes what stands before and after the last `rest` bytes of the code in the library's data.

    The layout is that of `ProcessLibraryBin` in tvm_ffi's library_module.cc: number of bytes; the
    import tree as two vectors in compressed row form; then each module's kind and bytes, where the
    kind "_lib" stands for the library's own code and has none.
    """
    tree = _vector([0, 1, 1]) + _vector([1]) if has_code else _vector([0, 0]) + _vector([])
    before = tree + _text(kind) + struct.pack("<Q", len(prefix) + rest) + prefix
    after = _text("_lib") if has_code else b""
    head.write_bytes(struct.pack("<Q", len(before) + rest + len(after)) + before)
    tail.write_bytes(after)


def _vector(numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers) + 1}Q", len(numbers), *numbers)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _digest(prefix: bytes, parts: Iterable[tuple[Path, int]]) -> str:
    digest = hashlib.sha256(prefix)
    for path, offset in parts:
        with path.open("rb") as file:
            file.seek(offset)
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
