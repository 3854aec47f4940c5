"""RecordLookup: finds a region's configuration in records, in this order:

1. the user's records of exactly this region, measured on such a machine;
2. the package's records (`shipped`) of exactly this region;
3. the user's records of this region from another machine with the same instruction set;
4. the user's records of the nearest similar region (`nearest_record`): borrowed;
5. the package's records of the nearest similar region, borrowed.

If none has a configuration, the template's default is used.
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
    """Looks up the user's records, then the package's, and notes which ones were used.

    Attributes
    ----------
    store : RecordStore
        The user's records.
    uses : dict
        Key of a region -> the record that it got.
    """

    def __init__(self, store: RecordStore) -> None:
        self.uses: dict[str, RecordUse] = {}
        self.store = store
        self._nearest: dict[int, NearestRecords] = {}

    def __call__(self, region: Region, machine: Machine) -> tuple[Config, str] | None:
        """Returns a region's configuration and a text about its source; None for the default."""
        shipped = shipped_records(machine.name)
        stores = [self.store] if shipped is None else [self.store, shipped]
        for store in stores:
            if found := store.find(region, machine):
                name = place_text(found.place, store is shipped)
                if found.record.is_default:
                    default = template_for(region.op).default_config(region, machine)
                    if found.config != default:  # the default has changed since the measurement
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
    """Makes the lookup for records that a user named.

    Parameters
    ----------
    records : path-like, sequence of path-like, or None
        Record files that come before the package's. None: the files that `TVM_HYBRID_RECORDS`
        names, or no records at all if it is "none". An empty sequence: no records at all.

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


# Gives compilation the recorded layouts of blocks and arrangements of contractions.
#
# The user's records come before the package's, as for configurations. But choices are not borrowed,
# neither from another machine nor from a similar graph.


R = TypeVar("R", bound=ChoiceRecord)
T = TypeVar("T")


def with_records(options: PipelineOptions, lookup: RecordLookup | None) -> PipelineOptions:
    """Adds recorded configurations, layouts and arrangements to compile options."""
    layouts, arrange = layouts_of(lookup, options), arrangements_of(lookup, options)
    return replace(options, lookup=lookup, layouts=layouts, arrange=arrange)


def layouts_of(lookup: RecordLookup | None, options: PipelineOptions) -> ChooseLabels | None:
    """Makes the function that chooses layouts of blocks, and notes used records in `lookup`.

    Returns None if no file has layouts.
    """

    def is_used(problem: Any, record: LayoutRecord) -> bool:
        return problem.refusal(record.numbers) is None

    def choice(record: LayoutRecord, source: str) -> LayoutChoice:
        return LayoutChoice(record.numbers, source)

    return _chooser(lookup, options, LayoutRecord, is_used, choice)


def arrangements_of(
    lookup: RecordLookup | None, options: PipelineOptions
) -> ChooseArrangement | None:
    """Makes the function that chooses arrangements, and notes used records in `lookup`.

    Returns None if no file has arrangements.
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
    """Makes a function from a problem to the choice of its record, with a text of its source."""
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


# Records that come with this package: `shipped/CPU.jsonl`, by the CPU's LLVM name.
#
# They were measured on such a CPU with this version's templates. For every region they hold the
# default and the configurations that were confirmed to be faster. The user's records override them.


FOLDER = Path(__file__).parent / "shipped"


def shipped_records(cpu: str) -> RecordStore | None:
    """The package's records for a CPU, given by LLVM's name such as "znver4"; None without any.

    The file is read when it is used.
    """
    path = FOLDER / f"{cpu}.jsonl"
    return _store(path) if path.is_file() else None


# One store for each file in a process, so that the file is read once for all models.
_store = functools.cache(RecordStore)


def place_text(place: str, shipped: bool) -> str:
    """Describes a record's FILE:LINE, with the whole path only if it is the user's file."""
    return f"shipped record {os.path.basename(place)}" if shipped else f"record {place}"
