"""Checks the arrays that callers give, and wraps them as tensors that kernels can read.

NumPy aligns arrays to 16 bytes. Our templates read arrays of any alignment; TVM's own kernels
expect 64 bytes. So an array is copied if one of TVM's kernels reads it and it is not aligned, or if
it is so small that a copy costs less than passing it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import ml_dtypes
import msgspec
import numpy as np
import tvm
import tvm_ffi
from tvm.runtime import Tensor

from microkernels.base.errors import BY_ZERO, OUT_OF_RANGE, FeedError
from microkernels.base.tvm_compat.runtime import create_view, is_size_error

from .tensors import InputInfo, TensorInfo, evaluate, is_relation, numpy_dtype

ALIGNMENT = 64
ZERO_COPY_BYTES = 1 << 13


def aligned_empty(info: TensorInfo) -> np.ndarray:
    """Makes an uninitialised array, aligned for kernels; the shape must be static."""
    shape = info.static_shape
    assert shape is not None
    raw = np.empty(info.nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + info.nbytes].view(numpy_dtype(info.dtype)).reshape(shape)


def to_array(value: Any, info: InputInfo) -> np.ndarray:
    """Converts a value to an array of the input's type and shape.

    Arrays must have the right type already; lists and numbers are converted within NumPy's
    casting rule "same_kind" (integers may become floats, floats may not become integers).

    Raises
    ------
    FeedError
        Names the input, what it expects and what it got.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
    else:
        array = _from_sequence(value, info)
    fits = array.dtype == _dtype(info)
    if not fits or not info.fits(array.shape):
        found = TensorInfo(info.name, array.shape, str(array.dtype))
        hint = ""
        if fits:
            hint = "; give an array of the shape expected"
        elif info.dtype != "bfloat16":
            if array.dtype.kind in "biuf" and info.dtype in np.sctypeDict:
                hint = f"; array.astype({info.dtype!r}) converts it"
        elif array.dtype == np.uint16:  # NumPy itself lacks bfloat16
            hint = "; if these are the bits, give array.view(ml_dtypes.bfloat16)"
        else:
            hint = "; array.astype(ml_dtypes.bfloat16) rounds to it"
        raise FeedError(f"input {info.name!r}: expected {info}, got {found}{hint}")
    return array


def check_feeds(
    values: Sequence[Any], infos: Sequence[TensorInfo], limits: Mapping[str, int]
) -> None:
    """Refuses values that do not fit their inputs, each other, or the limits of the model.

    Raises
    ------
    FeedError
        Names the input, or the sizes.
    """
    arrays = map(to_array, values, infos)
    check_sizes(infos, [array.shape for array in arrays], limits)


def named_feeds(
    feeds: Any, names: Sequence[str], values: Sequence[InputValue] = ()
) -> dict[str, Any]:
    """Orders feeds by the inputs' names; feeds of known values are checked and dropped.

    Raises
    ------
    FeedError
        If `feeds` is not a mapping, a feed is missing or unknown, or one differs from the value
        that the program was compiled for.
    """
    if not isinstance(feeds, Mapping):
        raise FeedError(
            f"the feeds must be a dictionary from input names ({', '.join(names)}) to arrays, "
            f"not {type(feeds).__name__}"
        )
    for value in values:
        if value.name in feeds:
            value.check(feeds[value.name])
    made_for = {value.name for value in values}
    known = f"the model's inputs are {', '.join(map(repr, names))}"
    if missing := [name for name in names if name not in feeds]:
        raise FeedError(f"no value for input {', '.join(map(repr, missing))}; {known}")
    if extra := [name for name in feeds if name not in names and name not in made_for]:
        raise FeedError(f"the model has no input {', '.join(map(repr, extra))}; {known}")
    return {name: feeds[name] for name in names}


def output_places(names: Sequence[str], places: Mapping[str, int]) -> list[int]:
    """Returns the places of the requested outputs; of all outputs if `names` is empty.

    Raises
    ------
    FeedError
        If there is no such output, or one is requested twice.
    """
    if isinstance(names, str) or not isinstance(names, Sequence):
        known = ", ".join(map(repr, places))
        raise FeedError(f"output names must be a list, not {names!r}; there are {known}")
    for name in names:
        check_output(name, list(places))
    if len(set(names)) != len(names):
        raise FeedError(f"an output is asked for twice: {list(names)}")
    return [places[name] for name in names or places]


def check_output(name: object, names: Sequence[str]) -> None:
    """Raises FeedError if the model has no output of this name."""
    if name not in names:
        known = ", ".join(map(repr, names))
        raise FeedError(f"the model has no output {name!r}; its outputs are {known}")


def _dtype(info: InputInfo) -> np.dtype[Any]:
    assert info.dtype is not None  # always known for inputs
    return numpy_dtype(info.dtype)


def to_tensor(array: np.ndarray) -> Tensor:
    """Converts an array to an aligned tensor; shares its memory if that is aligned already."""
    flags = array.flags
    if not (flags.c_contiguous and flags.writeable and is_aligned(array)):
        aligned = aligned_empty(TensorInfo("", array.shape, str(array.dtype)))
        aligned[...] = array
        array = aligned
    return tensor_of(array)


def is_aligned(array: np.ndarray) -> bool:
    """Whether any kernel can read a contiguous array where it is."""
    return array.ctypes.data % ALIGNMENT == 0


def _from_sequence(value: Any, info: InputInfo) -> np.ndarray:
    if isinstance(value, Tensor):
        return array_of(value)
    if value is None or isinstance(value, (str, bytes, dict)):
        raise FeedError(f"input {info.name!r}: expected {info}, got {type(value).__name__}")
    try:
        array = np.asarray(value)
        wanted = _dtype(info)
        if array.dtype.kind in "biuf" and np.can_cast(array.dtype, wanted, "same_kind"):
            return np.asarray(value, dtype=wanted)
        return array
    except Exception as error:
        raise FeedError(
            f"input {info.name!r}: expected {info}, got {type(value).__name__} that is not an "
            f"array: {error}"
        ) from error


Shape = tuple[int, ...]


def check_sizes(
    infos: Sequence[TensorInfo], shapes: Sequence[Shape], limits: Mapping[str, int]
) -> None:
    """Refuses shapes that fit their inputs, but not each other or the limits of the model.

    Raises
    ------
    FeedError
        Names the sizes.
    """
    # For each dynamic size: its text, its number, and its place.
    places = [
        (text, found, f"input {info.name!r}, axis {axis}")
        for info, shape in zip(infos, shapes, strict=True)
        for axis, (text, found) in enumerate(zip(info.shape, shape, strict=True))
        if isinstance(text, str)
    ]
    sizes: dict[str, int] = {}
    sources: dict[str, str] = {}
    for name, found, place in places:
        if is_relation(name):
            continue
        if sizes.setdefault(name, found) != found:
            raise FeedError(
                f"dimension {name!r} is {sizes[name]} in {sources[name]}, but {found} in {place}"
            )
        sources.setdefault(name, place)
    for text, found, place in places:
        wanted = evaluate(text, sizes)
        if found != wanted:
            raise FeedError(f"{place} is {found}; it has to be {text}, which is {wanted}")
    for text, most in limits.items():
        wanted = evaluate(text, sizes)
        if wanted > most:
            raise FeedError(f"dimension {text!r} is {wanted}; the model takes at most {most}")


class _Shaped(Protocol):
    @property
    def shape(self) -> Sequence[Any]: ...


def sample_shapes(infos: Sequence[_Shaped], size: int = 1) -> list[Shape]:
    """Makes shapes of the inputs, with `size` for every named dynamic dimension."""
    names = {
        text: size
        for info in infos
        for text in info.shape
        if isinstance(text, str) and not is_relation(text)
    }
    return [
        tuple(each if isinstance(each, int) else evaluate(each, names) for each in info.shape)
        for info in infos
    ]


def dynamic_dimensions(infos: Sequence[TensorInfo], limits: Mapping[str, int]) -> str:
    """Describes the dynamic dimensions and their limits; "" if there are none."""
    texts = [text for info in infos for text in info.shape if isinstance(text, str)]
    names = [text for text in dict.fromkeys(texts) if not is_relation(text)]
    found = [f"{name} from 0 to {limits[name]}" if name in limits else name for name in names]
    found += [f"{text} at most {most}" for text, most in limits.items() if text not in names]
    return f"dynamic dimensions: {', '.join(found)}" if found else ""


# Conversion between arrays and tensors, without a copy.
#
# NumPy's DLPack has no bfloat16. So such an array is passed as its bits (uint16), and the receiver
# corrects the type.


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
BITS = np.dtype(np.uint16)


def tensor_of(array: np.ndarray) -> Tensor:
    """Wraps a contiguous array as a tensor, at any address.

    An empty array gives a new tensor, because kernels expect other strides than NumPy's.
    """
    return view_of(array) if array.size else tvm.runtime.empty(array.shape, array.dtype.name)


def view_of(array: np.ndarray) -> Tensor:
    """Wraps an array as a tensor with the array's strides."""
    if array.dtype != BFLOAT16:
        return cast(Tensor, tvm_ffi.from_dlpack(array))  # returns TVM's registered class
    return _view(tvm_ffi.from_dlpack(array.view(BITS)), array.shape, BFLOAT16)


def array_of(tensor: Tensor) -> np.ndarray:
    """Wraps a tensor's memory as an array."""
    if str(tensor.dtype) != "bfloat16":
        return np.from_dlpack(tensor)
    return np.from_dlpack(_view(tensor, tuple(tensor.shape), BITS)).view(BFLOAT16)


def _view(tensor: tvm_ffi.Tensor, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
    """Views a tensor's memory as another element type."""
    return create_view()(tensor, _shape(shape), _dtype_dlpack(dtype.name), 0)


_shape = functools.lru_cache(maxsize=256)(tvm_ffi.Shape)
_dtype_dlpack = functools.cache(tvm.DataType)


def raise_size_error(error: Exception) -> None:
    """Raises FeedError if the error comes from a check of sizes or indices.

    Raises
    ------
    FeedError
        Says what may be wrong: a failed check of sizes does not name the node, one of indices does.
    """
    if OUT_OF_RANGE in str(error):
        place = str(error).index(OUT_OF_RANGE)
        raise FeedError(str(error)[place:].splitlines()[0]) from error
    if is_size_error(error) or BY_ZERO in str(error):
        raise FeedError(
            "the inputs' values make sizes that do not fit the model: operands of other sizes, a "
            "reshape to another number of elements, a size below 0, more elements than there are, "
            "a step of 0, or a size divided by another one that is 0"
        ) from error


MOST_SHOWN = 64  # most elements that a message shows


class InputValue(msgspec.Struct, frozen=True):
    """The value of an input that a program was compiled for; the program does not take the input.

    Attributes
    ----------
    name : str
        Name in the model.
    shape : tuple of int
        Sizes.
    dtype : str
        NumPy's name of the element type.
    data : bytes
        The elements.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    data: bytes

    @classmethod
    def of(cls, name: str, array: np.ndarray) -> InputValue:
        """Stores the value of an input."""
        return cls(name, array.shape, str(array.dtype), array.tobytes())

    @property
    def array(self) -> np.ndarray:
        """The value as a read-only array."""
        return np.frombuffer(self.data, numpy_dtype(self.dtype)).reshape(self.shape)

    def check(self, value: Any) -> None:
        """Raises FeedError if another value is given."""
        given = to_array(value, TensorInfo(self.name, self.shape, self.dtype))
        if given.tobytes() != self.data:
            raise FeedError(
                f"this program was made for {self}, not for "
                f"{InputValue.of(self.name, given)}; compile the model for the other value, or run "
                "it by an InferenceSession made without values"
            )

    def __str__(self) -> str:
        if math.prod(self.shape) > MOST_SHOWN:
            return str(TensorInfo(self.name, self.shape, self.dtype))
        return f"{self.name}={self.array.tolist()}"


def arrays_of(values: Sequence[InputValue]) -> dict[str, np.ndarray]:
    """Input name -> value."""
    return {value.name: value.array for value in values}
