"""Runs a program on arrays that are bound to its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import runtime
from tvm.runtime import Tensor

from microkernels.errors import FeedError

from .bound_arrays import Place, has_room, place_of, refuse_overlap
from .dlpack import array_of, tensor_of
from .executable import Executable
from .feeds import aligned_empty, is_aligned, to_array
from .logs import logger
from .manifest import BoundOutput
from .tensors import OutputInfo, TensorInfo, from_stored, is_narrow, numpy_dtype, to_stored

Bound = Mapping[str, "np.ndarray | None"]


class BoundRun:
    """What one thread runs a program with, whose outputs it can write into given memory.

    Parameters
    ----------
    executable : Executable
        The program.
    """

    def __init__(self, executable: Executable) -> None:
        manifest = executable.manifest
        self.inputs, self.outputs = manifest.inputs, manifest.outputs
        self.shared, self.anywhere = manifest.shared_outputs, manifest.unaligned_inputs
        self.taken = manifest.bound_outputs
        self.caches = {each.cache for each in self.taken}
        self.main, self.shapes = executable.into_entries()
        self.copies: dict[int, np.ndarray] = {}
        self.told: set[str] = set()

    def run(self, feeds: Mapping[str, Any], bound: Bound) -> list[np.ndarray]:
        """All outputs; those that are bound are these arrays.

        Raises
        ------
        FeedError
            If an array does not fit, or an output overlaps anything else.
        """
        places: list[Place] = []
        tensors = [
            self._input(number, info, feeds[info.name], places)
            for number, info in enumerate(self.inputs)
        ]
        targets, arrays = [], {}
        for note, size in zip(self.taken, self.shapes(*tensors), strict=True):
            info, shape = self.outputs[note.number], tuple(size)
            given = bound.get(info.name)
            if given is not None:
                _check(given, info, shape)
            target, arrays[note.number] = self._target(note, info, shape, given, places)
            targets.append(target)
        refuse_overlap(places)
        made = self.main(*tensors, *targets)
        made = [made] if type(made) is Tensor else made
        return [
            self._result(number, info, made[number], arrays.get(number), bound.get(info.name))
            for number, info in enumerate(self.outputs)
        ]

    def _input(self, number: int, info: TensorInfo, value: Any, places: list[Place]) -> Tensor:
        """A tensor of what is bound to an input: its own memory, or a copy."""
        array = to_array(value, info)
        if not is_narrow(info.dtype):
            plain = array.size and array.flags.carray
            plain = plain and (self.anywhere[number] or is_aligned(array))
            if plain or (number in self.caches and has_room(array)):
                tensor = tensor_of(array)
                places.append(place_of(array, tensor.data_ptr(), number, info.name))
                return tensor
            if array.size and array.nbytes >= _LARGE:
                self._tell(f"input {info.name!r} is copied in every run: {_why(array)}")
        if not array.size:  # of which NumPy's strides are not those that kernels expect
            return runtime.empty(array.shape, info.stored.dtype)
        stored = to_stored(array)
        copy = self.copies.get(number)
        if copy is None or copy.shape != stored.shape:
            wanted = TensorInfo("", stored.shape, stored.dtype.name)
            copy = self.copies[number] = aligned_empty(wanted)
        copy[...] = stored
        return tensor_of(copy)

    def _target(
        self,
        note: BoundOutput,
        info: OutputInfo,
        shape: tuple[int, ...],
        given: np.ndarray | None,
        places: list[Place],
    ) -> tuple[Tensor, np.ndarray | None]:
        """What the program writes an output to; the array itself if that is the given one."""
        if given is not None and not is_narrow(info.dtype):
            plain = given.size and given.flags.carray and (note.anywhere or is_aligned(given))
            if plain or (note.cache is not None and has_room(given)):
                tensor = tensor_of(given)
                start = tensor.data_ptr()
                places.append(place_of(given, start, note.number, info.name, True, note.cache))
                return tensor, given
            if given.nbytes >= _LARGE:
                self._tell(f"output {info.name!r} is copied in every run: {_why(given)}")
        stored = TensorInfo("", shape, info.dtype).stored
        return runtime.empty(shape, stored.dtype), None

    def _result(
        self,
        number: int,
        info: OutputInfo,
        made: Tensor,
        written: np.ndarray | None,
        given: np.ndarray | None,
    ) -> np.ndarray:
        """An output as an array: the given one, with the result in it, or a new one."""
        if written is not None:
            return written
        array = from_stored(array_of(made), info.dtype) if is_narrow(info.dtype) else array_of(made)
        if given is None:
            return array.copy() if self.shared[number] else array
        return _copied(array, info, given)

    def _tell(self, text: str) -> None:
        """Logs what costs time, once."""
        if text not in self.told:
            self.told.add(text)
            logger.info("%s", text)


_LARGE = 1 << 13


def _why(array: np.ndarray) -> str:
    """Why kernels cannot use an array where it is."""
    if not array.flags.c_contiguous:
        return "it is not contiguous, nor a cache of keys or values with room for more rows"
    if not array.flags.writeable:
        return "it is read-only"
    return "its address is no multiple of 64"


def _check(given: np.ndarray, info: OutputInfo, shape: tuple[int, ...]) -> None:
    """Refuses an array that is not just what an output is."""
    if given.shape != shape or given.dtype != numpy_dtype(info.dtype):
        wanted, got = (
            TensorInfo(info.name, tuple(sizes), dtype)
            for sizes, dtype in ((shape, info.dtype), (given.shape, str(given.dtype)))
        )
        raise FeedError(f"output {info.name!r} is {wanted}; it is bound to {got}")


def copy_to_bound(
    infos: tuple[OutputInfo, ...], arrays: list[np.ndarray], bound: Bound
) -> list[np.ndarray]:
    """The outputs of a usual run, copied to where they are bound."""
    pairs = [(info, array, bound.get(info.name)) for info, array in zip(infos, arrays, strict=True)]
    return [array if given is None else _copied(array, info, given) for info, array, given in pairs]


def _copied(array: np.ndarray, info: OutputInfo, given: np.ndarray) -> np.ndarray:
    """The given array, with an output in it."""
    _check(given, info, array.shape)
    given[...] = array
    return given
