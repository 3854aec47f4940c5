"""Generic kernels on a few of many threads: right results, and no more chunks than threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm.relax import op

from tests.tir_schedules.counted_shares import stored_shares
from tests.tir_schedules.run_generic import random_array, run_guarded
from tir_schedules.assembled.side_by_side import tasks_of

Case = tuple[Callable[..., Any], tuple[int, ...], Callable[[np.ndarray], np.ndarray]]

CASES: dict[str, Case] = {
    "elementwise": (op.nn.relu, (300, 333), lambda x: np.maximum(x, 0)),
    "one row": (op.nn.relu, (200_003,), lambda x: np.maximum(x, 0)),
    "transpose": (lambda x: op.permute_dims(x, (1, 0)), (700, 500), np.transpose),
    "rows": (lambda x: op.max(x, 1), (700, 500), lambda x: x.max(1)),
    "columns": (lambda x: op.max(x, 0), (700, 512), lambda x: x.max(0)),
    "pool": (
        lambda x: op.nn.max_pool2d(x, (2, 2), (2, 2), layout="NHWC"),
        (1, 60, 60, 64),
        lambda x: x.reshape(1, 30, 2, 30, 2, 64).max((2, 4)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_few_threads_share_what_is_small(name: str) -> None:
    build, shape, wanted = CASES[name]
    x = random_array(shape, "float32")
    result, _, func = run_guarded(build, [x], threads=112)
    np.testing.assert_array_equal(result, wanted(x))
    assert 1 < tasks_of(func) <= 56
    shares = stored_shares(func, 112)
    # The last tiles of a transpose overlap the previous ones.
    assert (shares.times >= 1).all() and shares.threads == tasks_of(func)
    assert shares.unevenness(shares.threads) < 1.3
