"""Element types as ONNX Runtime's functions take them: NumPy's, or ONNX's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from microkernels.base.errors import OptionError

from ...runtime.tensors import numpy_dtype

# TensorProto.DataType. Types of 2 and 4 bits are packed there and not here.
_NAMES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    16: "bfloat16",
    17: "float8_e4m3fn",
    18: "float8_e4m3fnuz",
    19: "float8_e5m2",
    20: "float8_e5m2fnuz",
    24: "float8_e8m0fnu",
}
_NUMBERS = {name: number for number, name in _NAMES.items()}


def element_dtype(element_type: Any) -> np.dtype[Any]:
    """NumPy's type, or that of ml_dtypes.

    Parameters
    ----------
    element_type : dtype-like or int
        An int is one of ONNX's TensorProto.DataType.

    Raises
    ------
    OptionError
        If there are no tensors of that type here.
    """
    if isinstance(element_type, int):
        if element_type not in _NAMES:
            raise OptionError(f"there are no tensors of ONNX's element type {element_type} here")
        return numpy_dtype(_NAMES[element_type])
    try:
        dtype = np.dtype(element_type)
    except TypeError as error:
        raise OptionError(f"{element_type!r} is no element type") from error
    number_of(dtype)
    return dtype


def number_of(dtype: np.dtype[Any]) -> int:
    """ONNX's number of an element type.

    Raises
    ------
    OptionError
        If there are no tensors of that type here.
    """
    if dtype.name not in _NUMBERS:
        raise OptionError(f"there are no tensors of {dtype.name} here, only of numbers")
    return _NUMBERS[dtype.name]
