"""Record: the result of measuring one configuration; one JSON object on one line."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any, ClassVar, Literal, TypeVar

import msgspec
import tvm

from microkernels.base.errors import RecordError
from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template

# Lines of record files: fields common to all kinds, and errors of unreadable lines.
#
# Every line is a JSON object with the version of its format in `schema`. A line without `kind` is a
# `Record`; others, such as choices of layouts, name their kind.


SCHEMA = 1
RECORD = "record"
Why = Literal["torn", "foreign", "newer"]
L = TypeVar("L", bound="RecordLine")


class UnreadableLine(RecordError):
    """A line that cannot be read and is skipped.

    Attributes
    ----------
    why : str
        "torn": not a whole line of JSON; "foreign": JSON, but not a record; "newer": written by a
        later version.
    """

    def __init__(self, why: Why, message: str) -> None:
        super().__init__(f"{why}: {message}")
        self.why = why


class Header(msgspec.Struct, frozen=True):
    """The fields that all lines have."""

    schema: int
    kind: str = RECORD


class RecordLine(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all kinds of lines; a subclass has a field `kind`, which only a `Record` lacks.

    Attributes
    ----------
    KIND : str
        The value of `kind`.
    schema : int
        Version of this format.
    """

    KIND: ClassVar[str]
    schema: int = SCHEMA

    def to_line(self) -> bytes:
        """Formats the record as one line of JSON, newline included."""
        return msgspec.json.encode(self) + b"\n"

    @classmethod
    def from_line(cls: type[L], line: bytes) -> L:
        """Parses a line of `to_line`.

        Raises
        ------
        UnreadableLine
            If the line is not of this kind, or was written by a newer version.
        """
        if read_header(line).kind != cls.KIND:
            raise UnreadableLine("foreign", f"JSON, but of another kind than {cls.KIND!r}")
        return cls._decoded(line)

    @classmethod
    def _decoded(cls: type[L], line: bytes) -> L:
        """Parses a line whose header has been checked."""
        return decode(line, cls)


def read_header(line: bytes) -> Header:
    """Parses a line's format and kind.

    Raises
    ------
    UnreadableLine
        If the line is torn or foreign, or was written by a newer version.
    """
    header = decode(line, Header)
    if header.schema > SCHEMA:
        reads = f"this version reads up to {SCHEMA}, update tvm_hybrid"
        raise UnreadableLine("newer", f"written in format {header.schema}; {reads}")
    return header


def decode(line: bytes, type: Any) -> Any:
    """Parses a line as a type, and classifies errors.

    Raises
    ------
    UnreadableLine
        If the line is torn or foreign.
    """
    try:
        return msgspec.json.decode(line, type=type)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnreadableLine("foreign", f"JSON, but not of ours: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableLine("torn", f"not a whole line of JSON: {error}") from error


def stamp() -> dict[str, Any]:
    """Makes the fields `date` (now; ISO 8601, UTC) and `tvm` (its version) of a record."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"date": now, "tvm": tvm.__version__}


Status = Literal["ok", "compile_error", "runtime_error", "wrong_result", "timeout"]


class Record(RecordLine, frozen=True, kw_only=True):
    """A measurement of one configuration of one region on one machine.

    Attributes
    ----------
    schema
        See `RecordLine`.
    workload : str
        The region's key.
    region : Region
        The region itself.
    template : str
        Name of the template that built it.
    version : int
        The template's version; measurements of another version are not used.
    isa : str
        Instruction set of the code.
    machine : str
        The CPU's LLVM name.
    threads : int
        Threads that the kernel used.
    config : dict
        Fields of the template's Config.
    status : str
        "ok", or the kind of failure.
    times_us : list of float
        Microseconds of one call, one number for each sample; empty unless `status` is "ok".
    baseline_us : float or None
        Microseconds of the default configuration, sampled in turns with this one, so that the
        quotient does not depend on the state of the machine.
    confirmed : bool or None
        Whether a longer measurement at the end of a search showed significantly that it is faster
        than the default configuration; always true for the default itself. Once any record of a
        region on a machine has a value, only confirmed ones are chosen. None: unknown.
    predicted : float or None
        Speed relative to the default configuration that the search predicted before it measured;
        None without a prediction.
    error : str
        Description of the failure.
    date : str
        ISO 8601, UTC.
    tvm : str
        TVM's version.
    """

    KIND: ClassVar[str] = RECORD
    workload: str
    region: Region
    template: str
    version: int
    isa: str
    machine: str
    threads: int
    config: dict[str, Any]
    status: Status
    times_us: list[float] = msgspec.field(default_factory=list)
    baseline_us: float | None = None
    confirmed: bool | None = None
    predicted: float | None = None
    error: str = ""
    date: str = ""
    tvm: str = ""

    @property
    def median_us(self) -> float:
        """Median of the samples, in microseconds; infinite if there are none."""
        return statistics.median(self.times_us) if self.times_us else float("inf")

    @property
    def relative(self) -> float | None:
        """Time as a multiple of the default configuration's; None if that is unknown."""
        if not self.times_us or not self.baseline_us:
            return None
        return self.median_us / self.baseline_us

    @property
    def is_default(self) -> bool:
        """Whether this was the default configuration at its measurement, and so its baseline."""
        return self.relative == 1.0

    def fits(self, template: Template[Any], machine: Machine) -> bool:
        """Whether template, version, ISA and number of threads agree."""
        mine = self.template, self.version, self.isa, self.threads
        return mine == (template.name, template.version, machine.isa.name, machine.threads)

    def to_line(self) -> bytes:
        fields = msgspec.to_builtins(self)
        for step in _steps_of(fields["region"]):
            value = step["value"]
            if value is not None and not math.isfinite(value):
                sign = "-" * (value < 0)
                step["value"] = "NaN" if value != value else f"{sign}Infinity"
        return msgspec.json.encode(fields) + b"\n"

    @classmethod
    def _decoded(cls, line: bytes) -> Record:
        if not any(name.encode() in line for name in _INFINITIES):
            return decode(line, cls)
        fields = decode(line, Any)
        try:
            for step in _steps_of(fields["region"]):
                if step.get("value") in _INFINITIES:
                    step["value"] = float(step["value"])
            return msgspec.convert(fields, Record)
        except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
            raise UnreadableLine("foreign", f"JSON, but not of ours: {error}") from error


# JSON has no infinity and NaN: constants of an epilogue are written as these strings.
_INFINITIES = ("Infinity", "-Infinity", "NaN")


def _steps_of(region: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The steps of all epilogues in a region and its parts."""
    yield from region.get("epilogue", ())
    for part in region.get("parts", ()):
        yield from _steps_of(part)


def make_record(
    region: Region,
    template: Template[Any],
    machine: Machine,
    config: Config,
    status: Status,
    times_us: Sequence[float] = (),
    baseline_us: float | None = None,
    **fields: Any,
) -> Record:
    """Makes a record with the current date and the facts of region, template and machine."""
    return Record(
        workload=region.key,
        region=region,
        template=template.name,
        version=template.version,
        isa=machine.isa.name,
        machine=machine.name,
        threads=machine.threads,
        config=config.to_dict(),
        status=status,
        times_us=list(times_us),
        baseline_us=baseline_us,
        **fields,
        **stamp(),
    )
