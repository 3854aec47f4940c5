"""Memory that a script names by device and address."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from microkernels.base.errors import OptionError

from .element_types import element_dtype


def require_cpu(device_type: Any, device_id: int) -> None:
    """Refuses every device but the CPU.

    Parameters
    ----------
    device_type : str
        ONNX Runtime's name.
    device_id : int
        Its number; CPU 0 is all of them.

    Raises
    ------
    OptionError
        If it is another one.
    """
    if not isinstance(device_type, str) or device_type.lower() != "cpu" or device_id != 0:
        raise OptionError(
            f"there is no device {device_type!r} {device_id} here; arrays lie in the CPU's memory: "
            'device_type="cpu", device_id=0'
        )


def array_at(address: Any, shape: Sequence[int] | None, element_type: Any) -> np.ndarray:
    """The memory at an address as an array; the caller keeps it alive.

    Parameters
    ----------
    address : int
        Of the first element.
    shape : sequence of int
        Sizes; elements are consecutive.
    element_type : dtype-like or int
        As `element_dtype` takes it.

    Raises
    ------
    OptionError
        If one of them is missing, or is no such thing.
    """
    if shape is None or element_type is None or not isinstance(address, int):
        raise OptionError("memory is given by buffer_ptr, shape and element_type: all three")
    dtype, sizes = element_dtype(element_type), tuple(int(size) for size in shape)
    count = math.prod(sizes)
    if count == 0:
        return np.empty(sizes, dtype)
    if not address:
        raise OptionError("buffer_ptr is 0, which is no address of an array")
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(memoryview(memory), dtype).reshape(sizes)
