"""Arrays of a caller that kernels read and write where they lie, and whether they overlap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from microkernels.errors import FeedError

_MOST_ELEMENTS = 2**31  # kernels count them in 32 bits
_WORK = 10_000  # of NumPy, to find out whether two arrays have an element in common


def has_room(array: np.ndarray) -> bool:
    """Whether an array [..., rows, columns] is the first rows of each head of a contiguous one.

    >>> has_room(np.zeros((2, 3, 9, 4))[:, :, :5]), has_room(np.zeros((2, 3, 9, 4))[..., :3])
    (True, False)
    """
    if array.ndim < 3 or not array.flags.writeable:
        return False
    *leading, rows, columns = array.shape
    *apart, row, item = array.strides
    if item != array.itemsize or row != columns * item:
        return False
    expected = 0
    for size, stride in zip(reversed(leading), reversed(apart), strict=True):
        if size == 1:  # of which the stride means nothing
            continue
        if not expected:
            expected = stride
            if stride < rows * row or not row or stride % row:
                return False
        if stride != expected:
            return False
        expected *= size
    return expected < _MOST_ELEMENTS * item


@dataclass(frozen=True)
class Place:
    """Where an array lies that a program reads or writes.

    Attributes
    ----------
    start, end : int
        Addresses.
    array : numpy.ndarray
    number : int
        Of the input or output.
    cache : int or None
        Of an output: the input whose beginning it may share.
    is_output : bool
    name : str
    """

    start: int
    end: int
    array: np.ndarray
    number: int
    name: str
    is_output: bool = False
    cache: int | None = None


def place_of(
    array: np.ndarray,
    start: int,
    number: int,
    name: str,
    is_output: bool = False,
    cache: int | None = None,
) -> Place:
    """The place of an array that begins at an address."""
    if array.flags.c_contiguous:
        size = array.nbytes
    else:
        size = array.itemsize
        for extent, stride in zip(array.shape, array.strides, strict=True):
            size += (extent - 1) * stride
    return Place(start, start + size, array, number, name, is_output, cache)


def refuse_overlap(places: list[Place]) -> None:
    """Checks that no output lies over anything else, but for caches that grow.

    Raises
    ------
    FeedError
        Naming two that do.
    """
    before: list[Place] = []
    for place in sorted(places, key=lambda each: each.start):
        before = [each for each in before if each.end > place.start]
        for each in before:
            if (each.is_output or place.is_output) and not _may_share(each, place):
                raise FeedError(
                    f"{_text(each)} and {_text(place)} are bound to the same memory; outputs need "
                    "memory of their own, but for the keys and values of a decoder, which may lie "
                    "over their past if both begin at the same element of a larger array"
                )
        before.append(place)


def _may_share(one: Place, other: Place) -> bool:
    output, source = (one, other) if one.is_output else (other, one)
    if not source.is_output and output.cache == source.number and one.start == other.start:
        strides = zip(output.array.strides, source.array.strides, output.array.shape, strict=True)
        return all(a == b for a, b, size in strides if size != 1)
    try:
        return not np.shares_memory(one.array, other.array, max_work=_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return False


def _text(place: Place) -> str:
    return f"{'output' if place.is_output else 'input'} {place.name!r}"
