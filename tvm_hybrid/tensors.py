"""Name, shape and type of a model's inputs and outputs."""

from __future__ import annotations

import math

import ml_dtypes
import msgspec
import numpy as np

_ONNX_TYPE_NAMES = {"float32": "float", "float64": "double"}


class TensorInfo(msgspec.Struct, frozen=True):
    """One input of a compiled model.

    Attributes
    ----------
    name : str
        As in the model.
    shape : tuple of int
        Sizes; all are known.
    dtype : str
        NumPy's name of the element type.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes."""
        return math.prod(self.shape) * numpy_dtype(self.dtype).itemsize

    @property
    def type(self) -> str:
        """The type as ONNX Runtime writes it, such as "tensor(float)"."""
        return onnx_type(self.dtype)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


class OutputInfo(msgspec.Struct, frozen=True):
    """One output of a compiled model.

    Attributes
    ----------
    name : str
        As in the model.
    shape : tuple
        Sizes. Where a size depends on the inputs' values, the name that the model gives it, or
        None if it has none.
    dtype : str
        NumPy's name of the element type.
    """

    name: str
    shape: tuple[int | str | None, ...]
    dtype: str

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape; None if a size depends on the inputs' values."""
        sizes = tuple(size for size in self.shape if isinstance(size, int))
        return sizes if len(sizes) == len(self.shape) else None

    @property
    def nbytes(self) -> int | None:
        """Size of the tensor in bytes; None if it depends on the inputs' values."""
        shape = self.static_shape
        return None if shape is None else math.prod(shape) * numpy_dtype(self.dtype).itemsize

    @property
    def type(self) -> str:
        """The type as ONNX Runtime writes it, such as "tensor(float)"."""
        return onnx_type(self.dtype)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{_sizes(self.shape)}]"


class OpenTensorInfo(msgspec.Struct, frozen=True):
    """One input or output of a model some of whose sizes are not known yet.

    Attributes
    ----------
    name : str
        As in the model.
    shape : tuple or None
        A number, the name of a symbolic dimension, or None where the model tells nothing. None if
        it does not even tell how many dimensions there are.
    dtype : str or None
        NumPy's name of the element type; None if the model does not tell that of an output.
    """

    name: str
    shape: tuple[int | str | None, ...] | None
    dtype: str | None

    @property
    def type(self) -> str | None:
        """The type as ONNX Runtime writes it."""
        return None if self.dtype is None else onnx_type(self.dtype)

    @property
    def is_open(self) -> bool:
        """Whether a size is not known."""
        return self.shape is None or not all(isinstance(size, int) for size in self.shape)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape can be the tensor's value."""
        return self.shape is None or (
            len(shape) == len(self.shape)
            and all(
                found == size
                for found, size in zip(shape, self.shape, strict=True)
                if isinstance(size, int)
            )
        )

    def __str__(self) -> str:
        known = ("...",) if self.shape is None else self.shape
        return f"{self.name}: {self.dtype}[{_sizes(known)}]"


def _sizes(shape: tuple[int | str | None, ...]) -> str:
    return ", ".join("?" if size is None else str(size) for size in shape)


def numpy_dtype(name: str) -> np.dtype:
    """NumPy's element type of this name; "bfloat16" is that of ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name, name))


def onnx_type(dtype: str) -> str:
    """An element type as ONNX Runtime writes it, such as "tensor(float)"."""
    return f"tensor({_ONNX_TYPE_NAMES.get(dtype, dtype)})"
