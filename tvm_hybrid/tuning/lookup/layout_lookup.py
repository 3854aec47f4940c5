"""Tells compilation the layouts that records hold of a model's blocks.

The user's records come before the package's, as for configurations; but layouts are not borrowed,
neither from another machine nor from a similar graph.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from relay_passes.layout.search_space import ChooseLabels, LayoutChoice, LayoutProblem
from relay_passes.pipeline_options import PipelineOptions

from ...record_use import RecordUse
from ..records.layout_record import KIND, LayoutRecord, find_layout, labels_of
from .arrangement_lookup import arrangements_of
from .shipped import shipped_records

if TYPE_CHECKING:
    from .record_lookup import RecordLookup


def layouts_of(lookup: RecordLookup | None, options: PipelineOptions) -> ChooseLabels | None:
    """What tells compilation the layouts of blocks, and notes in `lookup` which records were used.

    None if no file holds any.
    """
    if lookup is None:
        return None
    shipped = shipped_records(options.machine.name)
    stores = [lookup.store] if shipped is None else [lookup.store, shipped]
    if not any(file.of_kind(KIND, LayoutRecord) for store in stores for file in store.files):
        return None

    def choose(problem: LayoutProblem) -> LayoutChoice | None:
        for store in stores:
            found = find_layout(store, problem.key, options)
            if found is None:
                continue
            record, place = found
            name = f"layouts {problem.key}"
            labels = labels_of(record)
            if problem.refusal(labels) is None:
                lookup.uses[name] = RecordUse.of(
                    name, "exact", store is shipped, place, name, record.to_line()
                )
            if store is shipped:
                return LayoutChoice(labels, f"shipped record {os.path.basename(place)}")
            return LayoutChoice(labels, f"record {place}")
        return None

    return choose


def with_records(options: PipelineOptions, lookup: RecordLookup | None) -> PipelineOptions:
    """Options under which compilation takes configurations, layouts and arrangements of records."""
    layouts, arrange = layouts_of(lookup, options), arrangements_of(lookup, options)
    return replace(options, lookup=lookup, layouts=layouts, arrange=arrange)
