"""Simulates borrowing on recorded spaces: what each region would get from the others.

for loan in simulate_borrowing([load_recording(name) for name in shipped_recordings()]):
    print(loan.lender, "->", loan.borrower, loan.gain, "of", loan.best)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ...records.lookup.nearest_record import NearestRecords
from ...records.record import Record
from ...records.record_file import Located
from ...records.record_store import ranked
from .simulate import Recording


@dataclass(frozen=True)
class Loan:
    """A configuration that one region would get from another.

    Attributes
    ----------
    lender, borrower : str
        Names of the recordings.
    distance : float
        Of the two regions, see `nearest_record`.
    promised : float
        The speed where it comes from, as a multiple of the default's.
    gain : float or None
        The same where it goes to, as it was measured there; 0.0 if it failed; None if it was not
        measured.
    best : float
        The optimum there.
    """

    lender: str
    borrower: str
    distance: float
    promised: float
    gain: float | None
    best: float


def simulate_borrowing(recordings: Sequence[Recording]) -> list[Loan]:
    """What each region would borrow if only the others had been tuned, if anything.

    Parameters
    ----------
    recordings : sequence of Recording
        The regions.
    """
    loans = []
    for borrower in recordings:
        others = [one for one in recordings if one.region.key != borrower.region.key]
        borrowed = NearestRecords(_tuned(others)).find(borrower.region, borrower.machine)
        if borrowed is None:
            continue
        config, record, _ = borrowed.found
        index = borrower.space.index_of(config)
        loans.append(
            Loan(
                lender=next(one.name for one in others if one.region.key == record.workload),
                borrower=borrower.name,
                distance=borrowed.distance,
                promised=1 / (record.relative or 1.0),
                gain=None if index is None else float(borrower.scores[index]),
                best=borrower.best,
            )
        )
    return loans


def _tuned(recordings: Iterable[Recording]) -> Callable[[], Mapping[str, list[Located]]]:
    """The records of some recordings, as if searches had confirmed the optimum of each."""
    records = {recording.region.key: _confirmed(recording.records) for recording in recordings}
    return lambda: records


def _confirmed(records: Sequence[Record]) -> list[Located]:
    best = ranked(Located(record, "recording:0") for record in records)[:1]
    default = [Located(record, "recording:0") for record in records if record.is_default]
    return [
        Located(msgspec.structs.replace(record, confirmed=True), place)
        for record, place in (*default, *best)
    ]
