"""TensorInfo: name, shape and type of a model's input or output."""

from __future__ import annotations

import math

import msgspec
import numpy as np

_ONNX_TYPE_NAMES = {"float32": "float", "float64": "double"}


class TensorInfo(msgspec.Struct, frozen=True):
    """One input or output.

    Attributes
    ----------
    name : str
        As in the model.
    shape : tuple of int
        Sizes; all are known once a model is compiled.
    dtype : str
        NumPy's name of the element type.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def type(self) -> str:
        """The type as ONNX Runtime writes it, such as "tensor(float)"."""
        return f"tensor({_ONNX_TYPE_NAMES.get(self.dtype, self.dtype)})"

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"
