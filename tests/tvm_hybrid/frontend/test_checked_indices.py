"""`check_indices`: an index out of range is an error that names node and range, or is clipped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from tvm import relax

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid import InferenceSession
from tvm_hybrid.bench.peers.onnx_runtime import literal_session
from tvm_hybrid.errors import CompileError, FeedError, UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx

from .models import random

ROWS = 5


def model(rows: int | str) -> onnx.ModelProto:
    """Every operator that reads or writes by indices, each with its own indices."""
    build = OnnxBuilder()
    x = build.input("x", [rows, 4])
    updates = build.constant(random(2, 4, seed=1))
    results = [
        build.node("Gather", x, build.input("g", [2, 3], np.int64), axis=0),
        build.node("Gather", x, build.input("g1", [], np.int32), axis=-1),
        build.node("GatherElements", x, build.input("ge", [2, 4], np.int64), axis=0),
        build.node("GatherND", x, build.input("gn", [3, 2], np.int64)),
        build.node("ScatterElements", x, build.input("se", [2, 4], np.int64), updates, axis=0),
        build.node("ScatterND", x, build.input("sn", [2, 1], np.int64), updates),
    ]
    for each in results:
        build.output(each, None)
    return build.model()


def feeds() -> dict[str, NDArray]:
    """The first and the last valid index, and some between."""
    return {
        "x": random(ROWS, 4),
        "g": np.array([[0, 4, -5], [-1, 2, 3]]),
        "g1": np.array(-4, np.int32),
        "ge": np.array([[0, -5, 4, 1], [2, 2, -1, 3]]),
        "gn": np.array([[0, 0], [-5, 3], [4, -4]]),
        "se": np.array([[0, 1, 2, 3], [4, -1, -2, -4]]),
        "sn": np.array([[0], [-1]]),
    }


# The input, a position in it, an index out of range, and the message.
WRONG = [
    ("g", (1, 1), 5, "Gather node 'Gather0'"),
    ("g", (0, 0), -6, "Gather node 'Gather0'"),
    ("g1", (), 4, "Gather node 'Gather1': indices of 'x' are -4 to 3"),
    ("ge", (1, 3), 5, "GatherElements node 'GatherElements2'"),
    ("gn", (2, 1), -5, "GatherND node 'GatherND3': coordinates of 'x'.*; -4 to 3"),
    ("gn", (2, 0), 5, "GatherND node 'GatherND3'"),
    ("se", (0, 0), -6, "ScatterElements node 'ScatterElements4'"),
    ("sn", (1, 0), 5, "ScatterND node 'ScatterND5'"),
]


@pytest.mark.parametrize("rows", [ROWS, "n"])
def test_an_index_out_of_range_is_an_error_if_asked_for(rows: int | str) -> None:
    session = InferenceSession(model(rows), num_threads=1, check_indices=True)
    wanted = literal_session(model(rows)).run(None, feeds())
    for got, other in zip(session.run(None, feeds()), wanted, strict=True):
        np.testing.assert_array_equal(got, other)
    for name, place, index, message in WRONG:
        given = feeds()
        given[name][place] = index
        with pytest.raises(FeedError, match=f"an index is out of range: {message}"):
            session.run(None, given)
    if rows == ROWS:
        given["g"][0, 0] = 5
        with pytest.raises(FeedError, match="indices of 'x' are -5 to 4"):
            session.run(None, given)
    for got, other in zip(session.run(None, feeds()), wanted, strict=True):
        np.testing.assert_array_equal(got, other)


def test_otherwise_it_is_clipped_and_no_kernel_checks_it() -> None:
    checked, plain = (import_onnx(model(ROWS), check_indices=on).mod for on in (True, False))
    names = ["".join(str(g.name_hint) for g in mod.get_global_vars()) for mod in (checked, plain)]
    assert ["check_indices" in text for text in names] == [True, False]
    session, given = InferenceSession(model(ROWS), num_threads=1), feeds()
    given["g"][0] = [7, -9, 2]
    np.testing.assert_array_equal(session.run(None, given)[0][0], given["x"][[4, 0, 2]])


def test_a_constant_index_is_checked_at_import() -> None:
    build = OnnxBuilder()
    build.output(build.node("Gather", build.input("x", [3]), build.constant([0, 3])), None)
    with pytest.raises(UnsupportedOperatorError, match=r"Gather0.*indices of 'x' are -3 to 2"):
        import_onnx(build.model(), check_indices=True)


def test_a_library_checks_too(tmp_path: Path) -> None:
    build = OnnxBuilder()
    table = build.constant(random(6, 2))
    build.output(build.node("Gather", table, build.input("ids", [2], np.int64)), None)
    executable = tvm_hybrid.compile(build.model(), num_threads=1, check_indices=True)
    session = InferenceSession(executable.export(tmp_path / "m.so"))
    values = numpy_helper.to_array(build.model().graph.initializer[0])
    np.testing.assert_array_equal(session.run(None, {"ids": np.array([5, -6])})[0], values[[5, 0]])
    with pytest.raises(FeedError, match=r"indices of 'c0' are -6 to 5"):
        session.run(None, {"ids": np.array([5, 6])})


def test_only_onnx_models_have_it() -> None:
    with pytest.raises(CompileError, match="check_indices is for ONNX models only"):
        tvm_hybrid.compile(relax.BlockBuilder().get(), check_indices=True)
