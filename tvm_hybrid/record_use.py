"""RecordUse: which tuning record a region of a compiled model was built with."""

from __future__ import annotations

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
        Hash of the record's line as `Record.to_line` writes it.
    """

    workload: str
    how: How
    shipped: bool
    file: str
    line: int
    measured: str
    sha256: str
