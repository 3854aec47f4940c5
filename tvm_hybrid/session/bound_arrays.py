"""Arrays of a caller that kernels read and write where they lie, and whether they overlap."""

from __future__ import annotations

from operator import itemgetter
from typing import NamedTuple, Protocol

import numpy as np

from microkernels.base.errors import FeedError

_MOST_ELEMENTS = 2**31  # kernels count them in 32 bits
_WORK = 10_000  # of NumPy, to find out whether two arrays have an element in common


class Room(NamedTuple):
    """What an array [..., rows, columns] has that is the first rows of each head of a larger one.

    Attributes
    ----------
    rows : int
        That each head has room for.
    last : int
        Bytes from the first head to the last one.
    """

    rows: int
    last: int


NO_ROOM = Room(-1, 0)


def room_of(array: np.ndarray) -> Room:
    """The room of an array; `NO_ROOM` if it lies otherwise.

    >>> cache = np.zeros((2, 3, 9, 4), np.float32)
    >>> room_of(cache[:, :, :5]).rows, room_of(cache[..., :3]).rows
    (9, -1)
    """
    if array.ndim < 3:
        return NO_ROOM
    *leading, _, columns = array.shape
    *apart, row, item = array.strides
    if item != array.itemsize or row != columns * item or not row:
        return NO_ROOM
    distance = expected = 0
    for size, stride in zip(reversed(leading), reversed(apart), strict=True):
        if size == 1:  # of which the stride means nothing
            continue
        distance = distance or stride
        expected = expected or stride
        if stride != expected:
            return NO_ROOM
        expected *= size
    if distance % row or distance < 0 or expected >= _MOST_ELEMENTS * item:
        return NO_ROOM
    rows = distance // row if distance else _MOST_ELEMENTS
    return Room(rows, max(0, expected - distance))


class Bindable(Protocol):
    """What is known of an input or output."""

    @property
    def name(self) -> str:
        """As in the model."""

    @property
    def number(self) -> int:
        """Which of the inputs or outputs it is."""

    @property
    def is_output(self) -> bool:
        """Whether it is written."""

    @property
    def cache(self) -> int | None:
        """Of an output: the input that may be its beginning."""


class Place(NamedTuple):
    """Where an array lies that a program reads or writes.

    Attributes
    ----------
    start, end : int
        Addresses.
    slot : Bindable
        What it is bound to.
    array : numpy.ndarray
    """

    start: int
    end: int
    slot: Bindable
    array: np.ndarray


def refuse_overlap(places: list[Place]) -> None:
    """Checks that no output lies over anything else, but for caches that grow.

    Raises
    ------
    FeedError
        Naming two that do.
    """
    before: list[Place] = []
    end = 0
    for place in sorted(places, key=itemgetter(0)):
        if place.start >= end:
            before, end = [place], place.end
            continue
        for each in before:
            if each.end <= place.start or not (each.slot.is_output or place.slot.is_output):
                continue
            if not _may_share(each, place):
                raise FeedError(
                    f"{_text(each)} and {_text(place)} are bound to the same memory; outputs need "
                    "memory of their own, but for the keys and values of a decoder, which may lie "
                    "over their past if both begin at the same element of a larger array"
                )
        before.append(place)
        end = max(end, place.end)


def _may_share(one: Place, other: Place) -> bool:
    output, source = (one, other) if one.slot.is_output else (other, one)
    is_cache = not source.slot.is_output and output.slot.cache == source.slot.number
    if is_cache and output.start == source.start:
        strides = output.array.strides, source.array.strides
        if strides[0] == strides[1]:
            return True
        triples = zip(*strides, output.array.shape, strict=True)
        return all(a == b for a, b, size in triples if size != 1)
    try:
        return not np.shares_memory(
            one.array,
            other.array,
            max_work=_WORK,  # type: ignore[arg-type]
        )
    except np.exceptions.TooHardError:
        return False


def _text(place: Place) -> str:
    return f"{'output' if place.slot.is_output else 'input'} {place.slot.name!r}"
