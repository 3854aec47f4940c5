"""Arrays whose memory tensors can share."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from microkernels.base.arrays import ALIGNMENT, aligned_empty, transposed


@pytest.mark.parametrize("dtype", [np.int8, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (1 << 20,)])
def test_they_are_aligned(shape: tuple[int, ...], dtype: type) -> None:
    array = aligned_empty(shape, np.dtype(dtype))
    assert array.shape == shape and array.dtype == dtype
    assert array.ctypes.data % ALIGNMENT == 0 or not array.size
    assert array.flags.writeable and array.flags.c_contiguous


@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((33, 40), (1, 0)),
        ((40, 7, 3, 3), (2, 3, 1, 0)),
        ((100, 2), (1, 0)),
        ((2, 100), (1, 0)),
        ((5, 6, 100), (1, 0, 2)),
        ((0, 100), (1, 0)),
        ((), ()),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "float32", "int8", "bool"])
def test_axes_in_another_order(shape: tuple[int, ...], order: tuple[int, ...], dtype: str) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    found = transposed(array, order)
    assert np.array_equal(found, array.transpose(order)) and found.dtype == array.dtype
    assert found.flags.c_contiguous
    assert not found.size or found.ctypes.data % ALIGNMENT == 0
    assert not np.shares_memory(found, array)
