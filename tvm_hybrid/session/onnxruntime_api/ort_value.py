"""OrtValue: a tensor as scripts of ONNX Runtime hold it."""

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
    """An array with the methods of ONNX Runtime's class; NumPy takes it, and it can be indexed.

    Parameters
    ----------
    array : numpy.ndarray
        Numbers. It is held, not copied.

    Raises
    ------
    OptionError
        If there are no tensors of its element type here, such as texts.
    """

    __slots__ = ("_array",)

    def __init__(self, array: np.ndarray) -> None:
        number_of(array.dtype)
        self._array = array

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: np.ndarray, /, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """An array's memory as a value; a copy if its elements are not consecutive.

        Parameters
        ----------
        numpy_obj : numpy.ndarray
            Numbers.
        device_type : str
            Only "cpu".
        device_id : int
            Only 0.

        Raises
        ------
        OptionError
            If there is no such device, or there are no such tensors here.
        """
        require_cpu(device_type, device_id)
        return cls(np.ascontiguousarray(numpy_obj).reshape(np.shape(numpy_obj)))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(
        cls, data: np.ndarray, /, onnx_element_type: int
    ) -> OrtValue:
        """An array's memory under another type of the same size.

        Parameters
        ----------
        data : numpy.ndarray
            Such as bits of bfloat16 as uint16.
        onnx_element_type : int
            ONNX's TensorProto.DataType.

        Raises
        ------
        OptionError
            If there are no such tensors here, or elements have another size.
        """
        dtype = element_dtype(int(onnx_element_type))
        if data.dtype.itemsize != dtype.itemsize:
            raise OptionError(f"elements of {data.dtype} do not have the size of {dtype}")
        return cls(np.ascontiguousarray(data).view(dtype).reshape(data.shape))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """A new value; what it holds is not said.

        Parameters
        ----------
        shape : sequence of int
            Sizes.
        element_type : dtype-like or int
            An int is one of ONNX's TensorProto.DataType.
        device_type : str
            Only "cpu".
        device_id : int
            Only 0.

        Raises
        ------
        OptionError
            If there is no such device, or there are no such tensors here.
        """
        require_cpu(device_type, device_id)
        return cls(np.empty(tuple(shape), element_dtype(element_type)))

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """The memory of another library's tensor.

        Parameters
        ----------
        data : object
            With `__dlpack__`, or such a capsule; of consecutive elements in the CPU's memory.
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
        """How many bytes the elements have."""
        return int(self._array.nbytes)

    def has_value(self) -> bool:
        """Whether there is one: always."""
        return True

    def is_tensor(self) -> bool:
        """Whether it is a tensor: always."""
        return True

    def is_sparse_tensor(self) -> bool:
        """Whether it is sparse: never."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Whether it is a sequence: never."""
        return False

    def update_inplace(self, data: np.ndarray | OrtValue) -> None:
        """Copies an array's elements into the value, whose memory stays where it is.

        Parameters
        ----------
        data : numpy.ndarray or OrtValue
            Of the same shape and type.

        Raises
        ------
        FeedError
            If it has others, or the memory cannot be written to.
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
    """The array that a value holds, also one of ONNX Runtime's class; else what is given."""
    if isinstance(value, OrtValue):
        return value.numpy()
    return value.numpy() if hasattr(value, "ortvalue_from_numpy") else value


class OrtDevice:
    """The one device that there is, as ONNX Runtime describes devices.

    Parameters
    ----------
    device_type, mem_type : int
        `cpu()` and `default_memory()`, which are 0.
    *numbers : int
        A vendor, which may be left out, and the number of the device: 0.

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
        """The device of a name: "cpu", 0.

        Parameters
        ----------
        ort_device_name : str
        device_id : int
        vendor_id : int
            Not looked at.

        Raises
        ------
        OptionError
            If it is another device.
        """
        require_cpu(ort_device_name, device_id)
        return OrtDevice(0, 0, 0)

    @staticmethod
    def cpu() -> int:
        """The number of this type of device."""
        return 0

    default_memory = cpu

    def device_id(self) -> int:
        """0, as all that follow."""
        return 0

    device_type = device_mem_type = device_vendor_id = mem_type = vendor_id = device_id


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
