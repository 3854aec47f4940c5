"""Runs a program on arrays that are bound to inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from tvm.runtime import Tensor

from microkernels.base.errors import FeedError
from microkernels.base.logs import logger

from ..executable.executable import Executable
from ..library.manifest import BoundOutput
from ..runtime.feeds import (
    ALIGNMENT,
    BFLOAT16,
    ZERO_COPY_BYTES,
    aligned_empty,
    array_of,
    tensor_of,
    to_array,
    view_of,
)
from ..runtime.tensors import OutputInfo, TensorInfo, from_stored, is_narrow, numpy_dtype, to_stored

Bound = Mapping[str, "np.ndarray | None"]
_MOST_ROOMS = 64  # cached results of `room_of`


@dataclass(frozen=True, slots=True)
class _Slot:
    """Facts about an input or output that do not depend on the bound array."""

    info: TensorInfo | OutputInfo
    number: int
    is_output: bool
    cache: int | None  # for an output: the input that may share its beginning
    has_room: bool  # kernels accept an array whose heads are not adjacent
    anywhere: bool  # kernels accept any alignment
    name: str
    dtype: np.dtype[Any] | None  # None if kernels use another type
    stored: np.dtype[Any]  # type that kernels use
    rank: int


class _Copy:
    """Aligned memory for copies of one input; it grows as needed."""

    def __init__(self) -> None:
        self.memory = aligned_empty(TensorInfo("", (ZERO_COPY_BYTES,), "uint8"))
        self.array: np.ndarray = np.empty(0)
        self.tensor: Tensor | None = None

    def takes(self, value: Any, dtype: np.dtype[Any] | None, info: TensorInfo) -> bool:
        """Whether a value is a small array that needs no conversion and no message."""
        if type(value) is not np.ndarray or value.dtype is not dtype:
            return False
        fits = value.shape == self.array.shape or info.fits(value.shape)
        return fits and 0 < value.nbytes < ZERO_COPY_BYTES

    def filled(self, array: np.ndarray) -> Tensor:
        """Copies an array into a tensor, which is valid until the next call."""
        if self.tensor is None or array.shape != self.array.shape:
            if array.nbytes > self.memory.size:
                self.memory = aligned_empty(TensorInfo("", (array.nbytes,), "uint8"))
            self.array = self.memory[: array.nbytes].view(array.dtype).reshape(array.shape)
            self.tensor = tensor_of(self.array)
        self.array[...] = array
        return self.tensor


class BoundRun:
    """One thread's runs of a program that can write outputs into given memory.

    Every step of a decoder binds new arrays, so every operation on them costs microseconds.

    Parameters
    ----------
    executable : Executable
        The program.
    """

    def __init__(self, executable: Executable) -> None:
        manifest = executable.manifest
        self.outputs, self.shared = manifest.outputs, manifest.shared_outputs
        caches = {each.cache for each in manifest.bound_outputs}
        anywhere = manifest.unaligned_inputs
        self.inputs = [
            _slot(info, BoundOutput(n, None, anywhere[n], n in caches), is_output=False)
            for n, info in enumerate(manifest.inputs)
        ]
        self.targets = [
            _slot(manifest.outputs[each.number], each, is_output=True)
            for each in manifest.bound_outputs
        ]
        self.sizes = [_sizes(slot.info, self.inputs) for slot in self.targets]
        self.main, self.shapes = executable.into_entries()
        self.copies: dict[int, _Copy] = {}
        self.rooms: dict[Any, Room] = {}
        self.logged: set[str] = set()

    def run(self, feeds: Mapping[str, Any], bound: Bound) -> list[np.ndarray]:
        """Runs the program; returns all outputs, with the bound arrays among them.

        Raises
        ------
        FeedError
            If an array does not fit, or an output overlaps another array.
        """
        places: list[Place] = []
        tensors = [self._input(slot, feeds[slot.name], places) for slot in self.inputs]
        targets: list[Tensor] = []
        written: dict[int, np.ndarray] = {}
        fresh: dict[int, np.ndarray] = {}
        shapes: Any = None
        for place, slot in enumerate(self.targets):
            given = bound.get(slot.name)
            target = None if given is None else self._in_place(slot, given, places)
            if target is not None and given is not None:
                written[slot.number] = given
            else:
                sizes = self.sizes[place]
                if sizes is None:
                    shapes = shapes or self.shapes(*tensors)
                    shape = tuple(shapes[place])
                else:
                    shape = tuple(_size(each, feeds) for each in sizes)
                memory = _memory(slot, shape)
                target = tensor_of(memory)
                fresh[slot.number] = memory
            targets.append(target)
        refuse_overlap(places)
        try:
            made = self.main(*tensors, *targets)
        except Exception:
            # Sizes taken from dimension names may be wrong; then these names are not used again.
            # Dimensions of one name may have different sizes: a module may give two variables one
            # name, and a model may violate its declaration.
            misled = False
            shapes = [tuple(shape) for shape in self.shapes(*tensors)]
            for place, (slot, shape) in enumerate(zip(self.targets, shapes, strict=True)):
                given = bound.get(slot.name)
                if given is not None:
                    _check_array(given, slot.info, shape)
                if slot.number in fresh and fresh[slot.number].shape != shape:
                    self.sizes[place], misled = None, True
            if misled:
                return self.run(feeds, bound)
            raise
        made = [made] if type(made) is Tensor else made
        results = []
        for number, info in enumerate(self.outputs):
            if number in written:
                results.append(written[number])
                continue
            array = fresh[number] if number in fresh else array_of(made[number])
            if is_narrow(info.dtype):
                array = from_stored(array, info.dtype)
            given = bound.get(info.name)
            if given is not None:
                for slot in self.targets:
                    if slot.number == number:
                        self._log_copy("output", slot, given)
                array = copied(array, info, given)
            elif self.shared[number] and number not in fresh:
                array = array.copy()
            results.append(array)
        return results

    def _in_place(self, slot: _Slot, array: Any, places: list[Place]) -> Tensor | None:
        """Wraps an array's own memory; returns None if kernels cannot use it where it is."""
        if type(array) is not np.ndarray or array.dtype is not slot.dtype:
            return None
        if array.flags.carray and array.size:
            tensor = tensor_of(array)
            start = tensor.data_ptr()
            if not slot.anywhere and start % ALIGNMENT:
                return None
            end = start + array.nbytes
        else:
            room = self._room(array) if slot.has_room and array.ndim == slot.rank else NO_ROOM
            if array.ndim < 2 or array.shape[-2] > room.rows or not array.flags.writeable:
                return None
            tensor = view_of(array)
            start = tensor.data_ptr()
            end = start + room.last + array.shape[-2] * array.strides[-2] if array.size else start
        places.append(Place(start, end, slot, array))
        return tensor

    def _room(self, array: np.ndarray) -> Room:
        """`room_of`, cached: arrays of one cache differ only in their number of rows."""
        key = array.itemsize, array.strides, array.shape[:-2], array.shape[-1:]
        try:
            return self.rooms[key]
        except KeyError:
            if len(self.rooms) >= _MOST_ROOMS:
                self.rooms.clear()
            room = self.rooms[key] = room_of(array)
            return room

    def _input(self, slot: _Slot, value: Any, places: list[Place]) -> Tensor:
        """Makes a tensor of a bound input: its own memory, or a copy."""
        tensor = self._in_place(slot, value, places)
        if tensor is not None:
            return tensor
        known, info = self.copies.get(slot.number), slot.info
        assert isinstance(info, TensorInfo)
        if known is not None and known.takes(value, slot.dtype, info):
            return known.filled(value)
        array = to_array(value, info)
        if not array.size:
            return tensor_of(to_stored(array))
        self._log_copy("input", slot, array)
        if known is None:
            known = self.copies[slot.number] = _Copy()
        return known.filled(to_stored(array))

    def _log_copy(self, what: str, slot: _Slot, array: np.ndarray) -> None:
        """Logs once that a large array is copied, and why."""
        if array.nbytes < ZERO_COPY_BYTES or slot.name in self.logged:
            return
        self.logged.add(slot.name)
        if slot.dtype is None:
            why = f"kernels have no type {slot.info.dtype}"
        elif not array.flags.c_contiguous:
            why = "it is not contiguous, nor a cache of keys or values with room for more rows"
        elif not array.flags.writeable:
            why = "it is read-only"
        else:
            why = f"its address is no multiple of {ALIGNMENT}"
        logger.info("%s %r is copied in every run: %s", what, slot.name, why)


def _slot(info: TensorInfo | OutputInfo, bound: BoundOutput, is_output: bool) -> _Slot:
    dtype = None if is_narrow(info.dtype) else numpy_dtype(info.dtype)
    has_room = bound.has_room and dtype != BFLOAT16  # TVM cannot make such views of bfloat16
    stored = numpy_dtype(TensorInfo("", (), info.dtype).stored.dtype)
    where = bound.number, is_output, bound.cache, has_room, bound.anywhere
    return _Slot(info, *where, info.name, dtype, stored, len(info.shape))


def _sizes(
    info: TensorInfo | OutputInfo, inputs: list[_Slot]
) -> list[int | tuple[str, int]] | None:
    """An output's sizes, each a number, or an input and its axis; None if one is unknown."""
    places = {
        size: (slot.name, axis)
        for slot in inputs
        for axis, size in enumerate(slot.info.shape)
        if isinstance(size, str)
    }
    found = [size if isinstance(size, int) else places.get(str(size)) for size in info.shape]
    return None if None in found else [each for each in found if each is not None]


def _size(size: int | tuple[str, int], feeds: Mapping[str, Any]) -> int:
    """A size of an output for these inputs; the program checks it later."""
    if isinstance(size, int):
        return size
    name, axis = size
    return int(np.shape(feeds[name])[axis])


def _memory(slot: _Slot, shape: tuple[int, ...]) -> np.ndarray:
    """Allocates an output; NumPy's allocation costs a seventh of TVM's."""
    if slot.anywhere:
        return np.empty(shape, slot.stored)
    return aligned_empty(TensorInfo("", shape, slot.stored.name))


def copied(array: np.ndarray, info: OutputInfo, given: np.ndarray) -> np.ndarray:
    """Copies an output into the given array, and returns that."""
    _check_array(given, info, array.shape)
    given[...] = array
    return given


def _check_array(given: np.ndarray, info: TensorInfo | OutputInfo, shape: tuple[int, ...]) -> None:
    """Refuses an array that does not have exactly the shape and type of an output."""
    if given.shape != shape or given.dtype != numpy_dtype(info.dtype):
        wanted, got = (
            TensorInfo(info.name, tuple(sizes), dtype)
            for sizes, dtype in ((shape, info.dtype), (given.shape, str(given.dtype)))
        )
        raise FeedError(f"output {info.name!r} is {wanted}; it is bound to {got}")


_MOST_ELEMENTS = 2**31  # kernels count them in 32 bits
_WORK = 10_000  # limit of NumPy's search for elements that two arrays share


class Room(NamedTuple):
    """Room of an array [..., rows, columns] that is the first rows of each head of a larger one.

    Attributes
    ----------
    rows : int
        Rows that each head has room for.
    last : int
        Bytes from the first head to the last one.
    """

    rows: int
    last: int


NO_ROOM = Room(-1, 0)


def room_of(array: np.ndarray) -> Room:
    """Computes the room of an array; `NO_ROOM` if it has another layout.

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
        if size == 1:  # its stride has no meaning
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


class Place(NamedTuple):
    """Location of an array that a program reads or writes.

    Attributes
    ----------
    start, end : int
        Addresses.
    slot : _Slot
        The input or output that it is bound to.
    array : numpy.ndarray
    """

    start: int
    end: int
    slot: _Slot
    array: np.ndarray


def refuse_overlap(places: list[Place]) -> None:
    """Checks that no output overlaps another array, except caches that grow.

    Raises
    ------
    FeedError
        Names two arrays that overlap.
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
