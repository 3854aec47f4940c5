"""A slice with bounds from data equals NumPy's or is an error; it never ends the process."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tvm import relax

import tvm_hybrid
from microkernels.base.errors import FeedError
from tests.relay_passes.graphs import module

X = np.arange(35, dtype=np.float32).reshape(5, 7)
FAR = 2**63 - 1


@pytest.fixture(scope="module", name="program")
def compiled_slice() -> Any:
    """x, begins, ends, steps -> the slice."""
    bounds = ((2,), "int64")
    mod = module(relax.op.dynamic_strided_slice, (X.shape, "float32"), *[bounds] * 3)
    return tvm_hybrid.compile(mod, num_threads=1, records=[])


def run(program: Any, *bounds: tuple[int, int]) -> NDArray[Any]:
    (found,) = program.run(X, *(np.array(each, np.int64) for each in bounds))
    return found.numpy()


def test_it_has_the_elements_of_numpy(program: Any) -> None:
    """Bounds inside and outside, in either order, alike for both axes."""
    bounds = (0, 2, 5, 100, FAR, -1, -3, -100, -FAR - 1)
    for begin, end, step in itertools.product(bounds, bounds, (1, 2, 7, FAR, -1, -3, -FAR - 1)):
        found = run(program, (begin, begin), (end, end), (step, step))
        np.testing.assert_array_equal(found, X[begin:end:step, begin:end:step])


@pytest.mark.parametrize("steps", [(0, 1), (1, 0), (0, 0)])
def test_a_step_of_0_is_an_error(program: Any, steps: tuple[int, int]) -> None:
    with pytest.raises(FeedError, match="a step of 0"):
        run(program, (0, 0), (5, 7), steps)
