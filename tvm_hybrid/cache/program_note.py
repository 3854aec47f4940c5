"""Note: what the cache of programs knows of a program besides its library; a small file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TypeVar

import msgspec

from microkernels.base.output_file import write_whole

from ..frontend.model_bytes import FileState
from ..runtime.tensors import DeclaredInterface

AnyNote = TypeVar("AnyNote", bound=msgspec.Struct)


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a program besides its library.

    Attributes
    ----------
    declared : DeclaredInterface or None
        What the model declares, if sizes are open.
    refusal : str
        Why there is no such program; empty if there is one.
    inputs : tuple of str
        The inputs whose values it would have had to know.
    checked : tuple or None
        The library's file as it was when its checksums were right.
    """

    declared: DeclaredInterface | None = None
    refusal: str = ""
    inputs: tuple[str, ...] = ()
    checked: FileState | None = None


class _Checked(msgspec.Struct):
    sha256: str
    note: msgspec.Raw


def write_note(path: Path, note: msgspec.Struct) -> None:
    """Writes a file with its checksum.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    text = msgspec.json.encode(note)
    checked = _Checked(hashlib.sha256(text).hexdigest(), msgspec.Raw(text))
    write_whole(path, msgspec.json.encode(checked))


def read_note(path: Path, kind: type[AnyNote]) -> AnyNote:
    """The note of a kind in a file.

    Raises
    ------
    OSError
        If it cannot be read.
    ValueError
        If it is damaged.
    """
    try:
        checked = msgspec.json.decode(path.read_bytes(), type=_Checked)
        if hashlib.sha256(checked.note).hexdigest() == checked.sha256:
            return msgspec.json.decode(checked.note, type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    raise ValueError(f"{path} is damaged: its checksum is wrong")
