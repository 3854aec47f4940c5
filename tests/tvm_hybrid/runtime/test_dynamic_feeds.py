"""Dynamic sizes of feeds must fit each other, the model's relations and its limits."""

from __future__ import annotations

import pytest

from tvm_hybrid.errors import FeedError
from tvm_hybrid.runtime.feeds import check_sizes, dynamic_dimensions, sample_shapes
from tvm_hybrid.runtime.tensors import TensorInfo

IDS = TensorInfo("ids", ("batch", "new"), "int64")
MASK = TensorInfo("mask", ("batch", "past + new"), "int64")
PAST = TensorInfo("past", ("batch", 4, "past", 8), "float32")
INFOS = (IDS, MASK, PAST)
LIMITS = {"past + new": 16, "new": 8}


@pytest.mark.parametrize("past", [0, 5, 12])
def test_sizes_that_fit(past: int) -> None:
    check_sizes(INFOS, [(2, 4), (2, 4 + past), (2, 4, past, 8)], LIMITS)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (
            [(2, 4), (3, 5), (2, 4, 1, 8)],
            "'batch' is 2 in input 'ids', axis 0, but 3 in input 'mask'",
        ),
        (
            [(2, 4), (2, 6), (2, 4, 1, 8)],
            "input 'mask', axis 1 is 6; it has to be past . new.* is 5",
        ),
        ([(2, 4), (2, 17), (2, 4, 13, 8)], "'past . new' is 17; the model takes at most 16"),
        ([(2, 9), (2, 9), (2, 4, 0, 8)], "'new' is 9; the model takes at most 8"),
    ],
)
def test_sizes_that_do_not_fit_are_named(shapes: list[tuple[int, ...]], words: str) -> None:
    with pytest.raises(FeedError, match=words):
        check_sizes(INFOS, shapes, LIMITS)


def test_examples_keep_the_relations() -> None:
    assert sample_shapes(INFOS) == [(1, 1), (1, 2), (1, 4, 1, 8)]
    assert sample_shapes(INFOS, 3) == [(3, 3), (3, 6), (3, 4, 3, 8)]


def test_dynamic_dimensions_in_words() -> None:
    words = "dynamic dimensions: batch, new from 0 to 8, past, past + new at most 16"
    assert dynamic_dimensions(INFOS, LIMITS) == words
    assert dynamic_dimensions([TensorInfo("x", (1, 2), "int8")], {}) == ""
