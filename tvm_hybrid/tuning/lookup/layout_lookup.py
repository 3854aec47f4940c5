"""LayoutLookup: tells compilation the layouts that records hold of a model's blocks.

The user's records come before the package's, as for configurations; but layouts are not borrowed,
neither from another machine nor from a similar graph.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from relay_passes.layout.search_space import ChooseLabels, LayoutChoice, LayoutProblem
from relay_passes.pipeline import PipelineOptions

from ...record_use import RecordUse
from ..records.layout_record import KIND, find_layout, labels_of
from .shipped import shipped_records

if TYPE_CHECKING:
    from ..records.record_store import RecordStore
    from .record_lookup import RecordLookup


class LayoutLookup:
    """Asks the stores of a `RecordLookup`, and notes there what was used.

    Parameters
    ----------
    lookup : RecordLookup
        Where configurations come from.
    stores : list of RecordStore
        Which to ask, in this order.
    options : PipelineOptions
        What for.
    """

    def __init__(
        self, lookup: RecordLookup, stores: list[RecordStore], options: PipelineOptions
    ) -> None:
        self._lookup, self._stores, self._options = lookup, stores, options

    def __call__(self, problem: LayoutProblem) -> LayoutChoice | None:
        """A block's labels; None if nothing is known of it."""
        for store in self._stores:
            found = find_layout(store, problem.key, self._options)
            if found is None:
                continue
            record, place = found
            shipped = store is not self._lookup.store
            name = f"layouts {problem.key}"
            labels = labels_of(record)
            if problem.refusal(labels) is None:
                self._lookup.uses[name] = RecordUse.of(
                    name, "exact", shipped, place, name, record.to_line()
                )
            kind = "shipped record" if shipped else "record"
            return LayoutChoice(labels, f"{kind} {os.path.basename(place) if shipped else place}")
        return None


def layouts_of(lookup: RecordLookup | None, options: PipelineOptions) -> ChooseLabels | None:
    """What tells compilation the layouts of blocks; None if no file holds any."""
    if lookup is None:
        return None
    shipped = shipped_records(options.machine.name)
    stores = []
    for store in [lookup.store] if shipped is None else [lookup.store, shipped]:
        for file in store.files:
            file.refresh()
        if any(file.others.get(KIND) for file in store.files):
            stores.append(store)
    return LayoutLookup(lookup, stores, options) if stores else None


def with_records(options: PipelineOptions, lookup: RecordLookup | None) -> PipelineOptions:
    """Options under which compilation takes configurations and layouts from records."""
    return replace(options, lookup=lookup, layouts=layouts_of(lookup, options))
