"""RecordUse: which tuning record a region of a compiled model was built with."""

from __future__ import annotations

import hashlib
import os
from typing import Literal

import msgspec

How = Literal["exact", "other machine", "borrowed"]


class RecordUse(msgspec.Struct, frozen=True, kw_only=True):
    """A record that a compiled model was built with.

    Attributes
    ----------
    workload : str
        Key of the region that was built.
    how : str
        "exact": it was measured on this region; "other machine": there, but elsewhere; "borrowed":
        on another region, of the same kind.
    shipped : bool
        Whether it is one of the package's.
    file : str
        The record file.
    line : int
        Its line.
    measured : str
        Key of the region that it was measured on.
    sha256 : str
        Hash of the record's line as its `to_line` writes it.
    """

    workload: str
    how: How
    shipped: bool
    file: str
    line: int
    measured: str
    sha256: str

    @staticmethod
    def of(
        workload: str, how: How, shipped: bool, place: str, measured: str, line: bytes
    ) -> RecordUse:
        """The use of the record that stands at `place`, FILE:LINE, as this line."""
        file, _, number = place.rpartition(":")
        return RecordUse(
            workload=workload,
            how=how,
            shipped=shipped,
            file=os.path.basename(file) if shipped else file,
            line=int(number),
            measured=measured,
            sha256=hashlib.sha256(line).hexdigest(),
        )


def uses_in(lookup: object) -> tuple[RecordUse, ...]:
    """The records that a lookup has given, in order of the regions' keys; none if it is None."""
    uses: dict[str, RecordUse] = getattr(lookup, "uses", {})
    return tuple(uses[key] for key in sorted(uses))
