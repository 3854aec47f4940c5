"""RecordLookup: where a region's configuration comes from, in which order records are asked.

1. the user's records of this very region, measured on such a machine;
2. the package's (`shipped`);
3. the user's records of this region from another machine with the same instruction set;
4. the user's records of the nearest region of its kind (`nearest_record`): borrowed;
5. the package's, borrowed.

If none has one, the template's default is used.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from microkernels.machines.machine import Machine
from relay_passes.layout.search_space import ChooseLabels, LayoutChoice
from relay_passes.pipeline_options import PipelineOptions
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for
from tir_schedules.tensorize.arrangement import ChooseArrangement, KnownArrangement

from ..library.manifest import How, RecordUse
from .choice_record import ArrangementRecord, ChoiceRecord, LayoutRecord
from .nearest_record import NearestRecords
from .record_paths import records_refused
from .record_store import Found, RecordStore

Records = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None


class RecordLookup:
    """Asks the user's records, then the package's; remembers which were used.

    Parameters
    ----------
    store : RecordStore
        The user's.

    Attributes
    ----------
    store : RecordStore
        The user's.
    uses : dict
        Key of a region -> the record that it got.
    """

    def __init__(self, store: RecordStore) -> None:
        self.uses: dict[str, RecordUse] = {}
        self.store = store
        self._nearest: dict[int, NearestRecords] = {}

    def __call__(self, region: Region, machine: Machine) -> tuple[Config, str] | None:
        """A region's configuration and where it comes from, in words; None for the default."""
        shipped = shipped_records(machine.name)
        stores = [self.store] if shipped is None else [self.store, shipped]
        for store in stores:
            if found := store.find(region, machine):
                name = place_text(found.place, store is shipped)
                if found.record.is_default:
                    default = template_for(region.op).default_config(region, machine)
                    if found.config != default:  # the formula has improved since
                        return default, f"default; {name} knows nothing faster"
                return self._use(region, found, "exact", store is shipped, name)
        if found := self.store.find(region, machine, elsewhere=True):
            text = f"record {found.place} (measured on {found.record.machine})"
            return self._use(region, found, "other machine", False, text)
        for store in stores:
            nearest = self._nearest.setdefault(id(store), NearestRecords(store.by_workload))
            if borrowed := nearest.find(region, machine):
                found = borrowed.found
                text = (
                    f"borrowed from {place_text(found.place, store is shipped)}, "
                    f"{found.record.workload}, sizes within a factor of {2**borrowed.distance:.2f}"
                )
                return self._use(region, found, "borrowed", store is shipped, text)
        return None

    def _use(
        self, region: Region, found: Found, how: How, shipped: bool, text: str
    ) -> tuple[Config, str]:
        record = found.record
        self.uses[region.key] = RecordUse.of(
            region.key, how, shipped, found.place, record.workload, record.to_line()
        )
        return found.config, text


def lookup_of(records: Records) -> RecordLookup | None:
    """The lookup for what a user named.

    Parameters
    ----------
    records : path-like, sequence of path-like, or None
        Record files, to be asked before the package's own; None for those that `TVM_HYBRID_RECORDS`
        names, and for no records at all if it is "none". An empty sequence: no records at all.

    Returns
    -------
    RecordLookup or None
        None: every region gets its template's default.

    Raises
    ------
    RecordError
        If a file is missing.
    """
    if records is None:
        return None if records_refused() else RecordLookup(RecordStore())
    if not isinstance(records, (str, os.PathLike)) and not records:
        return None
    return RecordLookup(RecordStore(records))


# Tells compilation the layouts of blocks and the arrangements of contractions that records hold.
#
# The user's records come before the package's, as for configurations. But choices are not borrowed,
# neither from another machine nor for a similar graph.


R = TypeVar("R", bound=ChoiceRecord)
T = TypeVar("T")


def with_records(options: PipelineOptions, lookup: RecordLookup | None) -> PipelineOptions:
    """Options under which compilation takes configurations, layouts and arrangements of records."""
    layouts, arrange = layouts_of(lookup, options), arrangements_of(lookup, options)
    return replace(options, lookup=lookup, layouts=layouts, arrange=arrange)


def layouts_of(lookup: RecordLookup | None, options: PipelineOptions) -> ChooseLabels | None:
    """What tells compilation the layouts of blocks, and notes in `lookup` which records were used.

    None if no file holds any.
    """

    def is_used(problem: Any, record: LayoutRecord) -> bool:
        return problem.refusal(record.numbers) is None

    def choice(record: LayoutRecord, source: str) -> LayoutChoice:
        return LayoutChoice(record.numbers, source)

    return _chooser(lookup, options, LayoutRecord, is_used, choice)


def arrangements_of(
    lookup: RecordLookup | None, options: PipelineOptions
) -> ChooseArrangement | None:
    """What tells compilation how to arrange, and notes in `lookup` which records were used.

    None if no file holds any.
    """

    def is_used(problem: Any, record: ArrangementRecord) -> bool:
        return bool(problem.best_first(record.choice))

    def choice(record: ArrangementRecord, source: str) -> KnownArrangement:
        return KnownArrangement(record.choice, source)

    choose = _chooser(lookup, options, ArrangementRecord, is_used, choice)
    if choose is None:
        return None
    return lambda problem: choose(problem) if problem.has_choice else None


def _chooser(
    lookup: RecordLookup | None,
    options: PipelineOptions,
    kind: type[R],
    is_used: Callable[[Any, R], bool],
    choice: Callable[[R, str], T],
) -> Callable[[Any], T | None] | None:
    """Problem -> `choice` of the record for its key and where that comes from, in words."""
    if lookup is None:
        return None
    shipped = shipped_records(options.machine.name)
    stores = [lookup.store] if shipped is None else [lookup.store, shipped]
    if not any(file.of_kind(kind) for store in stores for file in store.files):
        return None

    def choose(problem: Any) -> T | None:
        for store in stores:
            if found := kind.find(store.files, problem.key, options):
                record, place = found
                if is_used(problem, record):
                    name = f"{kind.NAME} {problem.key}"
                    lookup.uses[name] = RecordUse.of(
                        name, "exact", store is shipped, place, name, record.to_line()
                    )
                return choice(record, place_text(place, store is shipped))
        return None

    return choose


# Records that this package brings along: `shipped/CPU.jsonl`, by the CPU's LLVM name.
#
# They were measured on such a CPU with this version's templates, and hold of every region the
# default and what was confirmed to be faster. Records of the user's own go before them.


FOLDER = Path(__file__).parent / "shipped"


def shipped_records(cpu: str) -> RecordStore | None:
    """The package's records for a CPU; None if it has none. The file is read when it is used.

    Parameters
    ----------
    cpu : str
        LLVM's name of it, such as "znver4".
    """
    path = FOLDER / f"{cpu}.jsonl"
    return _store(path) if path.is_file() else None


# One store of each file in a process: it is read once, however many models are compiled.
_store = functools.cache(RecordStore)


def place_text(place: str, shipped: bool) -> str:
    """FILE:LINE of a record in words, with the whole path if the user wrote the file."""
    return f"shipped record {os.path.basename(place)}" if shipped else f"record {place}"
