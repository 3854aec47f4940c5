"""InferenceSession behaves as ONNX Runtime's users expect."""

from __future__ import annotations

import copy
import pickle
import threading
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import onnx
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.small_models import (
    MLP_BIAS,
    MLP_WEIGHT,
    mlp,
    mlp_module,
    mlp_reference,
    several,
)
from tvm_hybrid.errors import ArtifactError
from tvm_hybrid.runtime.feeds import ZERO_COPY_BYTES, aligned_empty, is_aligned
from tvm_hybrid.runtime.tensors import TensorInfo

X = np.random.default_rng(5).standard_normal((1, 16)).astype(np.float32)
# K = 16 products and a bias, |terms| < 12: 17 roundings of partial sums below 64.
TOLERANCE = 17 * 64 * 2.0**-24


def test_describes_inputs_and_outputs() -> None:
    session = tvm_hybrid.InferenceSession(several())
    assert [(i.name, i.shape, i.type) for i in session.get_inputs()] == [
        ("x", [2, 3], "tensor(float)"),
        ("n", [4], "tensor(int64)"),
    ]
    assert [i.dtype for i in session.get_outputs()] == ["float32", "int64", "float32", "float32"]
    assert "tensor(int64)" in repr(session.get_inputs()[1])
    assert len(session.explain()) == len(several().explain())


def test_runs_all_outputs_or_some_in_any_order() -> None:
    session = tvm_hybrid.InferenceSession(several())
    feeds = {"n": np.arange(4), "x": np.ones((2, 3), np.float32)}
    every = session.run(None, feeds)
    assert [type(array) for array in every] == [np.ndarray] * 4
    twice, more = session.run(["output_1", "output_0"], feeds)
    np.testing.assert_array_equal(twice, np.arange(4) * 2)
    np.testing.assert_array_equal(more, np.full((2, 3), 2, np.float32))


def test_outputs_are_fresh_writable_and_outlive_everything() -> None:
    session = tvm_hybrid.InferenceSession(several())
    x = np.ones((2, 3), np.float32)
    n = np.arange(4)
    first = session.run(None, {"x": x, "n": n})
    second = session.run(None, {"x": x + 5, "n": n + 5})
    for a in first:
        assert a.flags.writeable
        for b in (*second, x, n):
            assert not np.shares_memory(a, b)
    for a in first:
        a[...] = -1
    del session
    third = tvm_hybrid.InferenceSession(several()).run(None, {"x": x + 5, "n": n + 5})
    for b, c in zip(second, third, strict=True):
        np.testing.assert_array_equal(b, c)
    np.testing.assert_array_equal(x, np.ones((2, 3)))


@pytest.mark.parametrize(
    "value",
    [
        X,
        np.asfortranarray(X),
        np.repeat(X, 2, axis=1)[:, ::2],
        X.tolist(),
        [[int(v) for v in range(16)]],
        np.frombuffer(X.tobytes(), np.float32).reshape(1, 16),
    ],
    ids=["array", "fortran", "strided", "list", "list of int", "read-only"],
)
def test_takes_arrays_of_every_layout_and_lists(value: object) -> None:
    session = tvm_hybrid.InferenceSession(mlp())
    (result,) = session.run(None, {"x": value})
    expected = mlp_reference(np.asarray(value, np.float32))
    # The largest input is 15 instead of 4.
    np.testing.assert_allclose(result, expected, atol=4 * TOLERANCE)


def test_nan_and_infinity_pass_through() -> None:
    session = tvm_hybrid.InferenceSession(several())
    x = np.array([[np.nan, np.inf, -np.inf], [0, -0.0, 1e-45]], np.float32)
    more = session.run(["output_0"], {"x": x, "n": np.arange(4)})[0]
    np.testing.assert_array_equal(more, x + 1)


def test_large_aligned_inputs_are_not_copied_and_not_changed() -> None:
    rows = 2 * ZERO_COPY_BYTES // 64
    session = tvm_hybrid.InferenceSession(mlp_module(rows), num_threads=1)
    x = aligned_empty(TensorInfo("x", (rows, 16), "float32"))
    x[...] = np.random.default_rng(2).standard_normal(x.shape)
    assert is_aligned(x)
    kept = x.copy()
    expected = np.maximum(x.astype(np.float64) @ MLP_WEIGHT + MLP_BIAS, 0)
    odd = np.empty(x.size + 1, np.float32)[1:].reshape(x.shape)
    odd[...] = x
    for value in (x, odd, x.tolist()):
        (result,) = session.run(None, {"x": value})
        np.testing.assert_allclose(result, expected, atol=2 * TOLERANCE)
    np.testing.assert_array_equal(x, kept)


def test_two_threads_get_their_own_answers() -> None:
    session = tvm_hybrid.InferenceSession(mlp())
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal((1, 16)).astype(np.float32)
        expected = session.run(None, {"x": x})[0]
        for _ in range(2000):
            if not np.array_equal(session.run(None, {"x": x})[0], expected):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_sessions_of_different_thread_numbers_alternate() -> None:
    one, two = (tvm_hybrid.InferenceSession(mlp(threads)) for threads in (1, 2))
    for _ in range(3):
        for session in (one, two):
            result = session.run(None, {"x": X})[0]
            np.testing.assert_allclose(result, mlp_reference(X), atol=TOLERANCE)


def test_takes_an_exported_library(tmp_path: Path) -> None:
    library = mlp().export(tmp_path / "m.so")
    session = tvm_hybrid.InferenceSession(library)
    assert [i.name for i in session.get_inputs()] == ["x"]
    np.testing.assert_allclose(session.run(None, {"x": X})[0], mlp_reference(X), atol=TOLERANCE)
    tvm_hybrid.InferenceSession(str(library), num_threads=1)
    with pytest.raises(ArtifactError, match="1 threads, not 2"):
        tvm_hybrid.InferenceSession(library, num_threads=2)
    with pytest.raises(ArtifactError, match="compiled already"):
        tvm_hybrid.InferenceSession(library, target="spr")


def test_answers_like_onnx_runtime_on_an_onnx_model(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    helper = onnx.helper
    nodes = [
        helper.make_node("MatMul", ["in", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["q"]),
        helper.make_node("Relu", ["q"], ["out"]),
        helper.make_node("Flatten", ["in"], ["flat"], axis=0),
    ]
    weights = [
        onnx.numpy_helper.from_array(MLP_WEIGHT, "w"),
        onnx.numpy_helper.from_array(MLP_BIAS, "b"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("in", onnx.TensorProto.FLOAT, [1, 16])],
        [
            value("out", onnx.TensorProto.FLOAT, [1, 16]),
            value("flat", onnx.TensorProto.FLOAT, [1, 16]),
        ],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    theirs = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for source in (path, path.read_bytes(), model):
        ours = tvm_hybrid.InferenceSession(source, num_threads=1)
        for mine, other in (
            (ours.get_inputs(), theirs.get_inputs()),
            (ours.get_outputs(), theirs.get_outputs()),
        ):
            assert [(i.name, i.shape, i.type) for i in mine] == [
                (i.name, i.shape, i.type) for i in other
            ]
        for names in (None, ["flat"], ["flat", "out"]):
            for a, b in zip(ours.run(names, {"in": X}), theirs.run(names, {"in": X}), strict=True):
                # Each of the two is within TOLERANCE of the exact value.
                np.testing.assert_allclose(a, b, atol=2 * TOLERANCE)


def test_no_copies_but_through_a_library(tmp_path: Path) -> None:
    session = tvm_hybrid.InferenceSession(mlp())
    dynamic_session = tvm_hybrid.InferenceSession(dynamic_model())
    library = tmp_path / "m.so"
    for whole in (session, dynamic_session, session.executable, [session]):
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps, ForkingPickler.dumps):
            if (whole, duplicate) == ([session], copy.copy):
                continue
            with pytest.raises(TypeError, match=r"cannot be pickled or copied.*\.export\(.*load\("):
                duplicate(whole)
    session.executable.export(library)
    x = np.ones((1, 16), np.float32)
    loaded = tvm_hybrid.InferenceSession(library)
    np.testing.assert_array_equal(loaded.run(None, {"x": x}), session.run(None, {"x": x}))
    assert pickle.loads(pickle.dumps(session.executable.manifest)) == session.executable.manifest


def dynamic_model() -> onnx.ModelProto:
    """relu(x) for a dynamic number of rows."""
    g = OnnxBuilder()
    g.output(g.node("Relu", g.input("x", ("rows", 4))), ("rows", 4))
    return g.model()


def test_machine_code_is_made_in_the_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run takes no longer than later runs; a thread finds the machine code ready."""
    made: list[object] = []
    monkeypatch.setattr("tvm_hybrid.executable.machine_code.emit_machine_code", made.append)
    build = OnnxBuilder()
    build.output(build.node("Relu", build.input("x", ["n", 4])), ["n", 4])
    session = tvm_hybrid.InferenceSession(build.model(), num_threads=1)
    assert len(made) == 1
    session.run(None, {"x": np.ones((2, 4), np.float32)})
    assert len(made) == 1
