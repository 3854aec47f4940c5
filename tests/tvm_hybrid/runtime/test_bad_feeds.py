"""Bad feeds and output names: each is refused by name, and the session goes on working."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tvm_hybrid
from tests.tvm_hybrid.small_models import several
from tvm_hybrid.errors import FeedError, OptionError

X = np.ones((2, 3), np.float32)
N = np.arange(4)


@pytest.fixture
def session() -> Iterator[tvm_hybrid.InferenceSession]:
    """A session that must still give right results after the test."""
    session = tvm_hybrid.InferenceSession(several())
    yield session
    np.testing.assert_array_equal(session.run(["output_1"], {"x": X, "n": N})[0], N * 2)


@pytest.mark.parametrize(
    ("feeds", "culprits"),
    [
        pytest.param({}, ["'x'", "'n'"], id="empty"),
        pytest.param({"x": X}, ["no value", "'n'"], id="missing"),
        pytest.param({"x": X, "n": N, "z": X}, ["no input 'z'", "'x'"], id="extra"),
        pytest.param({"X": X, "n": N}, ["no value", "'x'"], id="wrong case"),
        pytest.param({"x": X, "n": N, 3: X}, ["no input 3"], id="name is a number"),
        pytest.param([X, N], ["dictionary", "list"], id="list of arrays"),
        pytest.param(X, ["dictionary", "ndarray"], id="bare array"),
        pytest.param(None, ["dictionary", "NoneType"], id="no feeds"),
        pytest.param({"x": X[:1], "n": N}, ["'x'", "[2, 3]", "[1, 3]"], id="wrong size"),
        pytest.param({"x": X.T, "n": N}, ["'x'", "[2, 3]", "[3, 2]"], id="transposed"),
        pytest.param({"x": X.ravel(), "n": N}, ["'x'", "[6]"], id="wrong rank"),
        pytest.param({"x": X[None], "n": N}, ["'x'", "[1, 2, 3]"], id="extra dimension"),
        pytest.param({"x": X[:0], "n": N}, ["'x'", "[0, 3]"], id="no rows"),
        pytest.param({"x": np.float32(1), "n": N}, ["'x'", "float32[]"], id="scalar"),
        pytest.param({"x": 1.0, "n": N}, ["'x'", "[]"], id="Python float"),
        pytest.param({"x": X.astype("f8"), "n": N}, ["'x'", "float64"], id="double"),
        pytest.param({"x": X.astype("f2"), "n": N}, ["'x'", "float16"], id="half"),
        pytest.param({"x": X, "n": N.astype("i4")}, ["'n'", "int64", "int32"], id="int32"),
        pytest.param({"x": X, "n": N.astype("u8")}, ["'n'", "uint64"], id="unsigned"),
        pytest.param({"x": X > 0, "n": N}, ["'x'", "bool"], id="bool"),
        pytest.param({"x": X * 1j, "n": N}, ["'x'", "complex"], id="complex"),
        pytest.param({"x": X.astype(">f4"), "n": N}, ["'x'", ">f4"], id="big endian"),
        pytest.param({"x": X.astype(object), "n": N}, ["'x'", "object"], id="objects"),
        pytest.param({"x": X.astype(str), "n": N}, ["'x'", "<U"], id="texts"),
        pytest.param({"x": None, "n": N}, ["'x'", "NoneType"], id="None"),
        pytest.param({"x": "text", "n": N}, ["'x'", "str"], id="text"),
        pytest.param({"x": b"bytes", "n": N}, ["'x'", "bytes"], id="bytes"),
        pytest.param({"x": {"x": X}, "n": N}, ["'x'", "dict"], id="nested"),
        pytest.param({"x": [[1.0, 2.0], [3.0]], "n": N}, ["'x'", "list"], id="ragged list"),
        pytest.param({"x": [["a"] * 3] * 2, "n": N}, ["'x'", "<U1"], id="list of texts"),
        pytest.param({"x": X, "n": [0.5] * 4}, ["'n'", "float64"], id="floats for integers"),
        pytest.param({"x": X, "n": [2**70] * 4}, ["'n'"], id="integers too large"),
        pytest.param({"x": object(), "n": N}, ["'x'", "object"], id="any object"),
    ],
)
def test_bad_feeds_are_refused(
    session: tvm_hybrid.InferenceSession, feeds: Any, culprits: list[str]
) -> None:
    with pytest.raises(FeedError) as caught:
        session.run(None, feeds)
    for culprit in culprits:
        assert culprit in str(caught.value)


@pytest.mark.parametrize(
    ("names", "culprit"),
    [
        (["nonesuch"], "no output 'nonesuch'"),
        (["output_0", "x"], "no output 'x'"),
        (["output_0", "output_0"], "twice"),
        ("output_0", "must be a list"),
        (7, "must be a list"),
        ([None], "no output None"),
        ([["output_0"]], "no output ['output_0']"),
    ],
)
def test_bad_output_names_are_refused(
    session: tvm_hybrid.InferenceSession, names: Any, culprit: str
) -> None:
    with pytest.raises(FeedError) as caught:
        session.run(names, {"x": X, "n": N})
    assert culprit in str(caught.value)


def test_other_objects_are_no_run_options(session: tvm_hybrid.InferenceSession) -> None:
    with pytest.raises(OptionError, match="run_options"):
        session.run(None, {"x": X, "n": N}, object())
