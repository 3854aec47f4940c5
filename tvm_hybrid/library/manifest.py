"""Manifest: what an executable knows about itself; it is stored in an exported library."""

from __future__ import annotations

import hashlib
import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import msgspec

from relay_passes.ir.decisions import Decision

from ..runtime.feeds import InputValue
from ..runtime.tensors import OutputInfo, TensorInfo
from ..version_check import __version__
from .weights_file import StoredWeight

FORMAT = 2
READ_FORMATS = (1, 2)  # 1: without weights, which are constants in the program's code then


class Coverage(msgspec.Struct, frozen=True):
    """How much of the model our templates build.

    Attributes
    ----------
    taken, nodes : int
        Decisions in all, and those for a template of ours.
    """

    taken: int
    nodes: int


class BoundOutput(msgspec.Struct, frozen=True):
    """An output that the program can write into memory of the caller.

    Attributes
    ----------
    number : int
        Of the output.
    cache : int or None
        The input whose memory it may be, with new rows behind those of the input; heads of the
        input may lie apart.
    anywhere : bool
        Whether its memory may lie anywhere; else it must be aligned to 64 bytes.
    has_room : bool
        Whether its heads may lie apart, too.
    """

    number: int
    cache: int | None = None
    anywhere: bool = False
    has_room: bool = False


class ChosenOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that a program, a record or a report keeps, as `CompileOptions` has them."""

    precision: str = "auto"
    fusion: str = "coarse"
    fast_math: str = "default"

    def chosen(self) -> dict[str, Any]:
        """These options by name, for what else has them."""
        return {name: getattr(self, name) for name in ChosenOptions.__struct_fields__}


class Manifest(ChosenOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that is known about an executable besides its code.

    Attributes
    ----------
    format : int
        Version of this structure.
    versions : dict
        Package name -> version that compiled it.
    cpu : str
        LLVM's name of the CPU it is for.
    target : str
        TVM's text of the target.
    isa : str
        The highest instruction set that kernels may use.
    features : tuple of str
        What a CPU must have to run it, in LLVM's spelling.
    threads : int
        Threads that it is built for, and runs with.
    precision, fusion, fast_math : str
        What was asked for.
    inputs : tuple of TensorInfo
    outputs : tuple of OutputInfo
        In the order of the calling convention.
    limits : dict
        Open sizes of inputs, in words, and the largest numbers that they may be.
    values : tuple of InputValue
        Inputs of the model that the program does not take: it was made for these values.
    shared_outputs : tuple of bool
        Whether an output may share memory with an input, a weight or another output.
    unaligned_inputs : tuple of bool
        Whether kernels read an input wherever it lies; else it must be aligned to 64 bytes.
    bound_outputs : tuple of BoundOutput
        The outputs that the program can write into memory of the caller.
    coverage : Coverage
        How much of the model our templates build.
    decisions : tuple of Decision
        What `explain` shows.
    records : tuple of RecordUse
        The tuning records that gave regions their configurations, in order of the regions' keys.
    model_sha256 : str
        Hash of the compiled program before it is linked; equal for equal models and options.
    weights : tuple of StoredWeight
        What lies behind the library in an exported file.
    fallback : Manifest or None
        A second program of the same model, which runs where this one cannot.
    outline : bytes
        Of an exported library: its graph and its memory for `report`, packed; else empty.
    """

    format: int = FORMAT
    versions: dict[str, str]
    cpu: str
    target: str
    isa: str
    features: tuple[str, ...]
    threads: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[OutputInfo, ...]
    limits: dict[str, int] = {}
    values: tuple[InputValue, ...] = ()
    shared_outputs: tuple[bool, ...]
    unaligned_inputs: tuple[bool, ...]
    bound_outputs: tuple[BoundOutput, ...] = ()
    coverage: Coverage
    decisions: tuple[Decision, ...]
    records: tuple[RecordUse, ...] = ()
    model_sha256: str = ""
    weights: tuple[StoredWeight, ...] = ()
    fallback: Manifest | None = None
    outline: bytes = b""

    def to_json(self) -> bytes:
        """The manifest as JSON."""
        return msgspec.json.encode(self)


def package_versions() -> dict[str, str]:
    """The versions that decide what the compiler makes of a model."""
    versions = {"tvm_hybrid": __version__}
    for name in ("apache-tvm", "apache-tvm-ffi"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed as a package"
    return versions


How = Literal["exact", "other machine", "borrowed"]


class RecordUse(msgspec.Struct, frozen=True, kw_only=True):
    """A record that a compiled model was built with.

    Attributes
    ----------
    workload : str
        Key of the region that was built.
    how : str
        "exact": it was measured on this region; "other machine": there, but elsewhere; "borrowed":
        on another region, of the same kind.
    shipped : bool
        Whether it is one of the package's.
    file : str
        The record file.
    line : int
        Its line.
    measured : str
        Key of the region that it was measured on.
    sha256 : str
        Hash of the record's line as its `to_line` writes it.
    """

    workload: str
    how: How
    shipped: bool
    file: str
    line: int
    measured: str
    sha256: str

    @staticmethod
    def of(
        workload: str, how: How, shipped: bool, place: str, measured: str, line: bytes
    ) -> RecordUse:
        """The use of the record that stands at `place`, FILE:LINE, as this line."""
        file, _, number = place.rpartition(":")
        return RecordUse(
            workload=workload,
            how=how,
            shipped=shipped,
            file=os.path.basename(file) if shipped else file,
            line=int(number),
            measured=measured,
            sha256=hashlib.sha256(line).hexdigest(),
        )


def uses_in(lookup: object) -> tuple[RecordUse, ...]:
    """The records that a lookup has given, in order of the regions' keys; none if it is None."""
    uses: dict[str, RecordUse] = getattr(lookup, "uses", {})
    return tuple(uses[key] for key in sorted(uses))
