"""Protobuf's wire format: the fields of a message in a file, each with its position.

    tag (number, kind) | value                      kind 0: a varint, 1: 8 bytes, 5: 4 bytes
    tag (number, kind) | length | value             kind 2: bytes, text, another message

Values are skipped, not read, so that a large one costs nothing: a model can be read from a file of
any size without the data of its large initializers. This module does not import onnx.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedIOBase
from typing import NamedTuple

BYTES = 2
_SIZES = {1: 8, 5: 4}
_MOST_DIGITS = 10


class WireError(Exception):
    """The bytes are not a message, or have a form that we do not read."""


class Field(NamedTuple):
    """One field of a message.

    Attributes
    ----------
    number : int
        The field's number.
    kind : int
        The wire type of its value.
    tag, start, end : int
        Positions in the file: where the field begins, where its value begins, where both end.
    """

    number: int
    kind: int
    tag: int
    start: int
    end: int


def fields(file: BufferedIOBase, start: int, end: int) -> Iterator[Field]:
    """Yields the fields of a message from `start` to `end`; the file may be read in between.

    Raises
    ------
    WireError
        If a field exceeds the message, or is a group.
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
    """Reads a varint at the file's position.

    Raises
    ------
    WireError
        If the varint does not end.
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
    """A number as a varint."""
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def message(number: int, content: bytes) -> bytes:
    """A field that contains a message."""
    return varint(number << 3 | BYTES) + varint(len(content)) + content


LARGE_BYTES = 1 << 18
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # fields of ModelProto, GraphProto, TensorProto
# Only tensors with no other fields (dims, type, name, data, text) are read without their data.
_PLAIN = {1, 2, 8, 9, 12}


def without_large_data(file: BufferedIOBase, size: int) -> tuple[bytes, list[Field | None]]:
    """Reads a model's file without the data of large initializers.

    Returns
    -------
    tuple of bytes and list of Field or None
        The model, and the position of each initializer's data; None if the model contains them.

    Raises
    ------
    WireError
        If it is damaged, or has a form that we do not read.
    OSError
        If the file cannot be read.
    """
    places: list[Field | None] = []
    model = bytearray()
    for field in fields(file, 0, size):
        if (field.number, field.kind) == (_GRAPH, BYTES):
            model += message(_GRAPH, bytes(_light_graph(file, field, places)))
        else:
            model += _copied(file, field.tag, field.end)
    return bytes(model), places


def _light_graph(file: BufferedIOBase, graph: Field, places: list[Field | None]) -> bytearray:
    """A graph without large data; `places` gets the positions of its initializers' data."""
    light = bytearray()
    for field in fields(file, graph.start, graph.end):
        place = _large_data(file, field) if field.number == _INITIALIZER else None
        if field.number == _INITIALIZER:
            places.append(place)
        if place is None:
            light += _copied(file, field.tag, field.end)
        else:
            inner = fields(file, field.start, field.end)
            kept = (_copied(file, f.tag, f.end) for f in inner if f.number != _RAW_DATA)
            light += message(_INITIALIZER, b"".join(kept))
    return light


def _large_data(file: BufferedIOBase, tensor: Field) -> Field | None:
    """The position of a plain tensor's data if they are large; else None."""
    if tensor.kind != BYTES:
        raise WireError("an initializer that is no message")
    if tensor.end - tensor.start < LARGE_BYTES:
        return None
    inner = list(fields(file, tensor.start, tensor.end))
    data = [field for field in inner if field.number == _RAW_DATA]
    if len(data) != 1 or data[0].kind != BYTES or any(f.number not in _PLAIN for f in inner):
        return None
    return data[0] if data[0].end - data[0].start >= LARGE_BYTES else None


def _copied(file: BufferedIOBase, start: int, end: int) -> bytes:
    file.seek(start)
    data = file.read(end - start)
    if len(data) < end - start:
        raise WireError("the file is cut off")
    return data
