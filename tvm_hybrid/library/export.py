"""Links compiled Relax modules into one shared library that TVM's runtime alone can run."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tvm import IRModule
from tvm.support import cc
from tvm_ffi import libinfo

from microkernels.base.errors import CompileError
from microkernels.base.files import undisturbed
from microkernels.base.logs import logger
from microkernels.base.tvm_compat import vm_file
from microkernels.base.tvm_compat.relax import virtual_machine_code
from relay_passes.ir.stages import advance, announce_machine_code, workers
from relay_passes.lower.weights import OUTSIDE_BYTES, with_outside_weights

from .library_loader import KIND_PREFIX, LoadableProgram, Piece, loader_source, weights_function
from .weights_file import WeightsFile, digest_of

# Smaller ones of at least this size are stored once if two programs have them.
SHARED_BYTES = 1 << 12


@dataclass(frozen=True)
class Program:
    """A compiled model for one CPU.

    Attributes
    ----------
    module : tvm.runtime.Module
        A relax.VMExecutable that imports nothing but native code; if it shares a library with
        another, no function of its native code has the name of one of the other's.
    code : IRModule
        What its own code is made of.
    cpu : str
        What it is compiled for; for messages.
    features : tuple of str
        What its kernels need; names in `cpu_features.FEATURES`.
    """

    module: Any
    code: IRModule
    cpu: str
    features: tuple[str, ...]


def link_library(output: Path, programs: Sequence[Program]) -> tuple[str, WeightsFile]:
    """Writes a library that runs the first of the programs that its process can run.

    Weights are not in it: they have to be written behind it.

    Parameters
    ----------
    output : Path
        The library to write; a folder beside it receives temporary files, and stays.
    programs : sequence of Program
        The best first.

    Returns
    -------
    tuple of str and WeightsFile
        SHA-256 of the virtual machine's executables, the native code and the weights; and these.

    Raises
    ------
    CompileError
        If there is no C++ compiler, it fails, or a module imports something else.
    OSError
        If a file cannot be written.
    """
    compiler = cc.get_cc()
    if compiler is None:
        raise CompileError(
            "exporting a library needs a C++ compiler, and none is installed: install g++, or "
            "name one in the environment variable CXX"
        )
    folder = output.with_name(f"{output.name}.parts")
    folder.mkdir()
    native: list[Path] = []
    loadable = []
    stored: dict[str, Piece] = {}
    tensors = []
    for place, program in enumerate(programs):
        native += _write_native_code(program.module, folder, f"code{place}_")
        code, outside = with_outside_weights(program.code, weights_function(place), OUTSIDE_BYTES)
        tensors.append(outside)
        pieces = _write_machine_code(virtual_machine_code(code), folder, f"machine{place}")
        if len(programs) > 1:
            pieces = _share(pieces, stored)
        loadable.append(LoadableProgram(program.cpu, program.features, tuple(pieces)))
    weights = WeightsFile(tensors)
    table = folder / "weights.txt"
    table.write_text(f"{weights.identity} {weights.programs}", encoding="utf-8")
    digest = _digest(
        [
            *(piece for program in loadable for piece in program.pieces),
            *(Piece(path, 0, path.stat().st_size) for path in [*native, table]),
        ]
    )
    frame = folder / "frame.bin"
    frame.write_bytes(vm_file.library_data(KIND_PREFIX + digest, bool(native or weights.size)))
    loader = folder / "loader.cc"
    loader.write_text(loader_source(digest, frame, loadable, weights), encoding="utf-8")
    arguments = [
        *("-shared", "-fPIC", "-O1", "-Wl,--strip-debug"),
        *("-I", libinfo.find_include_path(), "-I", libinfo.find_dlpack_include_path()),
        *("-o", str(output), str(loader), *map(str, native)),
    ]
    run_compiler(str(compiler), arguments, folder)
    if not output.is_file():
        raise CompileError(f"linking failed: {compiler!r} wrote nothing; is it a C++ compiler?")
    return digest, weights


def _write_native_code(module: Any, folder: Path, prefix: str) -> list[Path]:
    modules = list(module.imports)
    for imported in modules:
        if imported.kind != "llvm" or imported.imports:
            raise CompileError(
                f"a module of kind {imported.kind!r} cannot be exported; only native code can"
            )
    objects = [folder / f"{prefix}{index}.o" for index in range(len(modules))]
    if objects:
        announce_machine_code()
        with workers(len(objects)) as pool:
            made = zip(objects, pool.map(_object_code, modules), strict=True)
            for done, (path, code) in enumerate(made, 1):
                path.write_bytes(code)
                advance(done, len(objects))
    return objects


def _object_code(module: Any) -> bytes:
    """An LLVM module's object file.

    LLVM ends the process when it cannot write; so it writes into memory. A limit on the size of
    files counts there too: the assembly tells, which is longer than the code.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and limit < len(module.inspect_source("asm")):
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    with os.fdopen(os.memfd_create("object code"), "rb") as file:
        module.write_to_file(f"/proc/self/fd/{file.fileno()}", "o")
        return file.read()


def _write_machine_code(module: Any, folder: Path, name: str) -> list[Piece]:
    """The virtual machine's code and constants; a large constant is a piece of its own."""
    code, head = folder / f"{name}.bin", folder / f"{name}_head.bin"
    prefix, end = write_code(module, code)
    head.write_bytes(prefix)
    pieces = [Piece(head, 0, len(prefix))]
    for start, size in vm_file.tensor_places(code, end):
        if size >= SHARED_BYTES:
            pieces += [Piece(code, end, start - end), Piece(code, start, size)]
            end = start + size
    return [*pieces, Piece(code, end, code.stat().st_size - end)]


def _share(pieces: Sequence[Piece], stored: dict[str, Piece]) -> list[Piece]:
    """A program's pieces, those of earlier programs instead of equal ones; `stored` gets the rest.

    Equal pieces of one program stay apart: it can be loaded faster in one run.
    """
    known = dict(stored)
    shared = []
    for piece in pieces:
        digest = _digest([piece]) if piece.size >= SHARED_BYTES else ""
        shared.append(known.get(digest, piece))
        if digest:
            stored.setdefault(digest, piece)
    return shared


def _digest(pieces: Iterable[Piece]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        with piece.path.open("rb") as file:
            digest_of(file, piece.start, piece.size, digest)
    return digest.hexdigest()


_CHUNK = 1 << 20


def write_code(module: Any, path: Path) -> tuple[bytes, int]:
    """Writes the virtual machine's code and constants in a form that TVM reads without warnings.

    See `tvm_compat.vm_file`: of the two forms that TVM reads, we write the older one.

    Writes a relax.VMExecutable's code and constants.

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
        return vm_file.without_scopes(file)


def _write(module: Any, file: BinaryIO) -> None:
    """Through a pipe: TVM does not look whether a disk took what it wrote."""
    reading, writing = os.pipe()
    with ThreadPoolExecutor(1) as pool:
        try:
            copied = pool.submit(_copy, reading, file)
            with _without_chatter():
                module.write_to_file(f"/proc/self/fd/{writing}", vm_file.KIND)
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
            kept = b"".join(line for line in held if vm_file.WARNING not in line)
            if kept:
                os.write(2, kept)


# What compiler, assembler and linker say of a full disk comes from the system.
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LINES = 3


def run_compiler(compiler: str, arguments: Sequence[str], folder: Path) -> None:
    """Runs the compiler; its own temporary files go into a folder.

    Raises
    ------
    CompileError
        If it does not start, or fails.
    OSError
        If the disk is full.
    """
    command = [*shlex.split(compiler), *arguments]
    try:
        code, text = _run(command, folder)
    except OSError as error:
        raise CompileError(f"the C++ compiler {compiler!r} does not start: {error}") from error
    if code == 0:
        return
    logger.debug("%s failed with code %d:\n%s", shlex.join(command), code, text)
    if "File size limit exceeded" in text:  # a linker that died of SIGXFSZ
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    for number in _NOT_WRITTEN:
        if os.strerror(number) in text:
            raise OSError(number, os.strerror(number))
    raise CompileError(
        f"linking failed: {command[0]} ended with code {code}: {_reason(text)} "
        "(TVM_HYBRID_LOG=debug shows all)"
    )


def _run(command: Sequence[str], folder: Path) -> tuple[int, str]:
    """Exit code and what was said. The compiler and its children are a session of their own."""
    process: subprocess.Popen[str] | None = None
    try:
        with undisturbed():
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={**os.environ, "TMPDIR": str(folder), "LC_ALL": "C"},
                start_new_session=True,
            )
        text, _ = process.communicate()
        return process.returncode, text
    except BaseException:
        if process is not None:
            with undisturbed():
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()  # until the last of them has closed its end
        raise


def _reason(text: str) -> str:
    """The lines that name the error; the last ones if none does."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()] or lines
    return "; ".join(line[:300] for line in telling[-_LINES:]) or "it says nothing"
