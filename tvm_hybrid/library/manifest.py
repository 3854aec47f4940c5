"""Manifest: what an executable knows about itself; exported libraries contain it."""

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
READ_FORMATS = (1, 2)  # in format 1, weights are constants in the program's code


class Coverage(msgspec.Struct, frozen=True):
    """How much of the model our templates build.

    Attributes
    ----------
    taken, nodes : int
        Decisions for a template of ours, and all decisions.
    """

    taken: int
    nodes: int


class BoundOutput(msgspec.Struct, frozen=True):
    """An output that the program can write into memory of the caller.

    Attributes
    ----------
    number : int
        Position of the output.
    cache : int or None
        The input whose memory the output may reuse: its rows, then new rows; the input's heads may
        lie apart.
    anywhere : bool
        Whether the output's memory may have any alignment; else it must be aligned to 64 bytes.
    has_room : bool
        Whether the output's heads may lie apart too.
    """

    number: int
    cache: int | None = None
    anywhere: bool = False
    has_room: bool = False


class ChosenOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that a program, a record or a report keeps; `CompileOptions` explains them."""

    precision: str = "auto"
    fusion: str = "coarse"
    fast_math: str = "default"

    def chosen(self) -> dict[str, Any]:
        """These options as a dictionary, to be passed on."""
        return {name: getattr(self, name) for name in ChosenOptions.__struct_fields__}


class Manifest(ChosenOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is known about an executable besides its code.

    Attributes
    ----------
    format : int
        Version of this structure.
    versions : dict
        Package name -> version, at compile time.
    cpu : str
        LLVM's name of the CPU that it is compiled for.
    target : str
        TVM's text of the target.
    isa : str
        The highest instruction set that kernels may use.
    features : tuple of str
        CPU features that it needs, by LLVM's names.
    threads : int
        Threads that it is built for, and runs with.
    precision, fusion, fast_math : str
        The options as given.
    inputs : tuple of TensorInfo
    outputs : tuple of OutputInfo
        Inputs and outputs in the order of the calling convention.
    limits : dict
        Dynamic sizes of inputs, as text, and the largest values that they may have.
    values : tuple of InputValue
        Inputs of the model that the program does not take: it was compiled for these values.
    shared_outputs : tuple of bool
        Whether an output may share memory with an input, a weight or another output.
    unaligned_inputs : tuple of bool
        Whether kernels read an input at any alignment; else it must be aligned to 64 bytes.
    bound_outputs : tuple of BoundOutput
        The outputs that the program can write into memory of the caller.
    coverage : Coverage
        How much of the model our templates build.
    decisions : tuple of Decision
        The decisions that `explain` shows.
    records : tuple of RecordUse
        Tuning records that gave regions their configurations, in order of the regions' keys.
    model_sha256 : str
        Hash of the compiled program before it is linked; equal for equal models and options.
    weights : tuple of StoredWeight
        The weights behind the library in an exported file.
    fallback : Manifest or None
        The second program of the model, which runs where this one cannot.
    outline : bytes
        Graph and memory of an exported library for `report`, packed; else empty.
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
    """Versions of the packages that influence what the compiler makes of a model."""
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
        "exact": measured on this region; "other machine": on this region, but on another machine;
        "borrowed": on another region of the same kind.
    shipped : bool
        Whether the record comes with the package.
    file : str
        The record file.
    line : int
        The line number in the file.
    measured : str
        Key of the region that the record was measured on.
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
        """Describes the use of a record that stands at `place`, FILE:LINE, with this line."""
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
    """The records that a lookup has returned, in order of the regions' keys; () if it is None."""
    uses: dict[str, RecordUse] = getattr(lookup, "uses", {})
    return tuple(uses[key] for key in sorted(uses))
