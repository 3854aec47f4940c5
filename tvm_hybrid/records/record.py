"""Record: what one measurement of one configuration found; one JSON object on one line."""

from __future__ import annotations

import math
import statistics
from typing import Any, ClassVar, Literal

import msgspec

from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template

from .record_line import RECORD, RecordLine, UnreadableLine, decode, stamp

Status = Literal["ok", "compile_error", "runtime_error", "wrong_result", "timeout"]


class Record(RecordLine, frozen=True, kw_only=True):
    """One configuration of one region, tried on one machine.

    Attributes
    ----------
    schema
        As in every line.
    workload : str
        The region's key.
    region : Region
        The region itself.
    template : str
        Name of the template that built it.
    version : int
        The template's version; measurements of another version are not used.
    isa : str
        The instruction set that the code was built for.
    machine : str
        The CPU's LLVM name.
    threads : int
        Threads that the kernel used.
    config : dict
        Fields of the template's Config.
    status : str
        "ok", or what went wrong.
    times_us : list of float
        Microseconds of one call, one number for each sample; empty unless `status` is "ok".
    baseline_us : float or None
        Median microseconds of the default configuration, sampled in turns with this one, so that
        the quotient of both does not depend on what the machine did meanwhile.
    confirmed : bool or None
        Whether a longer measurement at the end of a search showed with significance that it is
        faster than the default configuration; always true of the default itself. Once one record
        of a region on a machine says so or not, only confirmed ones are chosen. None: not known.
    predicted : float or None
        Speed as a multiple of the default configuration's that the search expected before it
        measured; None if it expected nothing.
    error : str
        What went wrong, in words.
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
        """Time as a multiple of the default configuration's; None if that was not measured."""
        if not self.times_us or not self.baseline_us:
            return None
        return self.median_us / self.baseline_us

    @property
    def is_default(self) -> bool:
        """Whether this was the default configuration when it was measured: its own baseline."""
        return self.relative == 1.0

    def fits(self, template: Template[Any], machine: Machine) -> bool:
        """Whether it was measured with this template's code and as many threads on this ISA."""
        return (
            self.template == template.name
            and self.version == template.version
            and self.isa == machine.isa.name
            and self.threads == machine.threads
        )

    def to_line(self) -> bytes:
        fields = msgspec.to_builtins(self)
        _name_infinities(fields["region"])
        return msgspec.json.encode(fields) + b"\n"

    @classmethod
    def _decoded(cls, line: bytes) -> Record:
        if any(name in line for name in _INFINITIES):
            return _with_infinities(line)
        return decode(line, cls)


# JSON has no such numbers: constants of an epilogue are written as these strings.
_INFINITIES = (b'"Infinity"', b'"-Infinity"', b'"NaN"')


def _name_infinities(region: dict[str, Any]) -> None:
    for step in region["epilogue"]:
        value = step["value"]
        if value is not None and not math.isfinite(value):
            step["value"] = "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    for part in region["parts"]:
        _name_infinities(part)


def _with_infinities(line: bytes) -> Record:
    fields = decode(line, Any)
    try:
        _number_infinities(fields["region"])
        return msgspec.convert(fields, Record)
    except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
        raise UnreadableLine("foreign", f"JSON, but not of ours: {error}") from error


def _number_infinities(region: dict[str, Any]) -> None:
    for step in region.get("epilogue", ()):
        if step.get("value") in ("Infinity", "-Infinity", "NaN"):
            step["value"] = float(step["value"])
    for part in region.get("parts", ()):
        _number_infinities(part)


def make_record(
    region: Region,
    template: Template[Any],
    machine: Machine,
    config: Config,
    status: Status,
    times_us: list[float] | None = None,
    baseline_us: float | None = None,
    error: str = "",
    confirmed: bool | None = None,
    predicted: float | None = None,
) -> Record:
    """A record of now, with everything that follows from the region, template and machine."""
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
        times_us=times_us or [],
        baseline_us=baseline_us,
        confirmed=confirmed,
        predicted=predicted,
        error=error,
        **stamp(),
    )
