"""Protobuf's wire format: the fields of a message in a file, each with its place.

    tag (number, kind) | value                      kind 0: a varint, 1: 8 bytes, 5: 4 bytes
    tag (number, kind) | length | value             kind 2: bytes, text, another message

Values are not read but passed over, so that a large one costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedIOBase
from typing import NamedTuple

BYTES = 2
_SIZES = {1: 8, 5: 4}
_MOST_DIGITS = 10


class WireError(Exception):
    """This is no message, or one of a form that is not read here."""


class Field(NamedTuple):
    """One field of a message.

    Attributes
    ----------
    number : int
        Which field.
    kind : int
        How its value is written.
    tag, start, end : int
        Where the field begins in the file, where its value does, and where both end.
    """

    number: int
    kind: int
    tag: int
    start: int
    end: int


def fields(file: BufferedIOBase, start: int, end: int) -> Iterator[Field]:
    """The fields of the message between two places of a file, which may be read meanwhile.

    Raises
    ------
    WireError
        If a field does not end where the message does, or is a group.
    """
    place = start
    while place < end:
        file.seek(place)
        tag = read_varint(file)
        number, kind = tag >> 3, tag & 7
        if kind not in (0, BYTES, *_SIZES):
            raise WireError(f"a field of kind {kind}")
        length = read_varint(file) if kind == BYTES else _SIZES.get(kind, 0)
        first = file.tell()
        if kind == 0:
            read_varint(file)
        last = file.tell() + length
        if not number or last > end:
            raise WireError("a field reaches beyond its message")
        yield Field(number, kind, place, first, last)
        place = last


def read_varint(file: BufferedIOBase) -> int:
    """The number that begins here.

    Raises
    ------
    WireError
        If it has no end.
    """
    value = 0
    for position in range(_MOST_DIGITS):
        digit = file.read(1)
        if not digit:
            break
        value |= (digit[0] & 127) << (7 * position)
        if digit[0] < 128:
            return value
    raise WireError("a number without an end")


def varint(value: int) -> bytes:
    """A number as it is written."""
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def message(number: int, content: bytes) -> bytes:
    """A field that holds a message."""
    return varint(number << 3 | BYTES) + varint(len(content)) + content
