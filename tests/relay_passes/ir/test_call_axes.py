"""The axes that a call names, counted from the front."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from relay_passes.ir.axes import permutation, reduced_axes, reshaped_axis, view_of

op = relax.op
ARRAY = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
X = relax.const(ARRAY)


def called(call: relax.Call) -> relax.Call:
    return relax.BlockBuilder().normalize(call)


@pytest.mark.parametrize(
    ("axes", "wanted"), [(None, (2, 1, 0)), ([0, 2, 1], (0, 2, 1)), ([-1, 0, 1], (2, 0, 1))]
)
def test_permutations(axes: list[int] | None, wanted: tuple[int, ...]) -> None:
    call = called(op.permute_dims(X, axes))
    assert permutation(call) == wanted
    np.testing.assert_array_equal(view_of(ARRAY, call), ARRAY.transpose(wanted))


@pytest.mark.parametrize(
    ("call", "wanted"),
    [(op.sum(X), [0, 1, 2]), (op.mean(X, [-1, 0]), [0, 2]), (op.argmax(X, -2), [1])],
)
def test_reductions(call: relax.Call, wanted: list[int]) -> None:
    assert reduced_axes(called(call)) == wanted


@pytest.mark.parametrize(
    ("after", "axis", "wanted"), [((6, 4), 2, 1), ((6, 4), 0, None), ((2, 1, 12), 0, 0)]
)
def test_axes_of_reshapes(after: tuple[int, ...], axis: int, wanted: int | None) -> None:
    assert reshaped_axis(ARRAY.shape, after, axis) == wanted


def test_views() -> None:
    reshaped = view_of(ARRAY, called(op.reshape(X, (4, 6))))
    assert reshaped is not None and reshaped.shape == (4, 6)
    assert view_of(ARRAY, called(op.exp(X))) is None
