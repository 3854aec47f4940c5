"""Reads MetaSchedule's databases: what `export` wrote comes back as it was.

Traces of others are kept as `TraceRecord` where their program is one of our regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tvm import IRModule

from microkernels.base.errors import ConfigError, RecordError, TvmHybridError
from microkernels.base.tvm_compat.metaschedule_database import Entry, MetaScheduleFolder
from tir_schedules.core.region import Region

from ...records.record_store import RecordStore
from .export_records import Exchange, own_record
from .recognize import region_of
from .trace import trace_record, traces_of


def import_records(folder: Path, store: RecordStore, known: Sequence[Region] = ()) -> Exchange:
    """Adds to a store the records of a database that it lacks.

    Parameters
    ----------
    folder : Path
        With the database's two files.
    store : RecordStore
        Appended to.
    known : sequence of Region
        Regions, such as those of a model, that a foreign program is compared with first.

    Returns
    -------
    Exchange
        `left_out` names every line that could not be used.

    Raises
    ------
    RecordError
        If the database cannot be read or the store not be written.
    """
    database = MetaScheduleFolder(folder)
    result = Exchange()
    for problem in database.problems:
        place, _, reason = problem.partition(": ")
        result.left_out.append((place, reason))
    present = {located.record.to_line() for located in store}
    present |= {record.to_line() for record, _ in traces_of(store)}
    programs = _Programs(database, known)
    seen: set[bytes] = set()
    for entry in database.entries:
        try:
            own = own_record(entry)
            record = own or trace_record(entry, *programs.of(entry))
        except TvmHybridError as error:
            result.left_out.append((entry.place, str(error)))
            continue
        line = record.to_line()
        if line in seen:  # another form of the same program
            continue
        seen.add(line)
        if line in present:
            result.known += 1
            continue
        store.append(record)
        result.foreign += own is None
        result.taken.append(record.workload)
    return result


class _Programs:
    """The programs of a database and their regions, each found once."""

    def __init__(self, database: MetaScheduleFolder, known: Sequence[Region]) -> None:
        self.database, self.known = database, known
        self.found: dict[int, tuple[IRModule, Region] | TvmHybridError] = {}

    def of(self, entry: Entry) -> tuple[IRModule, Region]:
        """An entry's program and region.

        Raises
        ------
        RecordError
            If the program cannot be read.
        ConfigError
            If it is no region of ours.
        """
        if entry.workload not in self.found:
            try:
                program = self.database.program(entry)
                self.found[entry.workload] = program, region_of(program, self.known)
            except (RecordError, ConfigError) as error:
                self.found[entry.workload] = error
        found = self.found[entry.workload]
        if isinstance(found, TvmHybridError):
            raise found
        return found
