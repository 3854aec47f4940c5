"""OneHot of dynamically many indices, with a static or dynamic number of classes: one program."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tests.onnx_builder import OnnxBuilder
from tvm_hybrid import InferenceSession
from tvm_hybrid.bench.peers.onnx_runtime import literal_session
from tvm_hybrid.errors import FeedError
from tvm_hybrid.frontend import import_onnx

from .models import one_program

DEPTH = 4
DEPTHS = ["constant", "size", "data"]
Feeds = dict[str, NDArray[Any]]


def chosen(depth: str, *axes: int, index: str = "int64", dtype: str = "float32") -> onnx.ModelProto:
    """OneHot of i: [n, 3, m] along each axis.

    The class count is a constant, another tensor's size, or computed from an input that is too
    large for a program per value.
    """
    build = OnnxBuilder()
    indices = build.input("i", ["n", 3, "m"], index)
    count = {
        "constant": lambda: build.constant(np.array(DEPTH), np.int64),
        "size": lambda: build.node("Shape", build.input("classes", ["depth"])),
        "data": lambda: build.node("ReduceMax", build.input("data", [100], np.int64), keepdims=0),
    }[depth]()
    values = build.input("values", [2], dtype)
    for axis in axes:
        build.output(build.node("OneHot", indices, count, values, axis=axis), None, dtype)
    return build.model()


def feeds_of(model: onnx.ModelProto, n: int, m: int, depth: int = DEPTH) -> Feeds:
    """Indices that include negative ones and ones outside."""
    every: Feeds = {
        "i": np.random.default_rng(n).integers(-depth - 1, depth + 2, (n, 3, m)),
        "classes": np.zeros(depth, np.float32),
        "data": np.arange(100) % (depth + 1),
        "values": np.array([2, 7], np.float32),
    }
    return {item.name: every[item.name] for item in model.graph.input}


@pytest.mark.sampled
@pytest.mark.parametrize("depth", DEPTHS)
def test_any_axis(depth: str) -> None:
    model = chosen(depth, -1, 0, -2)
    session, peer = one_program(model), literal_session(model)
    for n, m, classes in ((1, 1, 1), (2, 5, 4), (4, 3, 7), (0, 2, 4), (3, 0, 2), (9, 17, 4)):
        if depth == "constant" and classes != DEPTH:
            continue
        feeds = feeds_of(model, n, m, classes)
        for got, wanted in zip(session.run(None, feeds), peer.run(None, feeds), strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_results_are_those_of_static_sizes() -> None:
    model = chosen("size", 1)
    feeds = feeds_of(model, 2, 5)
    shapes = {name: array.shape for name, array in feeds.items()}
    known = InferenceSession(model, shapes=shapes, num_threads=1)
    (got,), (wanted,) = one_program(model).run(None, feeds), known.run(None, feeds)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.sampled
@pytest.mark.parametrize("depth", ["size", "data"])
def test_no_classes(depth: str) -> None:
    """ONNX Runtime refuses zero classes."""
    model = chosen(depth, 1)
    (found,) = one_program(model).run(None, feeds_of(model, 2, 5, 0))
    assert found.shape == (2, 0, 3, 5)


def test_fewer_classes_than_none_are_refused() -> None:
    model = chosen("data", -1)
    session, feeds = one_program(model), feeds_of(model, 2, 5)
    feeds["data"] = np.full(100, -1)
    with pytest.raises(FeedError):
        session.run(None, feeds)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("index", "dtype"), [("uint64", "bool"), ("float32", "float16"), ("int8", "int64")]
)
def test_types(index: str, dtype: str) -> None:
    """Unsigned indices do not count from the end; floats are converted to int64."""
    model, unsigned = chosen("size", -1, index=index, dtype=dtype), index[0] == "u"
    numbers = [0, 1, 3, 4, 2**64 - 1, 2] if unsigned else [0, 1, 3, 4, -4, -5]
    indices = np.array(numbers, index).reshape(1, 3, 2)
    values = np.array([1, 0] if dtype == "bool" else [7, 2], dtype)
    feeds = {"i": indices, "classes": np.zeros(DEPTH, np.float32), "values": values}
    wanted = [None if i in (4, -5, 2**64 - 1) else i % DEPTH for i in numbers]
    rows = np.array([[k == each for k in range(DEPTH)] for each in wanted]).reshape(1, 3, 2, DEPTH)
    (found,) = one_program(model).run(None, feeds)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.where(rows, values[1], values[0]))


def test_the_number_of_classes_has_a_name_where_it_follows_from_sizes() -> None:
    shapes = {"constant": (4, "n", 3, "m"), "size": ("depth", "n", 3, "m"),
              "data": (None, "n", 3, "m")}  # fmt: skip
    for depth, shape in shapes.items():
        assert import_onnx(chosen(depth, 0), keep_dynamic=True).outputs[0].shape == shape


def test_rows_of_a_table_are_looked_up() -> None:
    """Exporters write embeddings as a product with one-hot rows."""
    build = OnnxBuilder()
    indices, values = build.input("i", ["n", 3], np.int64), build.constant([0, 1], np.float32)
    rows = build.node("OneHot", indices, build.constant(np.array(5), np.int64), values)
    table = np.random.default_rng(0).random((5, 8), np.float32)
    build.output(build.node("MatMul", rows, build.constant(table)), None)
    session = one_program(build.model())
    for n in (0, 1, 7):
        numbers = np.random.default_rng(n).integers(0, 5, (n, 3))
        np.testing.assert_array_equal(session.run(None, {"i": numbers})[0], table[numbers])
