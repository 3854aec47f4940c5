"""Tells compilation how records arrange contractions; none is borrowed from another machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from relay_passes.pipeline_options import PipelineOptions
from tir_schedules.tensorize.arrangement_problem import (
    ArrangementProblem,
    ChooseArrangement,
    KnownArrangement,
)

from ...record_use import RecordUse
from ..records.arrangement_record import KIND, ArrangementRecord, find_arrangement
from .shipped import shipped_records

if TYPE_CHECKING:
    from .record_lookup import RecordLookup


def arrangements_of(
    lookup: RecordLookup | None, options: PipelineOptions
) -> ChooseArrangement | None:
    """What tells compilation how to arrange, and notes in `lookup` which records were used.

    None if no file holds any.
    """
    if lookup is None:
        return None
    shipped = shipped_records(options.machine.name)
    stores = [lookup.store] if shipped is None else [lookup.store, shipped]
    if not any(file.of_kind(KIND, ArrangementRecord) for store in stores for file in store.files):
        return None

    def choose(problem: ArrangementProblem) -> KnownArrangement | None:
        if not problem.has_choice:
            return None
        for store in stores:
            found = find_arrangement(store, problem.key, options)
            if found is None:
                continue
            record, place = found
            name = f"arrangement {problem.key}"
            if problem.best_first(record.choice):
                lookup.uses[name] = RecordUse.of(
                    name, "exact", store is shipped, place, name, record.to_line()
                )
            if store is shipped:
                return KnownArrangement(record.choice, f"shipped record {os.path.basename(place)}")
            return KnownArrangement(record.choice, f"record {place}")
        return None

    return choose
