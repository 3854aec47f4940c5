"""Reads backwards through a reshape, a tile or a repetition; TVM's own index arithmetic
reads the wrong elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tvm import relax

import tvm_hybrid
from tests.relay_passes.graphs import module

op = relax.op
X = np.arange(30, dtype=np.float32).reshape(6, 5)
Meaning = Callable[[Any], Any]

CASES: dict[str, tuple[Meaning, Meaning]] = {
    "tile": (lambda x: op.flip(op.tile(x, (1, 2)), 1), lambda x: np.tile(x, (1, 2))[:, ::-1]),
    "repeat": (lambda x: op.flip(op.repeat(x, 2, 0), 0), lambda x: np.repeat(x, 2, 0)[::-1]),
    "reshape": (
        lambda x: op.flip(op.reshape(op.negative(x), (30,)), 0),
        lambda x: -x.reshape(30)[::-1],
    ),
    "reshape to rows": (
        lambda x: op.flip(op.reshape(op.negative(x), (15, 2)), 0),
        lambda x: -x.reshape(15, 2)[::-1],
    ),
    "steps": (
        lambda x: op.strided_slice(op.reshape(op.negative(x), (5, 6)), [1], [5], [-7], [-2]),
        lambda x: -x.reshape(5, 6)[:, ::-2],
    ),
    "tile and reshape": (
        lambda x: op.flip(op.reshape(op.tile(op.negative(x), (2, 2)), (15, 8)), 1),
        lambda x: -np.tile(x, (2, 2)).reshape(15, 8)[:, ::-1],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_backwards(name: str) -> None:
    ours, wanted = CASES[name]
    executable = tvm_hybrid.compile(module(ours, (X.shape, "float32")), num_threads=1, records=[])
    result: NDArray[Any] = executable.run(X)[0].numpy()
    np.testing.assert_array_equal(result, wanted(X))
