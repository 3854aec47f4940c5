"""Reads MetaSchedule's databases: what `export` wrote comes back as it was."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from microkernels.errors import RecordError

from .metaschedule_database import Entry, MetaScheduleFolder
from .metaschedule_export import MICROSECONDS, Exchange
from .record import Record
from .records import RecordStore


def import_records(folder: Path, store: RecordStore) -> Exchange:
    """Adds to a store the records of a database that it lacks.

    Parameters
    ----------
    folder : Path
        With the database's two files.
    store : RecordStore
        Appended to.

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
    seen: set[bytes] = set()
    for entry in database.entries:
        try:
            record = own_record(entry)
        except RecordError as error:
            result.left_out.append((entry.place, str(error)))
            continue
        if record is None:
            result.left_out.append((entry.place, "a foreign trace"))
            continue
        line = record.to_line()
        if line in seen:  # the other form of the same program
            continue
        seen.add(line)
        if line in present:
            result.known += 1
            continue
        store.append(record)
        result.taken.append(record.workload)
    return result


def own_record(entry: Entry) -> Record | None:
    """The record that `export` wrote along; None in a foreign trace.

    If MetaSchedule has measured the trace since, the times are its own.

    Raises
    ------
    RecordError
        If what was written along is no record any more.
    """
    note = entry.note
    if note is None:
        return None
    record = Record.from_line(note.encode())
    if entry.seconds and not _same_times(record.times_us, entry.seconds):
        measured = [seconds * MICROSECONDS for seconds in entry.seconds]
        changes = {"times_us": measured, "baseline_us": None, "confirmed": None}
        return msgspec.structs.replace(record, **changes)
    return record


def _same_times(times_us: list[float], seconds: tuple[float, ...]) -> bool:
    return len(times_us) == len(seconds) and all(
        math.isclose(time, second * MICROSECONDS, rel_tol=1e-9)
        for time, second in zip(times_us, seconds, strict=True)
    )
