"""ProgramCache: a folder of compiled programs, for sessions that start again.

    <key>.so     a library written by `Executable.export`
    <key>.json   what sessions need to know in addition; written before the library
    model-*.json the digest of a model's file (`program_key.model_bytes`)

A failed attempt at one program for all sizes is a note without a library. Files appear complete, by
renaming. The folder has a size limit; the least recently used files are removed first. No error
here fails a session: errors of reading, writing or removing are logged.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec

from microkernels.base.errors import ArtifactError, IsaError, TargetError
from microkernels.base.logs import logger

from ..executable.executable import Executable
from ..executable.load import load_library
from ..executable.machine_code import runs_here, takes_fallback
from ..frontend.onnx.reader.model_bytes import FileState, file_state
from ..runtime.threads import ThreadsLike
from .cache_folder import LIBRARY, NOTE, PROGRAMS, belongs_to_us
from .program_key import Note, read_note, write_note


def find(
    key: str, threads: ThreadsLike, weights: str | None, spin: str | None = None
) -> Executable | None:
    """Loads a program from the folder as `tvm_hybrid.load` does; None if there is none.

    A damaged program is removed. The checksums of a library and its weights are computed once per
    file; the file's size is always checked.
    """
    library = _library_path(key)
    try:
        descriptor = os.open(library, os.O_RDONLY)
    except OSError:
        return None
    with ExitStack() as stack:
        stack.callback(os.close, descriptor)
        if not belongs_to_us(descriptor):
            say_once(f"{library} belongs to somebody else, and is not used")
            return None
        try:
            note, state = read_note(_note_path(key), Note), file_state(library)
            checked = note.checked == state
            executable = load_library(library, threads, weights, checked, not checked, spin)
        except (ArtifactError, OSError, ValueError) as error:
            if library.exists():
                _drop_damaged(key, error)
            return None
        except (IsaError, TargetError) as error:  # compiling will raise it if it matters
            logger.info("%s is not used: %s", library, error)
            return None
        executable.declared = note.declared
        executable.hold_library(descriptor)
        stack.pop_all()
    if checked:
        _touch(_note_path(key))
    else:
        _note_checked(key, note, state)
    return executable


def find_refusal(key: str) -> Note | None:
    """Returns the note of why a program cannot exist, if that is known."""
    path = _note_path(key)
    if not path.is_file():
        return None
    try:
        note = read_note(path, Note)
    except (OSError, ValueError) as error:
        _drop_damaged(key, error)
        return None
    if not note.refusal:
        return None
    _touch(path)
    return note


def keep(key: str, executable: Executable) -> str:
    """Stores a newly compiled program if possible.

    Returns
    -------
    str
        Why the program is not kept; "" if it is.
    """
    manifest = executable.manifest
    size, most = executable.constant_bytes(), PROGRAMS.most_bytes()
    if not runs_here(manifest) and not takes_fallback(manifest):
        reason = "it is for another CPU"
    elif size > most:
        reason = f"its {size} bytes are alone larger than the cache of {most}"
    else:
        reason = _kept(key, executable)
    if reason:
        say_once(f"the program is not kept for the next start: {reason}")
    return reason


def _kept(key: str, executable: Executable) -> str:
    """Writes a program into the folder; returns the error, "" if there is none."""
    library = _library_path(key)
    started = time.perf_counter()
    try:
        PROGRAMS.make()
        write_note(_note_path(key), Note(declared=executable.declared))
        try:
            executable.export(library)
        except BaseException:
            if not library.exists():
                PROGRAMS.remove(key)
            raise
        # Renaming the file comes last, so its checksum, just computed, is that of this file.
        _note_checked(key, Note(declared=executable.declared), file_state(library))
        seconds = time.perf_counter() - started
        logger.info("kept for the next start, in %.1f s: %s", seconds, library)
        PROGRAMS.shrink(key)
    except Exception as error:
        return str(error)
    if library.exists():
        return ""
    return f"it is alone larger than the cache of {PROGRAMS.most_bytes()} bytes"


def keep_refusal(key: str, note: Note) -> None:
    """Stores why a program cannot exist."""
    try:
        PROGRAMS.make()
        write_note(_note_path(key), note)
        PROGRAMS.shrink(key)
    except Exception as error:
        say_once(f"why there is no such program is not kept for the next start: {error}")


@functools.cache
def say_once(text: str) -> None:
    """Logs a line once per process."""
    logger.info("%s", text)


def _library_path(key: str) -> Path:
    return PROGRAMS.path(key, LIBRARY)


def _note_path(key: str) -> Path:
    return PROGRAMS.path(key, NOTE)


def _drop_damaged(key: str, error: Exception) -> None:
    logger.warning("removed from the cache of programs, and compiled anew: %s", error)
    PROGRAMS.remove(key)


def _note_checked(key: str, note: Note, state: FileState) -> None:
    with contextlib.suppress(OSError):
        write_note(_note_path(key), msgspec.structs.replace(note, checked=state))


def _touch(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.utime(path)
