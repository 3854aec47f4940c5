"""EarlierRecords: what a strategy may learn from before it measures: records of other regions.

Those in the user's file, also from earlier in the same run, and the spaces that the package holds
recorded whole (`recordings`), as far as they are of the same CPU, instruction set and threads.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Sequence
from typing import overload

from microkernels.errors import RecordError
from tir_schedules.core.machine import Machine

from ..records.read_records import read_records
from ..records.record import Record
from ..records.record_store import RecordStore
from .simulate import SHIPPED

logger = logging.getLogger("tvm_hybrid")


class EarlierRecords(Sequence[Record]):
    """Read when first asked for: most strategies never do.

    Parameters
    ----------
    store : RecordStore
        The user's.
    machine : Machine
        Whose records.
    workload : str
        Key of the region that is left out.
    """

    def __init__(self, store: RecordStore, machine: Machine, workload: str) -> None:
        self._store, self._machine, self._workload = store, machine, workload

    @functools.cached_property
    def _records(self) -> list[Record]:
        own = (record for record, _ in self._store)
        return [*self._fitting(own), *self._fitting(recorded_on(self._machine.name))]

    def _fitting(self, records: Iterable[Record]) -> list[Record]:
        return [
            record
            for record in records
            if record.workload != self._workload
            and record.machine == self._machine.name
            and record.isa == self._machine.isa.name
            and record.threads == self._machine.threads
        ]

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)


@functools.cache
def recorded_on(cpu: str) -> tuple[Record, ...]:
    """The records of all recordings of this package that were made on a CPU, by its LLVM name."""
    found: list[Record] = []
    for path in sorted(SHIPPED.glob("*.jsonl.xz")):
        try:
            found += [record for record, _ in read_records(path) if record.machine == cpu]
        except RecordError as error:
            logger.warning("nothing is learned from a recording: %s", error)
    return tuple(found)
