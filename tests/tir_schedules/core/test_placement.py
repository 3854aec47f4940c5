"""Where parts of concatenations lie, compared with numpy's own views."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import tirx
from tvm.ir import assert_structural_equal

from tir_schedules.core.placement import Placement
from tir_schedules.core.size import SymbolicSize


def positions(placement: Placement) -> np.ndarray:
    """The position of every element, in order."""
    found = np.array([placement.offset])
    for extent, stride in zip(placement.extents, placement.strides, strict=True):
        found = (found[:, None] + np.arange(extent) * stride).reshape(-1)
    return found


@st.composite
def concatenations(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int, int]:
    """A shape, an axis, and the first position and length of a part along it."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    axis = draw(st.integers(0, len(shape) - 1))
    first = draw(st.integers(0, shape[axis] - 1))
    return shape, axis, first, draw(st.integers(1, shape[axis] - first))


@settings(max_examples=200, deadline=None)
@given(concatenations())
def test_a_part_lies_where_numpy_finds_it(case: tuple[tuple[int, ...], int, int, int]) -> None:
    shape, axis, first, count = case
    joint = np.arange(np.prod(shape)).reshape(shape)
    view = joint[(slice(None),) * axis + (slice(first, first + count),)]
    row, unit = int(np.prod(shape[axis:])), int(np.prod(shape[axis + 1 :]))
    part = Placement.whole(joint.size).part(row, first * unit, count * unit)
    assert part is not None and part.size == view.size
    np.testing.assert_array_equal(positions(part), view.reshape(-1))
    strides = part.strides_of(view.shape)
    assert strides is not None
    found = np.lib.stride_tricks.as_strided(
        joint.reshape(-1)[part.offset :], view.shape, [8 * stride for stride in strides]
    )
    np.testing.assert_array_equal(found, view)


def test_parts_of_parts() -> None:
    """Phases of a transposed convolution: [N, P, Q, C] interleaved along both axes."""
    batch, p, q, c = 2, 3, 4, 5
    joint = np.arange(batch * p * 2 * q * 3 * c).reshape(batch, p, 2, q, 3, c)
    lines = Placement.whole(joint.size).part(2 * q * 3 * c, 1 * q * 3 * c, q * 3 * c)
    assert lines is not None
    phase = lines.part(3 * c, 2 * c, c)
    assert phase is not None
    np.testing.assert_array_equal(positions(phase), joint[:, :, 1, :, 2].reshape(-1))
    assert phase.strides_of((batch, p, q, c)) == (p * 2 * q * 3 * c, 2 * q * 3 * c, 3 * c, 1)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((5, 6, 4), (60, 10, 1)),
        ((30, 4), (10, 1)),
        ((30, 2, 2), (10, 2, 1)),
        ((1, 30, 1, 4), (1, 10, 10, 1)),  # an axis of extent 1 may have any stride
        ((15, 8), None),  # rows of 8 would not be contiguous
        ((120,), None),
        ((5, 6), None),
    ],
    ids=str,
)
def test_other_shapes(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> None:
    part = Placement.whole(300).part(10, 3, 4)
    assert part is not None and part.offset == 3
    assert part.strides_of(shape) == strides


def test_a_row_in_two_pieces_has_no_parts() -> None:
    part = Placement.whole(300).part(10, 3, 4)
    assert part is not None
    assert part.part(8, 0, 4) is None
    assert part.part(4, 1, 2) == Placement((30, 2), (10, 1), 4)


def test_rows_of_any_number() -> None:
    """A part of the columns of [n, h, 6, 5], as a tensor, as rows, and shapes that do not fit."""
    n, h = SymbolicSize.of("n"), SymbolicSize.of("h")
    part = Placement.whole(n * h * 6 * 5).part(5, 2, 3)
    assert part == Placement((n * h * 6, 3), (5, 1), 2)
    y = tirx.Var("y", "int64")
    strides = part.strides_of((n, y, 6, 3))
    assert strides is not None and strides[1:] == (30, 5, 1)
    assert_structural_equal(strides[0], 30 * y)
    assert part.strides_of((y, 3)) == (5, 1)
    assert part.strides_of((y, 2)) is None  # not whole runs
    assert part.strides_of((6, 3)) is None  # a static number of rows
    assert part.part(3, 1, 2) == Placement((n * h * 6, 2), (5, 1), 3)
    assert Placement.whole(n * 30).part(5, 2, h) is None
