"""Where elements lie after reshapes, permutations, slices and repeats, compared with numpy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_passes.ir.strided_view import StridedView, common_digits


def places(view: StridedView) -> np.ndarray:
    """The place of every element in the tensor that is read."""
    index = np.full(view.shape, view.offset)
    for axis, dim in enumerate(view.dims):
        digits = np.zeros((1,), int)
        for extent, stride in dim:
            digits = (digits[:, None] + np.arange(extent) * stride).reshape(-1)
        index = index + digits.reshape([-1 if a == axis else 1 for a in range(len(view.dims))])
    return index


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_what_is_a_view_has_numpy_s_elements(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
    array = np.arange(math.prod(shape)).reshape(shape)
    view: StridedView | None = StridedView.contiguous(shape)
    for _ in range(4):
        assert view is not None
        kind = data.draw(st.sampled_from(["permute", "reshape", "slice", "repeat", "broadcast"]))
        axis = data.draw(st.integers(0, array.ndim - 1))
        if kind == "permute":
            axes = data.draw(st.permutations(range(array.ndim)))
            array, view = array.transpose(axes), view.permuted(axes)
        elif kind == "reshape":
            cut = data.draw(st.sampled_from([d for d in range(1, 7) if array.size % d == 0]))
            array = array.reshape(cut, -1)
            view = view.reshaped(array.shape)
        elif kind == "slice":
            begin = data.draw(st.integers(0, array.shape[axis] - 1))
            extent = data.draw(st.integers(1, array.shape[axis] - begin))
            array = np.take(array, range(begin, begin + extent), axis)
            view = view.sliced(axis, begin, extent)
        elif kind == "repeat":
            array, view = np.repeat(array, 2, axis), view.repeated(axis, 2)
        else:
            wider = (2, *(3 if extent == 1 else extent for extent in array.shape))
            array, view = np.broadcast_to(array, wider), view.broadcast(wider)
        if view is None:
            return
        assert view.shape == array.shape
        np.testing.assert_array_equal(places(view), array)
        if array.size > 500:
            return


def test_an_index_without_digits_is_no_view() -> None:
    transposed = StridedView.contiguous((4, 6)).permuted((1, 0))
    assert transposed.reshaped((8, 3)) is None and transposed.reshaped((3, 2, 4)) is not None
    assert transposed.reshaped((5, 5)) is None
    flat = transposed.reshaped((24,))
    assert flat is not None and flat.sliced(0, 1, 4) is None and flat.sliced(0, 4, 8) is not None


@pytest.mark.parametrize("axes", list(itertools.permutations(range(3))))
def test_the_inverse_reads_what_was_read(axes: tuple[int, ...]) -> None:
    array = np.arange(24).reshape(2, 3, 4)
    view = StridedView.contiguous((2, 3, 4)).permuted(axes)
    stored = array.transpose(axes).reshape(-1)
    np.testing.assert_array_equal(stored[places(view.inverse())], np.arange(24))


def test_common_digits_of_grouped_heads() -> None:
    q = StridedView((((2, 100), (8, 5)),))
    k = StridedView((((2, 40), (2, 20), (4, 0)),))
    assert common_digits([q, k]) == ([2, 2, 4], [[100, 20, 5], [40, 20, 0]])
    assert common_digits([q, q]) == ([2, 8], [[100, 5], [100, 5]])
    assert common_digits([StridedView(((),))] * 2) == ([1], [[0], [0]])


def test_digits_are_joined_where_all_views_allow_it() -> None:
    whole, halves = StridedView((((12, 1),),)), StridedView((((3, 4), (4, 1)),))
    assert common_digits([whole, halves]) == ([12], [[1], [1]])


def test_digits_that_cut_each_other_have_no_common_way() -> None:
    assert (
        common_digits([StridedView((((2, 9), (3, 1)),)), StridedView((((3, 9), (2, 1)),))]) is None
    )
