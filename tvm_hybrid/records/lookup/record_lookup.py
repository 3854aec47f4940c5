"""RecordLookup: where a region's configuration comes from, in which order records are asked.

1. the user's records of this very region, measured on such a machine;
2. the package's (`shipped`);
3. the user's records of this region from another machine with the same instruction set;
4. the user's records of the nearest region of its kind (`nearest_record`): borrowed;
5. the package's, borrowed.

If none has one, the template's default is used.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for

from ...library.record_use import How, RecordUse
from ..record_paths import records_refused
from ..record_store import Found, RecordStore
from .nearest_record import NearestRecords
from .shipped import place_text, shipped_records

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
                return self._exact(region, machine, found, store is shipped)
        if found := self.store.find(region, machine, elsewhere=True):
            text = f"record {found.place} (measured on {found.record.machine})"
            return self._use(region, found, "other machine", False, text)
        for store in stores:
            nearest = self._nearest.setdefault(id(store), NearestRecords(store.by_workload))
            if borrowed := nearest.find(region, machine):
                return self._borrowed(region, *borrowed, store is shipped)
        return None

    def _exact(
        self, region: Region, machine: Machine, found: Found, shipped: bool
    ) -> tuple[Config, str]:
        name = place_text(found.place, shipped)
        if found.record.is_default:
            default = template_for(region.op).default_config(region, machine)
            if found.config != default:  # the formula has improved since
                return default, f"default; {name} knows nothing faster"
        return self._use(region, found, "exact", shipped, name)

    def _borrowed(
        self, region: Region, found: Found, distance: float, shipped: bool
    ) -> tuple[Config, str]:
        text = (
            f"borrowed from {place_text(found.place, shipped)}, {found.record.workload}, "
            f"sizes within a factor of {2**distance:.2f}"
        )
        return self._use(region, found, "borrowed", shipped, text)

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
