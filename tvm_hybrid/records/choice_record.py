"""Choices that were measured to be faster than the compiler's own; lines of a record file.

    {"schema": 1, "version": 1, "machine": "znver4", ..., "kind": "layout", "graph": "bc29856cd8",
     "labels": {"4 conv2d ...": "first", ...}}
    {"schema": 1, "version": 1, "machine": "znver4", ..., "kind": "arrangement",
     "contraction": "ab,cb->ac a12 b64 c128 float32 ...", "swapped": true, "batches": "", ...}

The newest line that fits is used. One that makes the compiler's own choice takes back what was
written before, or says that nothing else was faster.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from relay_passes.layout.minimum_cut import FIRST, LAST
from relay_passes.pipeline_options import PipelineOptions
from tir_schedules.tensorize.arrangement import ArrangementChoice

from .record import RecordLine, stamp
from .record_file import RecordFile

Label = Literal["first", "last"]
_NAMES: dict[int, Label] = {FIRST: "first", LAST: "last"}
_NUMBERS: dict[str, int] = {name: label for label, name in _NAMES.items()}
R = TypeVar("R", bound="ChoiceRecord")
Times = list[float]


class ChoiceRecord(RecordLine, frozen=True, kw_only=True):
    """A choice for one part of a model, measured on one machine.

    Attributes
    ----------
    version : int
        Of what the choice means; only records of `VERSION` are used.
    machine, isa, threads
        As in a `Record`.
    precision : str
        How the model was compiled.
    times_us, default_times_us : list of float
        Microseconds with this choice and with the compiler's own; samples at the same place were
        taken one right after the other. None if this is the compiler's own.
    date, tvm : str
        As in a `Record`.
    NAME : str
        What `explain` calls such choices.
    """

    NAME: ClassVar[str]
    VERSION: ClassVar[int] = 1
    version: int = 1
    machine: str
    isa: str
    threads: int
    precision: str = "auto"
    times_us: Times = msgspec.field(default_factory=list)
    default_times_us: Times = msgspec.field(default_factory=list)
    date: str = ""
    tvm: str = ""

    @property
    def key(self) -> str:
        """What the choice is for."""
        raise NotImplementedError

    @property
    def speedup(self) -> float:
        """The time of the compiler's own choice over this one's: the median of the quotients."""
        pairs = list(zip(self.default_times_us, self.times_us, strict=False))
        return statistics.median(other / mine for other, mine in pairs) if pairs else 1.0

    @classmethod
    def made(
        cls: type[R],
        options: PipelineOptions,
        times_us: Times,
        default_times_us: Times,
        **fields: Any,
    ) -> R:
        """A record of now."""
        mine, others = ([round(us, 3) for us in each] for each in (times_us, default_times_us))
        about = {**cls._setting(options), **fields, **stamp()}
        return cls(times_us=mine, default_times_us=others, **about)

    @classmethod
    def find(
        cls: type[R], files: Iterable[RecordFile], key: str, options: PipelineOptions
    ) -> tuple[R, str] | None:
        """What files know for a key and such a compilation, with FILE:LINE; earlier files first."""
        wanted = cls._setting(options)
        for file in files:
            for record, place in reversed(file.of_kind(cls)):
                fields = (getattr(record, name) == value for name, value in wanted.items())
                if record.key == key and all(fields):
                    return record, place
        return None

    @classmethod
    def _setting(cls, options: PipelineOptions) -> dict[str, Any]:
        """The fields in which two compilations must be alike to share a choice."""
        machine = options.machine
        setting = {"version": cls.VERSION, "machine": machine.name, "isa": machine.isa.name}
        setting |= {"threads": options.threads, **options.code()}
        return {name: value for name, value in setting.items() if name in cls.__struct_fields__}


class LayoutRecord(ChoiceRecord, frozen=True, kw_only=True):
    """Layouts of one block; times are those of the whole model with all its blocks' layouts.

    Attributes
    ----------
    graph : str
        The block's key: `relay_passes.layout.search_space.block_key`.
    fusion, fast_math : str
        How the model was compiled.
    labels : dict
        Operator -> "first" or "last", for every one that has a choice.
    trials : int
        Configurations that were measured on the way.
    """

    KIND: ClassVar[str] = "layout"
    NAME: ClassVar[str] = "layouts"
    kind: Literal["layout"] = "layout"
    graph: str
    fusion: str = "coarse"
    fast_math: str = "default"
    labels: dict[str, Label]
    trials: int = 0

    @property
    def key(self) -> str:
        return self.graph

    @staticmethod
    def names_of(labels: Mapping[str, int]) -> dict[str, Label]:
        """Labels of passes as `labels` has them."""
        return {name: _NAMES[label] for name, label in labels.items()}

    @property
    def numbers(self) -> dict[str, int]:
        """The labels as passes have them."""
        return {name: _NUMBERS[label] for name, label in self.labels.items()}


class ArrangementRecord(ChoiceRecord, frozen=True, kw_only=True):
    """The arrangement of one contraction; times are those of the contraction alone.

    Attributes
    ----------
    contraction : str
        `ArrangementProblem.key`.
    swapped : bool
        Whether the operands change places.
    batches, rows, columns, steps : str
        The letters of the axes of each group, in order.
    tried : int
        Candidates that were measured.
    """

    KIND: ClassVar[str] = "arrangement"
    NAME: ClassVar[str] = "arrangement"
    kind: Literal["arrangement"] = "arrangement"
    contraction: str
    swapped: bool
    batches: str
    rows: str
    columns: str
    steps: str
    tried: int = 0

    @property
    def key(self) -> str:
        return self.contraction

    @property
    def choice(self) -> ArrangementChoice:
        """What was best."""
        return ArrangementChoice(self.swapped, self.batches, self.rows, self.columns, self.steps)
