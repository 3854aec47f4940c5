"""TopK of open sizes, and with a k that is computed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.frontend.data_sized.chosen_rows import (
    ALL,
    NONE,
    ONE,
    SOME,
    X,
    chosen_rows,
    count,
    feeds_of,
)
from tests.tvm_hybrid.frontend.data_sized.compare import (
    same,
    same_as_onnx_runtime,
    session_of,
)
from tvm_hybrid.errors import FeedError


def top(k: Callable[[OnnxBuilder, str], str], source: str = "", **attributes: int) -> OnnxBuilder:
    """TopK of the chosen rows, or of an input, with a k that is made from the rows."""
    model = OnnxBuilder()
    rows, _ = chosen_rows(model)
    values, places = model.nodes("TopK", 2, source or rows, k(model, rows), **attributes)
    model.output(values, ("n", "m"))
    model.output(places, ("n", "m"), np.int64)
    return model


def at_most_two(model: OnnxBuilder, rows: str) -> str:
    """min(2, rows), as exporters write it."""
    extent = model.node("Slice", model.node("Shape", rows), *map(model.constant, ([0], [1])))
    return model.node("ReduceMin", model.node("Concat", model.constant([2]), extent, axis=0))


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("largest", [0, 1])
def test_k_from_a_size(axis: int, largest: int) -> None:
    model = top(at_most_two, axis=axis, largest=largest)
    conditions = (SOME, ALL, ONE, NONE) if axis == 0 else (SOME, ALL)
    same_as_onnx_runtime(model, map(feeds_of, conditions))


def test_k_from_data() -> None:
    model = top(lambda g, _: count(g), "x", axis=0)
    same_as_onnx_runtime(model, map(feeds_of, (SOME, NONE, ALL, ONE)))


def test_nan_is_largest() -> None:
    x = X.copy()
    x[2, 1] = np.nan
    feeds = {**feeds_of(ALL), "x": x}
    order = np.argsort(-x, axis=0, kind="stable")
    order[:, 1] = [2, *(place for place in order[:, 1] if place != 2)]
    model = top(lambda g, _: count(g), "x", axis=0)
    same(model, [(feeds, [np.take_along_axis(x, order, axis=0), order])])


def test_more_than_there_are() -> None:
    session = session_of(top(lambda g, _: g.constant([3]), axis=0))
    assert session.run(None, feeds_of(SOME))[0].shape == (3, 4)
    with pytest.raises(FeedError, match="more elements than there are"):
        session.run(None, feeds_of(ONE))
    session = session_of(top(lambda g, _: g.node("Neg", count(g)), "x", axis=0))
    with pytest.raises(FeedError, match="below 0"):
        session.run(None, feeds_of(ONE))
