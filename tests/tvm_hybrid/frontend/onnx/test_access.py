"""Gather, GatherElements, GatherND and Slice with a size or a bound that depends on data."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.frontend.onnx.chosen_rows import (
    ALL,
    NONE,
    ONE,
    SOME,
    Build,
    Output,
    compare,
    count,
    feeds_of,
    model_of,
)
from tests.tvm_hybrid.frontend.onnx.compare import session_of
from tvm_hybrid.errors import FeedError

INDICES = [0, -1, 0]


def sliced(start: int, end: int, axis: int = 0, step: int = 1) -> Output:
    def build(g: OnnxBuilder, one: str, _: str) -> str:
        return g.node("Slice", one, *(g.constant([each]) for each in (start, end, axis, step)))

    return build, ("n", "m"), np.float32


def chosen(g: OnnxBuilder) -> str:
    """The indices that the first condition selects."""
    return g.node("Squeeze", g.node("NonZero", "first"), g.constant([0]))


def test_gather() -> None:
    compare(
        [
            (lambda g, one, _: g.node("Gather", one, g.constant(INDICES), axis=1), ("n", 3),
             np.float32),
            (lambda g, one, _: g.node("Gather", "x", chosen(g)), ("n", 4), np.float32),
            (lambda g, one, _: g.node("GatherND", "x", g.node("Transpose", g.node("NonZero", "x"))),
             ("n",), np.float32),
            (lambda g, one, _: g.node("GatherElements", one, g.node("ArgMax", one, axis=1), axis=1),
             ("n", 1), np.float32),
        ]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("build", "shape", "dtype"),
    [
        (lambda g, one, _: g.node("Gather", one, g.constant(INDICES)), (3, 4), np.float32),
        (lambda g, one, _: g.node("GatherND", one, g.constant([[0, 1], [0, 2]])), (2,), np.float32),
        (lambda g, one, _: g.node("ArgMax", one, axis=0), (1, 4), np.int64),
    ],
)
def test_a_choice_among_rows_that_may_be_none(
    build: Build, shape: tuple[int, ...], dtype: type
) -> None:
    output: Output = (build, shape, dtype)
    compare([output], [SOME, ALL, ONE])
    with pytest.raises(FeedError, match="more elements than there are"):
        session_of(model_of([output])).run(None, feeds_of(NONE))


def test_slice() -> None:
    largest, least = 2**63 - 1, -(2**63)
    compare(
        [
            sliced(1, largest),
            sliced(0, 2),
            sliced(-2, -1),
            sliced(-1, least, step=-2),
            sliced(4, 0, step=-1),
            sliced(1, 3, axis=-1),
            sliced(0, 10**9),
        ]
    )


def test_a_whole_slice_has_the_same_size() -> None:
    def build(g: OnnxBuilder, one: str, _: str) -> str:
        bounds = [g.constant([each]) for each in (0, 2**31 - 1, 0)]
        return g.node("Add", one, g.node("Slice", one, *bounds))

    compare([(build, ("n", 4), np.float32)])


@pytest.mark.parametrize("step", [1, -1])
def test_slice_with_bounds_from_data(step: int) -> None:
    def build(g: OnnxBuilder, one: str, other: str) -> str:
        bounds = [g.constant([0]), count(g)] if step > 0 else [count(g), g.constant([-9])]
        return g.node("Slice", "x", *bounds, g.constant([0]), g.constant([step]))

    compare([(build, ("n", 4), np.float32)])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize("places", [np.int32, np.int64])
def test_elements_of_known_sizes_are_one_kernel(dtype: type, places: type) -> None:
    model = OnnxBuilder()
    data, chosen = model.input("x", (5, 9), dtype), model.input("i", (4, 9), places)
    model.output(model.node("GatherElements", data, chosen, axis=0), (4, 9), dtype)
    session = tvm_hybrid.InferenceSession(model.model(), num_threads=1, records=[])
    assert [each.function for each in session.explain()] == ["gather_elements"]
    rng = np.random.default_rng(0)
    x, i = rng.integers(0, 2, (5, 9)).astype(dtype), rng.integers(-5, 5, (4, 9)).astype(places)
    (found,) = session.run(None, {"x": x, "i": i})
    np.testing.assert_array_equal(found, np.take_along_axis(x, i.astype(np.int64), 0))
