"""The exported file: a shared library followed by its manifest.

    ELF shared library | manifest as JSON | SHA-256 of both | length of the manifest | magic

The dynamic loader ignores what follows the library. The whole file is checked before the library is
opened, because opening a truncated library crashes the process.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import struct
from pathlib import Path
from typing import BinaryIO

import msgspec

from microkernels.errors import ArtifactError
from microkernels.output_file import replacing

from .manifest import FORMAT, Manifest

MAGIC = b"TVMHYBRD"
ELF_MAGIC = b"\x7fELF"
_FOOTER = struct.Struct("<32sQ8s")
_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_X86_64 = 62


def is_library(path: Path) -> bool:
    """Whether a file starts like a shared library."""
    try:
        with path.open("rb") as file:
            return file.read(len(ELF_MAGIC)) == ELF_MAGIC
    except OSError:
        return False


def append_manifest(path: Path, manifest: Manifest) -> None:
    """Completes a freshly linked library.

    Raises
    ------
    OSError
        If the linker could not write all of it: GNU ld does not look whether closing its output
        failed, and ends with code 0.
    """
    text = manifest.to_json()
    with path.open("r+b") as file:
        size = path.stat().st_size
        if size < _ELF_HEADER.size or size < _sections_end(file.read(_ELF_HEADER.size)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file.seek(0)
        digest = _digest(file, size)
        file.seek(0, os.SEEK_END)
        digest.update(text)
        file.write(text + _FOOTER.pack(digest.digest(), len(text), MAGIC))


def read_manifest(path: Path, checked: bool = False) -> Manifest:
    """Checks an exported library, without opening it as one, and returns its manifest.

    Parameters
    ----------
    path : Path
        The library.
    checked : bool
        Whether the file's checksum is known to be right; then it is not computed.

    Raises
    ------
    ArtifactError
        If it is missing, not a library, not one of ours, truncated or damaged.
    """
    try:
        with path.open("rb") as file:
            return _read(file, path, os.fstat(file.fileno()).st_size, checked)
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error.strerror or error}") from error


def _read(file: BinaryIO, path: Path, size: int, checked: bool) -> Manifest:
    header = file.read(_ELF_HEADER.size)
    if not header.startswith(ELF_MAGIC):
        raise ArtifactError(
            f"{path} is not a shared library; give the file that `Executable.export` or "
            "`tvm-hybrid compile` wrote"
        )
    if len(header) < _ELF_HEADER.size:
        raise ArtifactError(f"{path} is truncated; export it again")
    if _ELF_HEADER.unpack(header)[2] != _X86_64:
        raise ArtifactError(f"{path} is a library for another machine than x86-64")
    sections_end = _sections_end(header)
    if size < sections_end + _FOOTER.size:
        raise ArtifactError(f"{path} is truncated, or was not exported by tvm_hybrid")
    file.seek(size - _FOOTER.size)
    expected, length, magic = _FOOTER.unpack(file.read(_FOOTER.size))
    if magic != MAGIC:
        raise ArtifactError(
            f"{path} was not exported by tvm_hybrid, or is truncated; a library of another origin "
            "can be opened with tvm.runtime.load_module"
        )
    end = size - _FOOTER.size
    if length > end - sections_end:
        raise ArtifactError(f"{path} is damaged: its manifest has no room; export it again")
    file.seek(0)
    if not checked and _digest(file, end).digest() != expected:
        raise ArtifactError(f"{path} is damaged: its checksum is wrong; export it again")
    file.seek(end - length)
    return _decode(file.read(length), path)


def _sections_end(header: bytes) -> int:
    """How far the table of sections reaches, which linkers write last."""
    _, _, _, *fields = _ELF_HEADER.unpack(header)
    return int(fields[3] + fields[8] * fields[9])


def _decode(text: bytes, path: Path) -> Manifest:
    try:
        found = msgspec.json.decode(text, type=dict)["format"]
        if found != FORMAT:
            raise ArtifactError(
                f"{path} has manifest format {found}, this tvm_hybrid reads format {FORMAT}; "
                "export it again with this version"
            )
        return msgspec.json.decode(text, type=Manifest)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path} has an unreadable manifest: {error}") from error


def _digest(file: BinaryIO, size: int) -> hashlib._Hash:
    digest = hashlib.sha256()
    while size > 0:
        chunk = file.read(min(size, 1 << 20))
        if not chunk:
            break
        digest.update(chunk)
        size -= len(chunk)
    return digest


def copy_atomically(source: Path, path: Path) -> None:
    """Copies a file; at `path` there is the old content or the new one, never half of it."""
    with replacing(path, ArtifactError) as draft:
        shutil.copyfile(source, draft)
