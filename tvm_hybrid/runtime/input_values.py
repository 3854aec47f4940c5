"""InputValue: an input whose value a program was made for, such as the axes of a reduction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from microkernels.base.errors import FeedError

from .feeds import to_array
from .tensors import TensorInfo, numpy_dtype

MOST_SHOWN = 64  # elements


class InputValue(msgspec.Struct, frozen=True):
    """The value that a program was made for; it is no input of the program.

    Attributes
    ----------
    name : str
        The input, as in the model.
    shape : tuple of int
        Its sizes.
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
        """The value of an input."""
        return cls(name, array.shape, str(array.dtype), array.tobytes())

    @property
    def array(self) -> np.ndarray:
        """The value; it cannot be written to."""
        return np.frombuffer(self.data, numpy_dtype(self.dtype)).reshape(self.shape)

    def check(self, value: Any) -> None:
        """Refuses, by FeedError, another value."""
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
    """The values by the names of their inputs."""
    return {value.name: value.array for value in values}


def without_values(feeds: Any, values: Sequence[InputValue]) -> Any:
    """The feeds of a program: those for inputs whose value is known are checked and left out.

    Raises
    ------
    FeedError
        If one has another value than the program was made for.
    """
    if not values or not isinstance(feeds, Mapping):
        return feeds
    for value in values:
        if value.name in feeds:
            value.check(feeds[value.name])
    known = {value.name for value in values}
    return {name: feed for name, feed in feeds.items() if name not in known}
