"""Tells compilation the layouts of blocks and the arrangements of contractions that records hold.

The user's records come before the package's, as for configurations. But choices are not borrowed,
neither from another machine nor for a similar graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from relay_passes.layout.search_space import ChooseLabels, LayoutChoice
from relay_passes.pipeline_options import PipelineOptions
from tir_schedules.tensorize.arrangement import ChooseArrangement, KnownArrangement

from ...library.record_use import RecordUse
from ..choice_record import ArrangementRecord, ChoiceRecord, LayoutRecord
from .record_lookup import RecordLookup
from .shipped import place_text, shipped_records

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
    return _chooser(
        lookup,
        options,
        LayoutRecord,
        lambda problem, record: problem.refusal(record.numbers) is None,
        lambda record, source: LayoutChoice(record.numbers, source),
    )


def arrangements_of(
    lookup: RecordLookup | None, options: PipelineOptions
) -> ChooseArrangement | None:
    """What tells compilation how to arrange, and notes in `lookup` which records were used.

    None if no file holds any.
    """
    choose = _chooser(
        lookup,
        options,
        ArrangementRecord,
        lambda problem, record: bool(problem.best_first(record.choice)),
        lambda record, source: KnownArrangement(record.choice, source),
    )
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
