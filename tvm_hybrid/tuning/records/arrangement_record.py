"""ArrangementRecord: how a contraction is arranged best, as measured; a line of a record file.

    {"schema": 1, "kind": "arrangement", "contraction": "ab,cb->ac a12 b64 c128 float32 ...",
     "swapped": true, "batches": "", "rows": "c", "columns": "a", "steps": "b", ...}

The newest line that fits is used. One whose arrangement is that of the estimate says that none of
the others was faster.
"""

from __future__ import annotations

import statistics
from datetime import datetime, timezone
from typing import Any, Literal

import msgspec

from relay_passes.pipeline_options import PipelineOptions
from tir_schedules.tensorize.arrangement_problem import ArrangementChoice

from .record_line import SCHEMA
from .record_store import RecordStore

KIND = "arrangement"
VERSION = 1
"""Of what the letters mean; records of another version are not used."""


class ArrangementRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The arrangement of one contraction, measured on one machine.

    Attributes
    ----------
    schema, kind
        As in every line.
    version : int
        Of what the letters mean.
    contraction : str
        `ArrangementProblem.key`.
    machine, isa, threads
        As in a `Record`.
    precision : str
        How the model was compiled.
    swapped : bool
        Whether the operands change places.
    batches, rows, columns, steps : str
        The letters of the axes of each group, in order.
    times_us, default_times_us : list of float
        Microseconds of the contraction alone, arranged so and as the estimate says; samples at the
        same place were taken one right after the other. None if that is the estimate's.
    tried : int
        Candidates that were measured.
    date, tvm : str
        As in a `Record`.
    """

    schema: int = SCHEMA
    kind: Literal["arrangement"] = "arrangement"
    version: int = VERSION
    contraction: str
    machine: str
    isa: str
    threads: int
    precision: str = "auto"
    swapped: bool
    batches: str
    rows: str
    columns: str
    steps: str
    times_us: list[float] = []
    default_times_us: list[float] = []
    tried: int = 0
    date: str = ""
    tvm: str = ""

    @property
    def choice(self) -> ArrangementChoice:
        """What was best."""
        return ArrangementChoice(self.swapped, self.batches, self.rows, self.columns, self.steps)

    @property
    def speedup(self) -> float:
        """The estimate's time over this one's: the median of the pairs' quotients."""
        pairs = list(zip(self.default_times_us, self.times_us, strict=False))
        return statistics.median(other / mine for other, mine in pairs) if pairs else 1.0

    def fits(self, options: PipelineOptions) -> bool:
        """Whether it was measured for such a compilation, on such a machine."""
        wanted = {"version": VERSION, **_setting(options)}
        return all(getattr(self, name) == value for name, value in wanted.items())

    def to_line(self) -> bytes:
        """The record as one line of JSON, newline included."""
        return msgspec.json.encode(self) + b"\n"


def make_arrangement_record(
    contraction: str,
    choice: ArrangementChoice,
    options: PipelineOptions,
    times_us: list[float],
    default_times_us: list[float],
    tried: int,
) -> ArrangementRecord:
    """A record of now."""
    import tvm

    return ArrangementRecord(
        contraction=contraction,
        **_setting(options),
        **choice._asdict(),
        times_us=[round(value, 3) for value in times_us],
        default_times_us=[round(value, 3) for value in default_times_us],
        tried=tried,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        tvm=tvm.__version__,
    )


def _setting(options: PipelineOptions) -> dict[str, Any]:
    """What two compilations must have in common to arrange alike."""
    machine = options.machine
    return {
        "machine": machine.name,
        "isa": machine.isa.name,
        "threads": options.threads,
        "precision": options.precision,
    }


def find_arrangement(
    store: RecordStore, contraction: str, options: PipelineOptions
) -> tuple[ArrangementRecord, str] | None:
    """What a store knows of a contraction, with FILE:LINE; earlier files before later ones."""
    for file in store.files:
        for record, place in reversed(file.of_kind(KIND, ArrangementRecord)):
            if record.contraction == contraction and record.fits(options):
                return record, place
    return None
