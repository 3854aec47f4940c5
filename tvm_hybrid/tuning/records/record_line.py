"""Lines of record files: whose they are, and what is wrong with those that cannot be read.

Every line is a JSON object with the version of its format in `schema`. One without `kind` is a
`Record`; others, such as choices of layouts, name their kind.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from microkernels.errors import RecordError

SCHEMA = 1
RECORD = "record"
Why = Literal["torn", "foreign", "newer"]


class UnreadableLine(RecordError):
    """A line that is passed over.

    Attributes
    ----------
    why : str
        "torn": not a whole line of JSON; "foreign": JSON, but nothing of ours; "newer": a later
        version wrote it.
    """

    def __init__(self, why: Why, message: str) -> None:
        super().__init__(f"{why}: {message}")
        self.why = why


class Header(msgspec.Struct, frozen=True):
    """What all lines have."""

    schema: int
    kind: str = RECORD


class HasLine(Protocol):
    """What a record file holds: a `Record`, or something of another kind."""

    def to_line(self) -> bytes:
        """It as one line of JSON, newline included."""


class OtherLine(NamedTuple):
    """A line of another kind than records, as it is; whoever writes that kind understands it."""

    kind: str
    fields: dict[str, Any]
    place: str
    """FILE:LINE."""


def read_header(line: bytes) -> Header:
    """The line's format and kind.

    Raises
    ------
    UnreadableLine
        If it is torn or foreign, or if a newer version wrote it.
    """
    header = decode(line, _header)
    if header.schema > SCHEMA:
        raise UnreadableLine(
            "newer",
            f"written in format {header.schema}; this version reads up to {SCHEMA}, "
            "update tvm_hybrid",
        )
    return header


def decode(line: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    """What a decoder makes of a line, its errors told apart.

    Raises
    ------
    UnreadableLine
        If the line is torn or foreign.
    """
    try:
        return decoder.decode(line)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnreadableLine("foreign", f"JSON, but not of ours: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableLine("torn", f"not a whole line of JSON: {error}") from error


_header = msgspec.json.Decoder(Header)
