"""The exported file: a shared library, then its weights, then its manifest.

    ELF shared library | zeros | weights | manifest as JSON | where weights begin | their bytes |
    SHA-256 | length of the manifest | magic

The dynamic loader ignores what follows the library. Everything but the weights' bytes is checked
before the library is opened, the file size too, because opening a truncated library crashes the
process. Weights are only read on demand; `weights_file` describes their layout. Files of format 1
have no weights, and end `manifest | SHA-256 of all before | length of the manifest | older magic`.
"""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import BinaryIO

import msgspec

from microkernels.base.errors import ArtifactError, CompileError

from . import weights_file
from .manifest import READ_FORMATS, Manifest

MAGIC = b"TVMHYBR2"
OLDER_MAGIC = b"TVMHYBRD"
ELF_MAGIC = b"\x7fELF"
_FOOTER = struct.Struct("<32sQ8s")
_PLACE = struct.Struct("<QQ")  # start and size of the weights; stored before the footer
_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_X86_64 = 62


def is_library(path: Path) -> bool:
    """Whether a file starts like a shared library."""
    try:
        with path.open("rb") as file:
            return file.read(len(ELF_MAGIC)) == ELF_MAGIC
    except OSError:
        return False


def complete_library(path: Path, manifest: Manifest, weights: weights_file.WeightsFile) -> Manifest:
    """Appends the weights and the manifest to a freshly linked library.

    Parameters
    ----------
    path : Path
        The library.
    manifest : Manifest
        Its manifest, without the list of weights.
    weights : WeightsFile
        The weights to append; they are written in chunks.

    Returns
    -------
    Manifest
        The manifest as it was written.

    Raises
    ------
    OSError
        If the linker wrote only a part (GNU ld ignores an error of closing its output, and ends
        with code 0), or the rest cannot be written.
    """
    manifest = msgspec.structs.replace(manifest, weights=weights.stored)
    text = manifest.to_json()
    with path.open("r+b") as file:
        size = path.stat().st_size
        if size < _ELF_HEADER.size or size < _sections_end(file.read(_ELF_HEADER.size)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file.seek(0, os.SEEK_END)
        start = size
        if weights.size:
            file.seek(0)
            start = weights_file.aligned(
                _sections_end(file.read(_ELF_HEADER.size)), weights_file.PAGE
            )
            if size > start:
                raise CompileError("the linker wrote a library that does not end with its sections")
            file.seek(start)
            weights.write(file)
        place = _PLACE.pack(start, weights.size)
        digest = weights_file.digest_of(file, 0, start + len(weights_file.head_of(weights.stored)))
        digest.update(text + place)
        file.seek(start + weights.size)
        file.write(text + place + _FOOTER.pack(digest.digest(), len(text), MAGIC))
    return manifest


def read_manifest(path: Path, checked: bool = False, verify: bool = False) -> Manifest:
    """Checks an exported library and returns its manifest, without opening it as a library.

    Parameters
    ----------
    path : Path
        The library.
    checked : bool
        Whether the checksum of all but the weights is known to be right; it is then not computed.
    verify : bool
        Whether to check the weights too, which reads the whole file.

    Raises
    ------
    ArtifactError
        If the file is missing, no library that tvm_hybrid exported, truncated or damaged.
    """
    try:
        with path.open("rb") as file:
            start, manifest = _read(file, path, os.fstat(file.fileno()).st_size, checked)
            if verify:
                weights_file.check_weights(path, start, manifest.weights)
            return manifest
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error.strerror or error}") from None


def _read(file: BinaryIO, path: Path, size: int, checked: bool) -> tuple[int, Manifest]:
    """The offset of the weights, and the manifest."""
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
    if size < sections_end + _PLACE.size + _FOOTER.size:
        raise ArtifactError(f"{path} is truncated, or was not exported by tvm_hybrid")
    file.seek(size - _FOOTER.size)
    expected, length, magic = _FOOTER.unpack(file.read(_FOOTER.size))
    if magic not in (MAGIC, OLDER_MAGIC):
        raise ArtifactError(
            f"{path} was not exported by tvm_hybrid, or is truncated; a library of another origin "
            "can be opened with tvm.runtime.load_module"
        )
    end = size - _FOOTER.size
    start, weights = end, 0
    place = b""
    if magic == MAGIC:
        end -= _PLACE.size
        file.seek(end)
        place = file.read(_PLACE.size)
        start, weights = _PLACE.unpack(place)
    else:
        start = end - length
    if start < sections_end or start + weights + length != end:
        raise ArtifactError(f"{path} is damaged: its parts do not fit its size; export it again")
    file.seek(end - length)
    text = file.read(length)
    if not checked:
        digest = weights_file.digest_of(
            file, 0, start + (weights_file.HEAD_BYTES if weights else 0)
        )
        digest.update(text + place)
        if digest.digest() != expected:
            raise ArtifactError(f"{path} is damaged: its checksum is wrong; export it again")
    try:
        found = msgspec.json.decode(text, type=dict)["format"]
        if found not in READ_FORMATS:
            raise ArtifactError(
                f"{path} has manifest format {found}, this tvm_hybrid reads formats "
                f"{', '.join(map(str, READ_FORMATS))}; export it again with this version"
            )
        manifest = msgspec.json.decode(text, type=Manifest)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path} has an unreadable manifest: {error}") from error
    file.seek(start)
    if weights and file.read(weights_file.HEAD_BYTES) != weights_file.head_of(manifest.weights):
        raise ArtifactError(f"{path} is damaged: its weights are those of another; export it again")
    return start, manifest


def _sections_end(header: bytes) -> int:
    """End of the table of sections, which linkers write last."""
    _, _, _, *fields = _ELF_HEADER.unpack(header)
    return int(fields[3] + fields[8] * fields[9])
