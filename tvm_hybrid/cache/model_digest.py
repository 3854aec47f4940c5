"""The digest of a model in a file, which is computed once while the file stays the same.

A note in the cache of programs has the digest, and size, times and inode of all files of the model.
As git does, we do not trust what was hashed soon after it was changed: it may have been changed
again without getting another time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path
from typing import Any

import msgspec

from microkernels.base.errors import OutputError
from microkernels.base.logs import logger

from ..frontend.model_bytes import FileState, ModelBytes, are_older, are_unchanged
from .cache_folder import NOTE, PROGRAMS
from .program_key import read_note, write_note


class _ModelDigest(msgspec.Struct, frozen=True):
    """SHA-256 of a model, and its files as they were."""

    digest: str
    files: tuple[FileState, ...]


def model_bytes(model: Any) -> ModelBytes:
    """As `ModelBytes.of`; the files of a path are not read if their digest is known.

    Raises
    ------
    OSError
        If a file cannot be read.
    ValueError
        If the model cannot be written as bytes: one of more than 2 GB.
    """
    if not isinstance(model, (str, os.PathLike)):
        return ModelBytes.of(model)
    name = hashlib.sha256(os.fsencode(Path(model).absolute())).hexdigest()
    note = PROGRAMS.path(f"model-{name}", NOTE)
    with contextlib.suppress(OSError, ValueError):  # there is none, or it is damaged
        known = read_note(note, _ModelDigest)
        if known.files and are_unchanged(known.files):
            os.utime(note)
            return ModelBytes(known.digest, None, known.files)
    moment = time.time_ns()
    found = ModelBytes.of(model)
    if are_older(found.files, moment) and are_unchanged(found.files):
        try:
            PROGRAMS.make()
            write_note(note, _ModelDigest(found.digest, found.files))
        except (OSError, OutputError) as error:
            logger.info("the digest of %s is not kept: %s", model, error)
    return found
