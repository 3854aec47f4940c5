"""Arrays that tensors can take the memory of."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from microkernels.base.arrays import ALIGNMENT, aligned_empty


@pytest.mark.parametrize("dtype", [np.int8, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (1 << 20,)])
def test_they_are_aligned(shape: tuple[int, ...], dtype: type) -> None:
    array = aligned_empty(shape, np.dtype(dtype))
    assert array.shape == shape and array.dtype == dtype
    assert array.ctypes.data % ALIGNMENT == 0 or not array.size
    assert array.flags.writeable and array.flags.c_contiguous
