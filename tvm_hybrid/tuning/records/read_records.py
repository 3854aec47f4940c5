"""Reads finished files of records, plain or compressed by xz."""

from __future__ import annotations

import logging
import lzma
import os
from pathlib import Path

from microkernels.errors import RecordError

from .record import Record
from .record_file import Located, RecordFile

logger = logging.getLogger("tvm_hybrid")

COMPRESSED = ".xz"


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
    try:
        with lzma.open(path) as file:
            lines = file.read().split(b"\n")
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise RecordError(f"cannot read records from {path}: {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            place = f"{path}:{number}"
            try:
                found.append(Located(Record.from_line(line), place))
            except RecordError as error:
                logger.warning("%s: skipped, not a whole record: %s", place, error)
    return found
