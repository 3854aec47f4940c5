"""TopK of dynamic sizes and with a computed k."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.frontend.onnx.chosen_rows import (
    ALL,
    NONE,
    ONE,
    SOME,
    X,
    chosen_rows,
    count,
    feeds_of,
)
from tests.tvm_hybrid.frontend.onnx.compare import same, same_as_onnx_runtime, session_of
from tvm_hybrid.errors import FeedError
from tvm_hybrid.frontend.onnx.onnx_import import import_onnx


def top(k: Callable[[OnnxBuilder, str], str], source: str = "", **attributes: int) -> OnnxBuilder:
    """TopK of the selected rows or of an input, with a k computed from the rows."""
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_signs_of_zeros_and_nan_do_not_count(dtype: str) -> None:
    x = np.array([[-0.0, 0.0, -np.nan, np.nan, 1, -0.0, 0.0]], dtype)
    assert np.signbit(x[0, :4]).tolist() == [True, False, True, False]
    for largest, order in ((0, [0, 1, 5, 6, 4, 2, 3]), (1, [2, 3, 4, 0, 1, 5, 6])):
        model = plain_top(dtype, x.shape, 7, 1, largest, False)
        same(model, [({"x": x}, [x[:, order], np.array([order])])])


def test_digits_of_one_other() -> None:
    """One number among many equal numbers, from which it differs in a single digit."""
    rows = np.full((3, 1, 90), 5, np.int32)
    for row, place in zip(rows, (0, 40, 89), strict=True):
        row[0, place] = 5 + (7 << 16)
    for largest in (0, 1):
        model = plain_top("int32", (1, 90), 90, 1, largest, True)
        same(model, [({"x": x}, best(x, 90, 1, largest)) for x in rows])


def test_more_than_there_are() -> None:
    session = session_of(top(lambda g, _: g.constant([3]), axis=0))
    assert session.run(None, feeds_of(SOME))[0].shape == (3, 4)
    with pytest.raises(FeedError, match="more elements than there are"):
        session.run(None, feeds_of(ONE))
    session = session_of(top(lambda g, _: g.node("Neg", count(g)), "x", axis=0))
    with pytest.raises(FeedError, match="below 0"):
        session.run(None, feeds_of(ONE))


DTYPES = ("float16", "float32", "float64", "int8", "uint16", "int32", "uint32", "int64", "uint64")


def with_ties(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of both signs and many magnitudes, with many duplicates."""
    random = np.random.default_rng(shape[-1])
    kind = np.dtype(dtype)
    if kind.kind == "f":
        x = random.integers(-99, 99, shape) * 2.0 ** random.integers(-9, 9, shape)
        x[random.random(shape) < 0.1] = random.choice([np.inf, -np.inf, 0.0, -0.0])
        return x.astype(dtype)
    limits = np.iinfo(kind)
    x = random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    x[random.random(shape) < 0.3] = random.integers(0, 5)
    return x


def best(x: np.ndarray, k: int, axis: int, largest: int) -> list[np.ndarray]:
    """The result by a stable sort of the indices."""
    order = np.unique(x, return_inverse=True)[1].reshape(x.shape)
    places = np.argsort(-order if largest else order, axis, kind="stable")
    places = np.take(places, range(k), axis)
    return [np.take_along_axis(x, places, axis), places]


def plain_top(
    dtype: str, shape: tuple[int, ...], k: int, axis: int, largest: int, is_dynamic: bool
) -> OnnxBuilder:
    """A model of one TopK."""
    model = OnnxBuilder()
    sizes = [f"n{place}" for place in range(len(shape))] if is_dynamic else list(shape)
    x = model.input("x", sizes, np.dtype(dtype))
    values, places = model.nodes("TopK", 2, x, model.constant([k]), axis=axis, largest=largest)
    model.output(values, None, np.dtype(dtype))
    model.output(places, None, np.int64)
    return model


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])
def test_few_and_many(dtype: str, is_dynamic: bool) -> None:
    """By heap and by radix sort: some more columns than a block has, along all axes."""
    for shape, k, axis in [((2, 500), 20, 1), ((2, 90), 17, 1), ((70, 19), 3, 0), ((1, 1), 1, 1)]:
        for largest in (0, 1):
            x = with_ties(dtype, shape)
            model = plain_top(dtype, shape, k, axis, largest, is_dynamic)
            session = same(model, [({"x": x}, best(x, k, axis, largest))])
            assert {each.function for each in session.explain()} == {"top_k"}


@pytest.mark.parametrize(("count", "k"), [(500, 20), (90, 17), (96, 16), (90, 90)])
def test_which_sort(count: int, k: int) -> None:
    """Static sizes have the code of one sort only; dynamic sizes have both if there may be many."""
    few = k <= 16 or k * 24 <= count
    for is_dynamic in (False, True):
        both = is_dynamic and k > 16
        model = plain_top("float32", (2, count), k, 1, 1, is_dynamic)
        text = import_onnx(model.model(), keep_dynamic=True).mod.script()
        assert ("vector.reduce.smin" in text) == (few or both)
        assert ("& 255" in text) == (not few or both)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_nothing(shape: tuple[int, int]) -> None:
    k = min(1, shape[1])
    x = np.zeros(shape, np.float32)
    wanted = [np.zeros((shape[0], k), np.float32), np.zeros((shape[0], k), np.int64)]
    same(plain_top("float32", shape, k, 1, 1, True), [({"x": x}, wanted)])


def limited_rows(kind: str, extent: int, dtype: str) -> np.ndarray:
    rng = np.random.default_rng(extent)
    rows = rng.standard_normal((2, extent)) * 1000
    if kind == "rising":
        rows = np.sort(rows)
    if kind == "falling":
        rows = -np.sort(rows)
    if kind == "ties":
        rows = rng.integers(0, extent // 8, rows.shape)
    if kind == "all alike":
        rows[:] = 3
    if kind == "least":
        rows[:] = np.iinfo("int32").min
    return rows.astype(dtype)


KINDS = ("anywhere", "rising", "falling", "ties", "all alike", "least")


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(
    ("extent", "k"), [(340, 17), (4000, 100), (4097, 100), (5000, 99), (4000, 101)]
)
def test_some_of_many(extent: int, k: int, largest: int) -> None:
    """Blocks of one unit and of two, with a partial last block.

    With and without the limit, for static and dynamic sizes.
    """
    for is_dynamic in (False, True):
        model = OnnxBuilder()
        shape = ("n", "m") if is_dynamic else (2, extent)
        x = model.input("x", shape)
        values, places = model.nodes("TopK", 2, x, model.constant([k]), largest=largest)
        model.output(values, (shape[0], k))
        model.output(places, (shape[0], k), np.int64)
        session = session_of(model)
        for kind in KINDS:
            rows = limited_rows(kind, extent, "float32")
            order = np.argsort(-rows if largest else rows, axis=1, kind="stable")[:, :k]
            found, where = session.run(None, {"x": rows})
            np.testing.assert_array_equal(where, order)
            np.testing.assert_array_equal(found, np.take_along_axis(rows, order, 1))
