"""LayoutRecord: layouts of a block that were measured to be faster; a line of a record file.

    {"schema": 1, "kind": "layout", "graph": "bc29856cd87450a0", "labels": {"4 conv2d ...": "first",
     ...}, "times_us": [...], "default_times_us": [...], ...}

The newest line that fits is used. One whose labels are those of the cheapest cut takes back what
was written before.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Literal

import msgspec

from relay_passes.layout.minimum_cut import FIRST, LAST
from relay_passes.pipeline_options import PipelineOptions

from ...manifest import ChosenOptions
from .record_line import SCHEMA
from .record_store import RecordStore

KIND = "layout"
VERSION = 1
"""Of what the labels mean; records of another version are not used."""

Label = Literal["first", "last"]
_NAMES: dict[int, Label] = {FIRST: "first", LAST: "last"}
_NUMBERS: dict[str, int] = {name: label for label, name in _NAMES.items()}


class LayoutRecord(ChosenOptions, frozen=True, kw_only=True):
    """Layouts of one block, measured on one machine.

    Attributes
    ----------
    schema, kind
        As in every line.
    version : int
        Of what the labels mean.
    graph : str
        The block's key: `relay_passes.layout.search_space.block_key`.
    machine, isa, threads
        As in a `Record`.
    precision, fusion, fast_math : str
        How the model was compiled.
    labels : dict
        Operator -> "first" or "last", for every one that has a choice.
    times_us, default_times_us : list of float
        Microseconds of the whole model with all its blocks' layouts, and with those of the cheapest
        cut; samples at the same place were taken one right after the other.
    trials : int
        Configurations that were measured on the way.
    date, tvm : str
        As in a `Record`.
    """

    schema: int = SCHEMA
    kind: Literal["layout"] = "layout"
    version: int = VERSION
    graph: str
    machine: str
    isa: str
    threads: int
    labels: dict[str, Label]
    times_us: list[float] = msgspec.field(default_factory=list)
    default_times_us: list[float] = msgspec.field(default_factory=list)
    trials: int = 0
    date: str = ""
    tvm: str = ""

    @property
    def speedup(self) -> float | None:
        """The cheapest cut's time over this one's: the median of the pairs' quotients."""
        pairs = list(zip(self.default_times_us, self.times_us, strict=False))
        return statistics.median(other / mine for other, mine in pairs) if pairs else None

    def fits(self, options: PipelineOptions) -> bool:
        """Whether it was measured for such a compilation, on such a machine."""
        wanted = {"version": VERSION, **_setting(options)}
        return all(getattr(self, name) == value for name, value in wanted.items())

    def to_line(self) -> bytes:
        """The record as one line of JSON, newline included."""
        return msgspec.json.encode(self) + b"\n"


def make_layout_record(
    graph: str,
    labels: Mapping[str, int],
    options: PipelineOptions,
    times_us: list[float],
    default_times_us: list[float],
    trials: int = 0,
) -> LayoutRecord:
    """A record of now."""
    import tvm

    return LayoutRecord(
        graph=graph,
        **_setting(options),
        labels={name: _NAMES[label] for name, label in labels.items()},
        times_us=[round(value, 3) for value in times_us],
        default_times_us=[round(value, 3) for value in default_times_us],
        trials=trials,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        tvm=tvm.__version__,
    )


def _setting(options: PipelineOptions) -> dict[str, Any]:
    """What two compilations must have in common to use the same layouts."""
    machine = options.machine
    return {
        "machine": machine.name,
        "isa": machine.isa.name,
        "threads": options.threads,
        **options.code(),
    }


def find_layout(
    store: RecordStore, graph: str, options: PipelineOptions
) -> tuple[LayoutRecord, str] | None:
    """What a store knows of a block, with FILE:LINE; earlier files before later ones."""
    for file in store.files:
        for record, place in reversed(file.of_kind(KIND, LayoutRecord)):
            if record.graph == graph and record.fits(options):
                return record, place
    return None


def labels_of(record: LayoutRecord) -> dict[str, int]:
    """The labels as passes have them."""
    return {name: _NUMBERS[label] for name, label in record.labels.items()}
