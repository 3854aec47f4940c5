"""Which constants share the memory of an array, and which ones copy it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from microkernels.base.arrays import ALIGNMENT, aligned_empty
from relay_passes.ir.constants import constant_of, tensor_over


def filled(dtype: type = np.float32) -> np.ndarray:
    array = aligned_empty((3, 5), np.dtype(dtype))
    array[...] = np.arange(15).reshape(3, 5)
    return array


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.uint8, np.int64])
def test_an_aligned_array_is_not_copied(dtype: type) -> None:
    array = filled(dtype)
    place, wanted = array.ctypes.data, array.copy()
    assert place % ALIGNMENT == 0
    tensor = constant_of(array).value
    del array
    assert tensor.data_ptr() == place
    assert str(tensor.dtype) == np.dtype(dtype).name
    np.testing.assert_array_equal(tensor.numpy(), wanted)


def test_an_array_without_dimensions_has_none_as_a_constant() -> None:
    found = constant_of(np.broadcast_to(np.asarray(2, np.float32), ()))
    assert [*found.ty.shape] == [] and found.value.numpy() == 2


def read_only() -> np.ndarray:
    array = filled()
    array.flags.writeable = False
    return array


def unaligned() -> np.ndarray:
    return aligned_empty((16,), np.dtype(np.float32))[1:]


@pytest.mark.parametrize(
    "array",
    [
        read_only(),
        unaligned(),
        filled().T,
        filled(ml_dtypes.bfloat16),
        filled().astype(">f4"),
        filled()[:0],
    ],
)
def test_other_arrays_are(array: np.ndarray) -> None:
    assert tensor_over(array) is None
    if array.dtype.isnative and array.size:
        tensor = constant_of(array).value
        assert tensor.data_ptr() != array.ctypes.data
