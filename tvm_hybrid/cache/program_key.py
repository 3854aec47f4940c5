"""The key of a compiled program: equal only if compiling would give an equal program."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from tvm.ir.transform import PassContext
from tvm.target import Target

from microkernels.base.errors import OutputError
from microkernels.base.files import write_whole
from microkernels.base.logs import logger
from microkernels.machines.guesses import unknown_numbers
from microkernels.machines.machine import Machine

from ..frontend.onnx.reader.model_bytes import (
    FileState,
    ModelBytes,
    are_older,
    are_unchanged,
    file_state,
)
from ..library.manifest import FORMAT, package_versions
from ..options import CompileOptions, Records, fallback_of, setting_of, target_of
from ..records.record_paths import default_record_paths, records_refused
from ..runtime.tensors import DeclaredInterface
from .cache_folder import NOTE, PROGRAMS

PACKAGES = ("microkernels", "tir_schedules", "relay_passes", "tvm_hybrid")
_READERS = ("onnx", "numpy", "ml_dtypes")
_SOURCES = (".py", ".ll", ".json", ".jsonl")  # code, CPU descriptions, shipped records
_IMPORTED = time.time_ns()
_NOT_AS_GIVEN = frozenset(
    {
        *("target", "machine", "fallback", "num_threads", "threads", "records"),  # resolved first
        *("shapes", "values"),  # None equals an empty mapping
        *("weights", "spin", "cache", "dump_ir"),  # properties of a process, not of a program
    }
)


@dataclass(frozen=True)
class ProgramKey:
    """The key of a program.

    Attributes
    ----------
    text : str
        SHA-256 of everything that decides the program.
    files : tuple
        States of the files that were read for it.
    """

    text: str
    files: tuple[FileState, ...]

    def holds(self) -> bool:
        """Whether a program compiled since then fits the key: no file has changed."""
        return sources_are_imported() and are_unchanged(self.files)


def program_key(model: ModelBytes, options: CompileOptions) -> ProgramKey:
    """Computes the key of a program.

    Parameters
    ----------
    model : ModelBytes
    options : CompileOptions
        How it is compiled.

    Raises
    ------
    TvmHybridError
        If there is no such target, or its description cannot be read.
    OSError
        If a record file cannot be read.
    TypeError
        If an argument cannot be part of a key.
    """
    target = target_of(options)
    second = fallback_of(options, target)
    targets = [target] if second is None else [target, second]
    records, files = _records(options.records)
    given = {name: value for name, value in vars(options).items() if name not in _NOT_AS_GIVEN}
    # The caller's settings of TVM's passes.
    context = PassContext.current()
    passes = [*map(str, context.required_pass)], [*map(str, context.disabled_pass)]
    content = [
        FORMAT,
        package_versions(),
        [version(name) for name in _READERS],
        stamp(),
        model.digest,
        [_machine(each) for each in targets],
        setting_of(options, here=False).count,
        records,
        [context.opt_level, *passes, str(context.config)],
        _plain(given),
        _plain(options.shapes or {}),
        _plain(options.values or {}),
    ]
    text = msgspec.json.encode(content, order="deterministic")
    return ProgramKey(hashlib.sha256(text).hexdigest(), (*model.files, *files))


def _machine(target: Target) -> list[Any]:
    """The facts of a CPU that decide a program."""
    machine = Machine.from_target(target)
    numbers = {name: number.value for name, number in machine.description.numbers.items()}
    unknown = unknown_numbers(machine.description)
    return [str(target), machine.name, machine.isa.name, numbers, unknown]


def _records(records: Records) -> tuple[list[Any] | None, list[FileState]]:
    """The user's record files with digests, None if records are disabled; and their states."""
    if records is None:  # the package's own record files count as sources, in `stamp`
        names: Sequence[str | os.PathLike[str]] = default_record_paths()
        refused = records_refused()
    else:
        names = [records] if isinstance(records, (str, os.PathLike)) else records
        refused = not names
    if refused:
        return None, []
    paths = [Path(name) for name in names]
    files = [file_state(path) for path in paths]
    found = [[str(path), hashlib.sha256(path.read_bytes()).hexdigest()] for path in paths]
    return found, files


def _plain(value: Any) -> Any:
    """Converts a value to JSON, so that different values stay different."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"float": float(value).hex()}
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise TypeError("an array of objects")
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        return {"array": [array.dtype.name, array.shape, digest]}
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise TypeError("a mapping from something else than names")
        return {"mapping": [[name, _plain(value[name])] for name in sorted(value)]}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    raise TypeError(f"a {type(value).__name__}")


Sources = list[tuple[str, int, int]]


def sources_are_imported() -> bool:
    """Whether our packages' sources are unchanged since this process imported them."""
    sources = _sources()
    old = all(changed < _IMPORTED for _, _, changed in sources)
    return old and sources == _first_sources()


def stamp() -> str:
    """Digest of our packages' sources at the first call in this process."""
    return hashlib.sha256(msgspec.json.encode(_first_sources())).hexdigest()


def _sources() -> Sources:
    """Path, size and time of change of every source file."""
    top = Path(__file__).parents[2]
    found = [entry for name in PACKAGES for entry in _walk(str(top / name))]
    return sorted((path.removeprefix(str(top)), size, changed) for path, size, changed in found)


def _walk(folder: str) -> Sources:
    found: Sources = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    found += _walk(entry.path)
            elif entry.name.endswith(_SOURCES):
                state = entry.stat()
                found.append((entry.path, state.st_size, state.st_mtime_ns))
    return found


_first_sources = functools.cache(_sources)


AnyNote = TypeVar("AnyNote", bound=msgspec.Struct)


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a program in addition to its library.

    Attributes
    ----------
    declared : DeclaredInterface or None
        What the model declares, if sizes are dynamic.
    refusal : str
        Why there is no such program; empty if there is one.
    inputs : tuple of str
        Inputs whose values compiling would need.
    checked : tuple or None
        State of the library's file when its checksums were verified.
    """

    declared: DeclaredInterface | None = None
    refusal: str = ""
    inputs: tuple[str, ...] = ()
    checked: FileState | None = None


class _Checked(msgspec.Struct):
    sha256: str
    note: msgspec.Raw


def write_note(path: Path, note: msgspec.Struct) -> None:
    """Writes a note with its checksum.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    text = msgspec.json.encode(note)
    checked = _Checked(hashlib.sha256(text).hexdigest(), msgspec.Raw(text))
    write_whole(path, msgspec.json.encode(checked))


def read_note(path: Path, kind: type[AnyNote]) -> AnyNote:
    """Reads a note of a kind, and verifies its checksum.

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


class _ModelDigest(msgspec.Struct, frozen=True):
    """SHA-256 of a model, and the state of its files."""

    digest: str
    files: tuple[FileState, ...]


def model_bytes(model: Any) -> ModelBytes:
    """Computes the digest of a model, or finds it in the cache if the model's files are unchanged.

    A note in the cache of programs has the digest, and size, times and inode of all files of the
    model. Like git, we do not trust a file that was hashed soon after its last change: it may have
    changed again within the resolution of its time. Otherwise it works like `ModelBytes.of`, but
    does not read files whose digest is known.

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
    with contextlib.suppress(OSError, ValueError):  # the note is missing or damaged
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
