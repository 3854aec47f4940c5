"""Records of choices that were measured to be faster than the compiler's default.

    {"schema": 1, "version": 1, "machine": "znver4", ..., "kind": "layout", "graph": "bc29856cd8",
     "labels": {"4 conv2d ...": "first", ...}}
    {"schema": 1, "version": 1, "machine": "znver4", ..., "kind": "arrangement",
     "contraction": "ab,cb->ac a12 b64 c128 float32 ...", "swapped": true, "batches": "", ...}

The newest line that fits is used. A line with the compiler's default revokes earlier lines, or
states that no other choice was faster.
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
        Version of the choice's meaning; only records of `VERSION` are used.
    machine, isa, threads
        See `Record`.
    precision : str
        How the model was compiled.
    times_us, default_times_us : list of float
        Microseconds with this choice and with the compiler's default; samples at equal places were
        taken one right after the other. Empty if this is the compiler's default.
    date, tvm : str
        See `Record`.
    NAME : str
        Name of such choices in `explain`.
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
        """Key of the part of the model that the choice is for."""
        raise NotImplementedError

    @property
    def speedup(self) -> float:
        """How many times faster than the compiler's default: the median of the quotients."""
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
        """Makes a record with the current date."""
        mine, others = ([round(us, 3) for us in each] for each in (times_us, default_times_us))
        about = {**cls._setting(options), **fields, **stamp()}
        return cls(times_us=mine, default_times_us=others, **about)

    @classmethod
    def find(
        cls: type[R], files: Iterable[RecordFile], key: str, options: PipelineOptions
    ) -> tuple[R, str] | None:
        """Finds a record and its FILE:LINE for a key and a compilation; earlier files first."""
        wanted = cls._setting(options)
        for file in files:
            for record, place in reversed(file.of_kind(cls)):
                fields = (getattr(record, name) == value for name, value in wanted.items())
                if record.key == key and all(fields):
                    return record, place
        return None

    @classmethod
    def _setting(cls, options: PipelineOptions) -> dict[str, Any]:
        """The fields that must be equal for two compilations to share a choice."""
        machine = options.machine
        setting = {"version": cls.VERSION, "machine": machine.name, "isa": machine.isa.name}
        setting |= {"threads": options.threads, **options.code()}
        return {name: value for name, value in setting.items() if name in cls.__struct_fields__}


class LayoutRecord(ChoiceRecord, frozen=True, kw_only=True):
    """Layouts of one block; times are those of the whole model with the layouts of all its blocks.

    Attributes
    ----------
    graph : str
        The block's key: `relay_passes.layout.search_space.block_key`.
    fusion, fast_math : str
        How the model was compiled.
    labels : dict
        Operator -> "first" or "last", for every operator with a choice.
    trials : int
        Configurations measured by the search.
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
        """Converts the passes' labels to those of a record."""
        return {name: _NAMES[label] for name, label in labels.items()}

    @property
    def numbers(self) -> dict[str, int]:
        """The labels in the form that passes use."""
        return {name: _NUMBERS[label] for name, label in self.labels.items()}


class ArrangementRecord(ChoiceRecord, frozen=True, kw_only=True):
    """The arrangement of one contraction; times are those of the contraction alone.

    Attributes
    ----------
    contraction : str
        `ArrangementProblem.key`.
    swapped : bool
        Whether the operands are swapped.
    batches, rows, columns, steps : str
        Letters of the axes of each group, in order.
    tried : int
        Number of measured candidates.
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
        """The best arrangement."""
        return ArrangementChoice(self.swapped, self.batches, self.rows, self.columns, self.steps)
