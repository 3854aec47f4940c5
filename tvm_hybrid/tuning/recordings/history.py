"""What a strategy may learn from before it measures: records of other regions.

Those in the user's file, also from earlier in the same run, and the spaces that the package holds
recorded whole, as far as they are of the same CPU, instruction set and threads.
"""

from __future__ import annotations

import functools
import logging

from microkernels.base.errors import RecordError
from microkernels.machines.machine import Machine

from ...records.read_records import read_records
from ...records.record import Record
from ...records.record_store import RecordStore
from .simulate import SHIPPED

logger = logging.getLogger("tvm_hybrid")


def earlier_records(store: RecordStore, machine: Machine, workload: str) -> list[Record]:
    """The records to learn from, the user's first.

    Parameters
    ----------
    store : RecordStore
        The user's.
    machine : Machine
        Whose records.
    workload : str
        Key of the region that is left out.
    """
    own = (record for record, _ in store)
    return [
        record
        for record in (*own, *recorded_on(machine.name))
        if record.workload != workload
        and record.machine == machine.name
        and record.isa == machine.isa.name
        and record.threads == machine.threads
    ]


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
