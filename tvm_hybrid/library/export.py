"""Links compiled Relax modules into one shared library that runs with the TVM runtime alone."""

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

from .library_loader import KIND_PREFIX, Piece, StoredProgram, loader_source, weights_function
from .weights_file import WeightsFile, digest_of

# Constants of at least this size inside the code are stored once if two programs have them.
SHARED_BYTES = 1 << 12


@dataclass(frozen=True)
class LinkableProgram:
    """A compiled program for one CPU, ready to be linked.

    Attributes
    ----------
    module : tvm.runtime.Module
        A relax.VMExecutable that imports only native code. If two programs share a library, no
        function of one's native code has the name of a function of the other's.
    code : IRModule
        The module that the virtual machine's code is made from.
    cpu : str
        The CPU that the program is compiled for; used in messages.
    features : tuple of str
        The CPU features that its kernels need, by their names in `cpu_features.FEATURES`.
    """

    module: Any
    code: IRModule
    cpu: str
    features: tuple[str, ...]


def link_library(output: Path, programs: Sequence[LinkableProgram]) -> tuple[str, WeightsFile]:
    """Writes a library that runs the first program that its process can run.

    The weights are not in the library: the caller has to append them.

    Parameters
    ----------
    output : Path
        The library to write. A folder beside it gets temporary files, and is not removed.
    programs : sequence of LinkableProgram
        The programs, best first.

    Returns
    -------
    tuple of str and WeightsFile
        SHA-256 of the virtual machine's executables, native code and weights; and the weights.

    Raises
    ------
    CompileError
        If there is no C++ compiler, it fails, or a module imports anything but native code.
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
        loadable.append(StoredProgram(program.cpu, program.features, tuple(pieces)))
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
    """Returns an LLVM module's object file; OSError if the limit on file sizes may forbid it."""
    # LLVM ends the process if a write fails, so it writes to memory. A limit on file sizes holds
    # for memory files too, so the assembly, which is longer than the code, is measured first.
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and limit < len(module.inspect_source("asm")):
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    with os.fdopen(os.memfd_create("object code"), "rb") as file:
        module.write_to_file(f"/proc/self/fd/{file.fileno()}", "o")
        return file.read()


def _write_machine_code(module: Any, folder: Path, name: str) -> list[Piece]:
    """Writes the virtual machine's code and constants; every large constant is a separate piece."""
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
    """Replaces pieces that earlier programs have by those, and adds the others to `stored`."""
    # Equal pieces within a program stay separate: a program that lies in one run loads faster.
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
    """Writes the code and constants of a relax.VMExecutable, in a form TVM reads without warnings.

    TVM reads two forms; this is the older one: see `tvm_compat.vm_file`.

    Returns
    -------
    tuple of bytes and int
        The code consists of these bytes, followed by the file from this offset on.

    Raises
    ------
    OSError
        If the file cannot be written.
    CompileError
        If TVM's output has an unknown form.
    """
    with path.open("w+b") as file:
        _write(module, file)
        file.seek(0)
        return vm_file.without_scopes(file)


def _write(module: Any, file: BinaryIO) -> None:
    """Writes through a pipe, because TVM does not check whether a disk took its output."""
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
    """Copies all that a pipe gets; after an error it reads on, so that the writer never waits."""
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        try:
            shutil.copyfileobj(pipe, file, _CHUNK)
            file.flush()
        finally:
            while pipe.read(_CHUNK):
                pass


@contextmanager
def _without_chatter() -> Iterator[None]:
    """Holds back what C++ code writes to standard error, and drops TVM's warning about the form."""
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


# Compiler, assembler and linker report a full disk by the system's text.
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LINES = 3


def run_compiler(compiler: str, arguments: Sequence[str], folder: Path) -> None:
    """Runs the compiler, with its temporary files in `folder`.

    Raises
    ------
    CompileError
        If the compiler does not start, or fails.
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
    if "File size limit exceeded" in text:  # SIGXFSZ killed the linker
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    for number in _NOT_WRITTEN:
        if os.strerror(number) in text:
            raise OSError(number, os.strerror(number))
    raise CompileError(
        f"linking failed: {command[0]} ended with code {code}: {_reason(text)} "
        "(TVM_HYBRID_LOG=debug shows all)"
    )


def _run(command: Sequence[str], folder: Path) -> tuple[int, str]:
    """The exit code and the output; the compiler and its children run in a session of their own."""
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
                process.communicate()  # waits until every child has closed its end of the pipe
        raise


def _reason(text: str) -> str:
    """The last lines that contain "error", or else the last lines, as one text."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()] or lines
    return "; ".join(line[:300] for line in telling[-_LINES:]) or "it says nothing"
