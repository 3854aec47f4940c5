"""Consumers of a value whose size depends on data; each program runs for several sizes and 0."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.frontend.onnx.chosen_rows import (
    ALL,
    NONE,
    ONE,
    SOME,
    Build,
    chosen_rows,
    compare,
    feeds_of,
)
from tests.tvm_hybrid.frontend.onnx.compare import session_of
from tvm_hybrid.bench.peers.onnx_runtime import literal_session
from tvm_hybrid.errors import FeedError, UnsupportedOperatorError
from tvm_hybrid.frontend.onnx.onnx_import import import_onnx

W = np.random.default_rng(1).integers(-3, 4, (4, 8)).astype(np.float32)


def unary(op: str, **attributes: object) -> Build:
    return lambda g, one, _: g.node(op, one, **attributes)


def binary(op: str) -> Build:
    """Applies a binary operator to the value and its absolute value, then to a constant row."""
    return lambda g, one, _: g.node(op, g.node(op, one, g.node("Abs", one)), g.constant(W[:, 0]))


def reduced(op: str, axis: int) -> Build:
    return lambda g, one, _: g.node(op, one, axes=[axis], keepdims=0)


def test_elementwise() -> None:
    compare(
        [
            *((unary(op), ("n", 4), np.float32) for op in ("Abs", "Neg", "Relu", "Sign", "Ceil")),
            (unary("Cast", to=7), ("n", 4), np.int64),
            *((binary(op), ("n", 4), np.float32) for op in ("Add", "Mul", "Sub", "Max", "Min")),
            (lambda g, one, _: g.node("Less", one, g.node("Neg", one)), ("n", 4), np.bool_),
        ]
    )


def test_reductions() -> None:
    compare(
        [
            (reduced(op, axis), (4,) if axis == 0 else ("n",), np.float32)
            for op in ("ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare", "ReduceL1")
            for axis in (0, 1)
        ]
        + [(unary("ArgMax", axis=1, keepdims=0), ("n",), np.int64)]
    )


def test_products_and_concat() -> None:
    compare(
        [
            (lambda g, one, _: g.node("MatMul", one, g.constant(W)), ("n", 8), np.float32),
            (lambda g, one, _: g.node("Gemm", one, one, transA=1), (4, 4), np.float32),
            (
                lambda g, one, other: g.node("MatMul", one, g.node("Transpose", other)),
                ("n", "m"),
                np.float32,
            ),
            (lambda g, one, other: g.node("Concat", one, other, "x", axis=0), ("k", 4), np.float32),
            (lambda g, one, _: g.node("Concat", one, one, axis=-1), ("n", 8), np.float32),
        ]
    )


def test_images() -> None:
    """Each selected row is a small image, or a region of one image."""
    pixels = np.random.default_rng(2).integers(-3, 4, (1, 2, 8, 8))

    def small(g: OnnxBuilder, one: str) -> str:
        return g.node("Reshape", one, g.constant([-1, 1, 2, 2]))

    def convolved(g: OnnxBuilder, one: str, _: str) -> str:
        weight = g.constant(W[:3].reshape(3, 1, 2, 4)[..., :3], np.float32)
        return g.node("Relu", g.node("Conv", small(g, one), weight, pads=[1, 1, 0, 1]))

    def pooled(g: OnnxBuilder, one: str, _: str) -> str:
        return g.node("MaxPool", small(g, one), kernel_shape=[2, 2], pads=[1, 0, 0, 0])

    def edged(g: OnnxBuilder, one: str, _: str) -> str:
        return g.node("Pad", one, g.constant([1, 0, 2, 0]), mode="edge")

    def regions(g: OnnxBuilder, one: str, _: str) -> str:
        """Corners at integers; each sample is the mean of two by two pixels."""
        zero = g.node("Mul", g.node("ArgMax", one, axis=1, keepdims=0), g.constant(np.array(0)))
        box = g.node("Add", g.node("Mul", one, g.constant(np.zeros(4), np.float32)),
                     g.constant([1, 1, 3, 5], np.float32))  # fmt: skip
        sizes = {"output_height": 2, "output_width": 1, "sampling_ratio": 1}
        return g.node("RoiAlign", g.constant(pixels, np.float32), box, zero, **sizes)

    compare(
        [
            (convolved, ("n", 3, 2, 2), np.float32),
            (pooled, ("n", 1, 2, 1), np.float32),
            (
                lambda g, one, _: g.node("GlobalAveragePool", small(g, one)),
                ("n", 1, 1, 1),
                np.float32,
            ),
            (regions, ("n", 2, 2, 1), np.float32),
            (lambda g, one, _: g.nodes("Split", 2, one, axis=1)[1], ("n", 2), np.float32),
            (edged, ("n", 4), np.float32),
        ],
        [SOME, ALL, ONE],
    )


def test_a_window_that_is_longer_than_the_data() -> None:
    model = OnnxBuilder()
    one, _ = chosen_rows(model)
    signal = model.node("Reshape", model.node("Transpose", one), model.constant([1, 4, -1]))
    weight = model.constant(np.ones((2, 4, 3)), np.float32)
    model.output(model.node("Conv", signal, weight), (1, 2, "n"))
    session = session_of(model)
    peer = literal_session(model.model())
    for condition in (SOME, ALL):
        (expected,) = peer.run(None, feeds_of(condition))
        (found,) = session.run(None, feeds_of(condition))
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(FeedError, match="below 0"):
        session.run(None, feeds_of(ONE))


def test_sizes_that_fit_only_when_the_program_runs() -> None:
    """Both conditions select equally many rows, or one selects a single row."""
    model = OnnxBuilder()
    one, other = chosen_rows(model)
    model.output(model.node("Add", one, other), ("n", 4))
    session = session_of(model)
    peer = literal_session(model.model())
    for first, second in ((SOME, SOME[::-1]), (SOME, ONE), (ONE, ALL), (NONE, ONE), (NONE, NONE)):
        feeds = feeds_of(first, second)
        (found,), (expected,) = session.run(None, feeds), peer.run(None, feeds)
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(FeedError, match="size"):
        session.run(None, feeds_of(SOME, ALL))


def test_an_operator_that_reads_sizes_is_refused() -> None:
    model = OnnxBuilder()
    one, _ = chosen_rows(model)
    grams = {"ngram_counts": [0], "ngram_indexes": [0, 1], "pool_int64s": [1, 2], "mode": "TF"}
    lengths = {"min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0}
    numbers = model.node("Cast", one, to=TensorProto.INT64)
    model.output(model.node("TfIdfVectorizer", numbers, **grams, **lengths), ("n", 2))
    with pytest.raises(UnsupportedOperatorError, match=r"'TfIdfVectorizer3'.*refuses this form"):
        session_of(model)


def test_factors_that_do_not_fit() -> None:
    """The rows of both are contracted, so their numbers must agree."""
    model = OnnxBuilder()
    one, other = chosen_rows(model)
    model.output(model.node("MatMul", model.node("Transpose", one), other), (4, 4))
    session = session_of(model)
    feeds = feeds_of(SOME)
    expected = literal_session(model.model()).run(None, feeds)
    np.testing.assert_array_equal(session.run(None, feeds)[0], expected[0])
    with pytest.raises(FeedError, match="sizes that do not fit"):
        session.run(None, feeds_of(SOME, ALL))


def test_parts_that_are_not_known_to_fit_are_refused() -> None:
    model = OnnxBuilder()
    model.output(model.node("Concat", *chosen_rows(model), axis=1), ("n", 8))
    with pytest.raises(UnsupportedOperatorError, match="not known to fit"):
        session_of(model)


def _layers(count: int) -> onnx.ModelProto:
    """Each layer adds to x the last rows of Concat(cache, x); a size says how many."""
    g = OnnxBuilder()
    x = g.input("x", ["t", 4])
    for number in range(count):
        cache = g.input(f"cache{number}", ["p", 4])
        rows = g.node("Slice", g.node("Shape", x), *map(g.constant, ([0], [1], [0])))
        start, end, axis = g.node("Neg", rows), g.constant([2**62]), g.constant([0])
        x = g.node("Add", x, g.node("Slice", g.node("Concat", cache, x, axis=0), start, end, axis))
    g.output(x, None)
    return g.model()


def test_sizes_do_not_grow_from_layer_to_layer() -> None:
    """TVM would write each layer's size in terms of the previous layer's size, twice."""
    short, long = (
        len(import_onnx(_layers(count), keep_dynamic=True).mod["main"].script(show_meta=False))
        for count in (2, 6)
    )
    assert long < 4 * short
