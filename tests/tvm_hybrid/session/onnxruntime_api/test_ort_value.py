"""OrtValue: arrays with ONNX Runtime's methods."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from microkernels.base.errors import FeedError, OptionError
from tvm_hybrid import InferenceSession, OrtValue

from .models import sample, talkative


def test_a_value_holds_the_array_itself() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    value = OrtValue.ortvalue_from_numpy(array)
    assert value.data_ptr() == array.ctypes.data and value.shape() == [2, 3]
    value.update_inplace(np.zeros((2, 3), np.float32))
    assert not array.any()
    assert value.tensor_size_in_bytes() == 24 and value.has_value() and value.is_tensor()
    assert not value.is_sparse_tensor() and not value.is_tensor_sequence()


def test_columns_are_copied() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    value = OrtValue.ortvalue_from_numpy(array.T)
    np.testing.assert_array_equal(value.numpy(), array.T)
    assert value.numpy().flags.c_contiguous and not np.shares_memory(value.numpy(), array)
    assert OrtValue.ortvalue_from_numpy(np.array(1.0)).shape() == []


def test_types_by_number_and_by_name() -> None:
    bfloat16 = OrtValue.ortvalue_from_shape_and_type([2], 16)
    assert bfloat16.data_type() == "tensor(bfloat16)" and bfloat16.element_type() == 16
    value = OrtValue.ortvalue_from_shape_and_type((2, 2), np.int64)
    assert (value.data_type(), value.element_type()) == ("tensor(int64)", 7)
    bits = np.array([0x3F80], np.uint16)
    one = OrtValue.ortvalue_from_numpy_with_onnx_type(bits, 16).numpy()
    assert one.dtype == ml_dtypes.bfloat16 and float(one[0]) == 1.0


def test_dlpack_goes_both_ways_without_a_copy() -> None:
    array = np.arange(6, dtype=np.float32)
    value = OrtValue.from_dlpack(array)
    assert value.data_ptr() == array.ctypes.data
    assert np.shares_memory(np.from_dlpack(value), array)
    bits = OrtValue(np.zeros(3, ml_dtypes.bfloat16))
    again = OrtValue.from_dlpack(bits)
    assert again.data_type() == "tensor(bfloat16)" and again.data_ptr() == bits.data_ptr()


def test_numpy_takes_a_value() -> None:
    value = OrtValue(np.arange(3, dtype=np.float32))
    assert np.asarray(value) is value.numpy()
    assert np.asarray(value, np.float64).dtype == np.float64
    assert not np.shares_memory(np.array(value), value.numpy())
    assert value[1] == 1.0 and len(value) == 3


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(OptionError, match="no device 'cuda' 0"):
        OrtValue.ortvalue_from_numpy(sample(), "cuda")
    with pytest.raises(OptionError, match="no device 'cpu' 1"):
        OrtValue.ortvalue_from_shape_and_type([1], np.float32, "cpu", 1)
    with pytest.raises(OptionError, match="only of numbers"):
        OrtValue.ortvalue_from_numpy(np.array(["text"]))
    with pytest.raises(OptionError, match="element type 8"):
        OrtValue.ortvalue_from_shape_and_type([1], 8)
    with pytest.raises(OptionError, match="size of bfloat16"):
        OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(2, np.float32), 16)
    value = OrtValue(np.zeros(3, np.float32))
    for wrong in (np.zeros(4, np.float32), np.zeros(3)):
        with pytest.raises(FeedError, match="cannot become"):
            value.update_inplace(wrong)
    value = OrtValue(np.broadcast_to(np.float32(0), (3,)))
    with pytest.raises(FeedError, match="read-only"):
        value.update_inplace(np.zeros(3, np.float32))


def test_memory_by_address_is_checked() -> None:
    session = InferenceSession(talkative(3), num_threads=1)
    binding = session.io_binding()
    for arguments, message in (
        (("cuda", 0, np.float32, [3, 16], 8), "no device 'cuda'"),
        (("cpu", 0, np.float32, None, 8), "all three"),
        (("cpu", 0, np.float32, [3, 16], 0), "no address"),
        (("cpu", 0, "no type", [3, 16], 8), "no element type"),
    ):
        with pytest.raises(OptionError, match=message):
            binding.bind_input("x", *arguments)
    with pytest.raises(FeedError, match="has to be bound to an array"):
        binding.bind_input("x")


def test_arrays_that_outputs_are_bound_to_come_back() -> None:
    session = InferenceSession(talkative(3), num_threads=1)
    relu, product = (each.name for each in session.get_outputs())
    binding, memory = session.io_binding(), np.empty((3, 8), np.float32)
    binding.bind_ortvalue_input("x", OrtValue(sample()))
    value = OrtValue(np.empty((3, 8), np.float32))
    binding.bind_output(relu, memory)
    binding.bind_ortvalue_output(product, value)
    binding.run()
    binding.synchronize_outputs()
    first, second = binding.get_outputs()
    assert first is memory and second is value
    np.testing.assert_array_equal(memory, np.maximum(value.numpy(), 0))
    binding.bind_output(relu)
    binding.run()
    assert isinstance(binding.get_outputs()[0], OrtValue)
