"""OrtValue: ONNX Runtime's class for a tensor."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import tvm_ffi
from numpy.typing import DTypeLike
from tvm.runtime import Tensor

from microkernels.base.errors import FeedError, OptionError

from ...runtime.feeds import array_of, tensor_of
from ...runtime.tensors import numpy_dtype, onnx_type


class OrtValue:
    """An array with the methods of ONNX Runtime's class; NumPy accepts it, and it can be indexed.

    Parameters
    ----------
    array : numpy.ndarray
        The elements. They are shared, not copied.

    Raises
    ------
    OptionError
        If the element type is not supported, such as strings.
    """

    __slots__ = ("_array",)

    def __init__(self, array: np.ndarray) -> None:
        number_of(array.dtype)
        self._array = array

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: np.ndarray, /, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Makes a value that shares an array's memory; a copy if it is not contiguous.

        Parameters
        ----------
        numpy_obj : numpy.ndarray
            The elements.
        device_type : str
            Only "cpu".
        device_id : int
            Only 0.

        Raises
        ------
        OptionError
            If there is no such device, or the element type is not supported.
        """
        require_cpu(device_type, device_id)
        return cls(np.ascontiguousarray(numpy_obj).reshape(np.shape(numpy_obj)))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(
        cls, data: np.ndarray, /, onnx_element_type: int
    ) -> OrtValue:
        """Makes a value that shares an array's memory under another type of equal size.

        Parameters
        ----------
        data : numpy.ndarray
            An array, such as bits of bfloat16 as uint16.
        onnx_element_type : int
            ONNX's TensorProto.DataType.

        Raises
        ------
        OptionError
            If the element type is not supported, or elements have another size.
        """
        dtype = element_dtype(int(onnx_element_type))
        if data.dtype.itemsize != dtype.itemsize:
            raise OptionError(f"elements of {data.dtype} do not have the size of {dtype}")
        return cls(np.ascontiguousarray(data).view(dtype).reshape(data.shape))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Makes a new value with arbitrary content.

        Parameters
        ----------
        shape : sequence of int
            Sizes.
        element_type : dtype-like or int
            An int is ONNX's TensorProto.DataType.
        device_type : str
            Only "cpu".
        device_id : int
            Only 0.

        Raises
        ------
        OptionError
            If there is no such device, or the element type is not supported.
        """
        require_cpu(device_type, device_id)
        return cls(np.empty(tuple(shape), element_dtype(element_type)))

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """Makes a value that shares the memory of another library's tensor.

        Parameters
        ----------
        data : object
            A contiguous tensor in the CPU's memory with `__dlpack__`, or a DLPack capsule.
        """
        return cls(array_of(cast(Tensor, tvm_ffi.from_dlpack(data))))

    def numpy(self) -> np.ndarray:
        """The array itself, not a copy."""
        return self._array

    def shape(self) -> list[int]:
        """The sizes."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """The type as ONNX Runtime writes it, such as "tensor(float)"."""
        return onnx_type(self._array.dtype.name)

    def element_type(self) -> int:
        """ONNX's number of the element type."""
        return number_of(self._array.dtype)

    def data_ptr(self) -> int:
        """The address of the first element."""
        return int(self._array.ctypes.data)

    def device_name(self) -> str:
        """The device: "cpu"."""
        return "cpu"

    def tensor_size_in_bytes(self) -> int:
        """Number of bytes of the elements."""
        return int(self._array.nbytes)

    def has_value(self) -> bool:
        """True: there is always a value."""
        return True

    def is_tensor(self) -> bool:
        """True: only tensors are supported."""
        return True

    def is_sparse_tensor(self) -> bool:
        """False: sparse tensors are not supported."""
        return False

    def is_tensor_sequence(self) -> bool:
        """False: sequences are not supported."""
        return False

    def update_inplace(self, data: np.ndarray | OrtValue) -> None:
        """Copies an array's elements into the value's memory.

        Parameters
        ----------
        data : numpy.ndarray or OrtValue
            An array of equal shape and type.

        Raises
        ------
        FeedError
            If shape or type differ, or the memory is read-only.
        """
        array = data.numpy() if isinstance(data, OrtValue) else np.asarray(data)
        mine = self._array
        if array.shape != mine.shape or array.dtype != mine.dtype:
            raise FeedError(
                f"a value of {mine.dtype}{list(mine.shape)} cannot become one of "
                f"{array.dtype}{list(array.shape)}"
            )
        if not mine.flags.writeable:
            raise FeedError("the value's memory cannot be written to: its array is read-only")
        mine[...] = array

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        array = self._array if dtype is None else self._array.astype(dtype, copy=False)
        return array.copy() if copy else array

    def __getitem__(self, place: Any) -> Any:
        return self._array[place]

    def __len__(self) -> int:
        return len(self._array)

    def __dlpack__(self, *, stream: Any = None) -> Any:
        return tensor_of(self._array).__dlpack__(stream=stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # kDLCPU

    def __repr__(self) -> str:
        return f"OrtValue({self.data_type()}, shape={self.shape()})"


def plain(value: Any) -> Any:
    """Unwraps an OrtValue, also one of ONNX Runtime's class; returns other values unchanged."""
    if isinstance(value, OrtValue):
        return value.numpy()
    return value.numpy() if hasattr(value, "ortvalue_from_numpy") else value


class OrtDevice:
    """The only device, as ONNX Runtime describes devices.

    Parameters
    ----------
    device_type, mem_type : int
        `cpu()` and `default_memory()`, which are 0.
    *numbers : int
        An optional vendor, and the number of the device: 0.

    Raises
    ------
    OptionError
        If it is another device.
    """

    def __init__(self, device_type: int, mem_type: int, *numbers: int) -> None:
        if (device_type, mem_type, *numbers[-1:]) != (0, 0, 0):
            raise OptionError(f"there is no device {device_type} {numbers} here, only the CPU: 0")

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """Makes the device of a name; only "cpu" with number 0 exists.

        Parameters
        ----------
        ort_device_name : str
        device_id : int
        vendor_id : int
            Ignored.

        Raises
        ------
        OptionError
            If it is another device.
        """
        require_cpu(ort_device_name, device_id)
        return OrtDevice(0, 0, 0)

    @staticmethod
    def cpu() -> int:
        """The number of the CPU's device type."""
        return 0

    default_memory = cpu

    def device_id(self) -> int:
        """Returns 0, like all numbers of this device."""
        return 0

    device_type = device_mem_type = device_vendor_id = mem_type = vendor_id = device_id


def require_cpu(device_type: Any, device_id: int) -> None:
    """Refuses every device but the CPU.

    Parameters
    ----------
    device_type : str
        ONNX Runtime's name of the device.
    device_id : int
        Its number; 0 stands for all CPUs.

    Raises
    ------
    OptionError
        If it is another device.
    """
    if not isinstance(device_type, str) or device_type.lower() != "cpu" or device_id != 0:
        raise OptionError(
            f"there is no device {device_type!r} {device_id} here; arrays lie in the CPU's memory: "
            'device_type="cpu", device_id=0'
        )


def array_at(address: Any, shape: Sequence[int] | None, element_type: Any) -> np.ndarray:
    """Makes an array of the memory at an address; the caller keeps it alive.

    Parameters
    ----------
    address : int
        Address of the first element.
    shape : sequence of int
        Sizes; elements are contiguous.
    element_type : dtype-like or int
        See `element_dtype`.

    Raises
    ------
    OptionError
        If an argument is missing, or has a wrong type.
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


# TensorProto.DataType -> name. Types of 2 and 4 bits are missing, as ONNX packs them.
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
    """Converts an element type to NumPy's type, or to that of ml_dtypes.

    An int is ONNX's TensorProto.DataType.

    Raises
    ------
    OptionError
        If the type is not supported.
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
        If the type is not supported.
    """
    if dtype.name not in _NUMBERS:
        raise OptionError(f"there are no tensors of {dtype.name} here, only of numbers")
    return _NUMBERS[dtype.name]
