"""Lines of record files: what all kinds share, and what is wrong with those that cannot be read.

Every line is a JSON object with the version of its format in `schema`. One without `kind` is a
`Record`; others, such as choices of layouts, name their kind.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import msgspec

from microkernels.base.errors import RecordError

SCHEMA = 1
RECORD = "record"
Why = Literal["torn", "foreign", "newer"]
L = TypeVar("L", bound="RecordLine")


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


class RecordLine(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all kinds of lines; a subclass has a field `kind`, which only a `Record` lacks.

    Attributes
    ----------
    KIND : str
        What `kind` holds.
    schema : int
        Version of this format.
    """

    KIND: ClassVar[str]
    schema: int = SCHEMA

    def to_line(self) -> bytes:
        """The record as one line of JSON, newline included."""
        return msgspec.json.encode(self) + b"\n"

    @classmethod
    def from_line(cls: type[L], line: bytes) -> L:
        """The record that `to_line` wrote.

        Raises
        ------
        UnreadableLine
            If the line is not of this kind, or if a newer version wrote it.
        """
        if read_header(line).kind != cls.KIND:
            raise UnreadableLine("foreign", f"JSON, but of another kind than {cls.KIND!r}")
        return cls._decoded(line)

    @classmethod
    def _decoded(cls: type[L], line: bytes) -> L:
        """The record of a line whose header is checked."""
        return decode(line, cls)


class OtherLine(NamedTuple):
    """A line of another kind than records, as it is; whoever writes that kind understands it."""

    text: bytes
    place: str
    """FILE:LINE."""


def read_header(line: bytes) -> Header:
    """The line's format and kind.

    Raises
    ------
    UnreadableLine
        If it is torn or foreign, or if a newer version wrote it.
    """
    header = decode(line, Header)
    if header.schema > SCHEMA:
        raise UnreadableLine(
            "newer",
            f"written in format {header.schema}; this version reads up to {SCHEMA}, "
            "update tvm_hybrid",
        )
    return header


def decode(line: bytes, type: Any) -> Any:
    """A line as a type, errors told apart.

    Raises
    ------
    UnreadableLine
        If the line is torn or foreign.
    """
    try:
        return msgspec.json.decode(line, type=type)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnreadableLine("foreign", f"JSON, but not of ours: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableLine("torn", f"not a whole line of JSON: {error}") from error


def stamp() -> dict[str, Any]:
    """The fields `date` (ISO 8601, UTC) and `tvm` (its version) of a record of now."""
    import tvm

    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"date": now, "tvm": tvm.__version__}
