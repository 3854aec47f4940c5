"""Records that this package brings along: `shipped/CPU.jsonl`, by the CPU's LLVM name.

They were measured on such a CPU with this version's templates, and hold of every region the default
and what was confirmed to be faster. Records of the user's own go before them.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from ..record_store import RecordStore

FOLDER = Path(__file__).parent / "shipped"


def shipped_records(cpu: str) -> RecordStore | None:
    """The package's records for a CPU; None if it has none. The file is read when it is used.

    Parameters
    ----------
    cpu : str
        LLVM's name of it, such as "znver4".
    """
    path = FOLDER / f"{cpu}.jsonl"
    return _store(path) if path.is_file() else None


def place_text(place: str, shipped: bool) -> str:
    """FILE:LINE of a record in words, with the whole path if the user wrote the file."""
    return f"shipped record {os.path.basename(place)}" if shipped else f"record {place}"


@functools.cache
def _store(path: Path) -> RecordStore:
    """One store of each file in a process: it is read once, however many models are compiled."""
    return RecordStore(path)
