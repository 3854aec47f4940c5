"""Reads whole files of records, plain or compressed by xz."""

from __future__ import annotations

import logging
import lzma
import os
from dataclasses import dataclass
from pathlib import Path

from microkernels.base.errors import RecordError

from .record import Record
from .record_file import Located, RecordFile
from .record_line import RECORD, UnreadableLine, read_header

logger = logging.getLogger("tvm_hybrid")

COMPRESSED = ".xz"


@dataclass(frozen=True)
class Line:
    """One line of a file.

    Attributes
    ----------
    text : bytes
        Without its newline.
    place : str
        FILE:LINE.
    record : Record or None
        The record that it is; None if it is something else.
    problem : UnreadableLine or None
        Why it cannot be read, if so.
    """

    text: bytes
    place: str
    record: Record | None = None
    problem: UnreadableLine | None = None

    @property
    def lost(self) -> bool:
        """Whether nobody can read it; what a newer version wrote, that version can."""
        return self.problem is not None and self.problem.why != "newer"


def read_records(path: str | os.PathLike[str]) -> list[Located]:
    """The records of a file, in the order of its lines.

    Damaged lines are skipped with a warning that names them.

    Raises
    ------
    RecordError
        If there is no such file, or it cannot be read.
    """
    path = Path(path)
    if not path.is_file():
        raise RecordError(f"there is no record file {path}")
    if path.suffix != COMPRESSED:
        return list(RecordFile(path))
    lines = read_lines(path)
    for line in lines:
        if line.problem is not None:
            logger.warning("%s: skipped, not a whole record: %s", line.place, line.problem)
    return [Located(line.record, line.place) for line in lines if line.record is not None]


def read_lines(path: Path) -> list[Line]:
    """All lines of a file but empty ones, read once.

    Raises
    ------
    RecordError
        If it cannot be read.
    """
    try:
        text = path.read_bytes()
        if path.suffix == COMPRESSED:
            text = lzma.decompress(text)
    except (OSError, EOFError, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RecordError(f"cannot read records from {path}: {reason}") from error
    return [
        _line(line, f"{path}:{number}")
        for number, line in enumerate(text.split(b"\n"), 1)
        if line.strip()
    ]


def _line(text: bytes, place: str) -> Line:
    try:
        if read_header(text).kind != RECORD:
            return Line(text, place)
        return Line(text, place, Record.from_line(text))
    except UnreadableLine as problem:
        return Line(text, place, problem=problem)
