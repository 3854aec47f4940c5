"""Sessions of models with dynamic dimensions compile for the shapes that arrive."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import tools.dynamic_shapes
import tvm_hybrid
from tests.tvm_hybrid.onnx_models import saved, two_layers
from tvm_hybrid.errors import FeedError, ModelError, ShapeError
from tvm_hybrid.session.programs import MOST_PROGRAMS

pytestmark = pytest.mark.turns

WEIGHT = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)


def dynamic_model() -> onnx.ModelProto:
    """y = softmax(x @ W + z) along axis 1, with x: [batch, ?, 8], W: [8, 5], z: [batch, 1, 5].

    Random numbers of dynamic sizes (here with deviation 0) are not supported, so every shape gets
    its own program.
    """
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["p"]),
            helper.make_node("RandomNormalLike", ["p"], ["nothing"], scale=0.0),
            helper.make_node("Add", ["p", "nothing"], ["q"]),
            helper.make_node("Add", ["q", "z"], ["s"]),
            helper.make_node("Softmax", ["s"], ["y"], axis=1),
        ],
        "open",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", None, 8]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, ["batch", 1, 5]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", None, 5])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def feeds(batch: int, length: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch * 100 + length)
    return {
        "x": rng.standard_normal((batch, length, 8)).astype(np.float32),
        "z": rng.standard_normal((batch, 1, 5)).astype(np.float32),
    }


def check(session: tvm_hybrid.InferenceSession, given: dict[str, np.ndarray]) -> None:
    (result,) = session.run(None, given)
    scores = given["x"].astype(float) @ WEIGHT + given["z"]
    powers = np.exp(scores - scores.max(1, keepdims=True, initial=-np.inf))
    # K = 8: a few roundings of scores below 20, which are relative errors of their exponentials.
    bound = 2 * 9 * 20 * np.finfo(np.float32).eps
    np.testing.assert_allclose(result, powers / powers.sum(1, keepdims=True), rtol=bound, atol=0)


def test_every_combination_of_shapes_runs_and_is_compiled_once() -> None:
    session = tvm_hybrid.InferenceSession(dynamic_model(), num_threads=1)
    for batch, length in [(1, 3), (2, 7), (2, 0), (1, 3)]:
        check(session, feeds(batch, length))
    first = session.executable
    check(session, feeds(2, 7))
    assert session.executable is not first
    check(session, feeds(1, 3))
    assert session.executable is first
    assert session.run(["y"], feeds(1, 3))[0].shape == (1, 3, 5)


def test_the_interface_is_as_declared() -> None:
    session = tvm_hybrid.InferenceSession(dynamic_model().SerializeToString(), num_threads=1)
    x, z = session.get_inputs()
    assert (x.name, x.shape, x.type) == ("x", ["batch", None, 8], "tensor(float)")
    assert (z.name, z.shape) == ("z", ["batch", 1, 5])
    assert [(y.name, y.shape) for y in session.get_outputs()] == [("y", ["batch", None, 5])]


@pytest.mark.parametrize(
    ("declared", "known"),
    [("no shape", ["batch", None, 5]), ("no type", ["batch", None, 5]), ("contrib", None)],
)
def test_outputs_may_be_declared_by_their_names_alone(declared: str, known: list | None) -> None:
    model = dynamic_model()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    if declared != "no shape":
        model.graph.output[0].ClearField("type")
    if declared == "contrib":  # ONNX cannot infer its shape
        model.graph.node[0].op_type, model.graph.node[0].domain = "FusedMatMul", "com.microsoft"
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    (y,) = session.get_outputs()
    kind = (None, None) if declared == "contrib" else ("tensor(float)", "float32")
    assert (y.name, y.shape, y.type, y.dtype) == ("y", known, *kind)
    check(session, feeds(2, 3))


def test_an_input_may_be_of_any_rank() -> None:
    model = dynamic_model()
    model.graph.input[0].type.tensor_type.ClearField("shape")
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    assert session.get_inputs()[0].shape is None
    check(session, feeds(2, 3))
    given = feeds(2, 3)
    (result,) = session.run(None, {"x": given["x"][0], "z": given["z"]})
    assert result.shape == (2, 3, 5)


def test_nothing_is_there_to_explain_before_the_first_run() -> None:
    session = tvm_hybrid.InferenceSession(dynamic_model(), num_threads=1)
    with pytest.raises(
        ShapeError, match=r"'batch', None, 8.*run the session, or make it with shapes"
    ):
        session.explain()
    check(session, feeds(1, 2))
    assert any(decision.taken for decision in session.explain())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros((1, 8), np.float32)}, r"expected x: float32\[batch, \?, 8\], got shape"),
        ({"x": np.zeros((1, 3, 9), np.float32)}, r"'x'.*got shape \(1, 3, 9\)"),
        ({"x": np.zeros((1, 3, 8), np.float64)}, "'x'.*float64"),
        ({"extra": np.zeros(1, np.float32)}, "no input 'extra'"),
    ],
)
def test_feeds_that_the_model_excludes_are_refused(change: dict, message: str) -> None:
    session = tvm_hybrid.InferenceSession(dynamic_model(), num_threads=1)
    with pytest.raises(FeedError, match=message):
        session.run(None, {**feeds(1, 3), **change})


def test_missing_feeds_and_shapes_that_contradict_each_other_are_refused() -> None:
    session = tvm_hybrid.InferenceSession(dynamic_model(), num_threads=1)
    with pytest.raises(FeedError, match="no value for input 'z'; the model's inputs are 'x', 'z'"):
        session.run(None, {"x": feeds(1, 3)["x"]})
    with pytest.raises(FeedError, match=r"must be a dictionary from input names \(x, z\)"):
        session.run(None, None)
    with pytest.raises(ShapeError, match=r"'batch' is 2.*but 3"):
        session.run(None, {"x": feeds(2, 3)["x"], "z": feeds(3, 3)["z"]})


def test_some_shapes_may_be_given() -> None:
    session = tvm_hybrid.InferenceSession(dynamic_model(), shapes={"batch": 2}, num_threads=1)
    assert [x.shape for x in session.get_inputs()] == [[2, None, 8], [2, 1, 5]]
    assert [y.shape for y in session.get_outputs()] == [[2, None, 5]]
    for length in (3, 7):
        check(session, feeds(2, length))
    with pytest.raises(FeedError, match=r"float32\[2, \?, 8\], got shape \(1, 3, 8\)"):
        check(session, feeds(1, 3))
    with pytest.raises(ShapeError, match="names 'batches'"):
        tvm_hybrid.InferenceSession(dynamic_model(), shapes={"batches": 2})
    with pytest.raises(ShapeError, match="batch"):
        tvm_hybrid.compile(dynamic_model(), shapes={"batch": 2})


def test_a_broken_model_is_refused_at_once() -> None:
    model = dynamic_model()
    model.graph.node[0].input[0] = "nowhere"
    with pytest.raises(ModelError, match="nowhere"):
        tvm_hybrid.InferenceSession(model)


def test_old_variants_are_dropped_and_come_back() -> None:
    session = tvm_hybrid.InferenceSession(dynamic_model(), num_threads=1)
    check(session, feeds(1, 1))
    first = session.executable
    for length in range(2, MOST_PROGRAMS + 2):
        check(session, feeds(1, length))
    check(session, feeds(1, 1))
    assert session.executable is not first


def test_threads_share_variants() -> None:
    session = tvm_hybrid.InferenceSession(dynamic_model(), num_threads=1)

    def work(length: int) -> None:
        for _ in range(5):
            check(session, feeds(2, length))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [1, 2, 1, 2]))


def test_threads_compile_different_shapes_at_once() -> None:
    session = tvm_hybrid.InferenceSession(dynamic_model(), num_threads=1)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda length: check(session, feeds(2, length)), range(6)))
    assert len(session.programs) == 6


@pytest.mark.parametrize("rows", ["rows", None])
def test_the_tool_measures_each_size_beside_static_code_and_a_peer(
    rows: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TURNS", "SECONDS", "PAUSE"):
        monkeypatch.setattr(tools.dynamic_shapes, name, int(name == "TURNS"))
    path = str(saved(tmp_path, two_layers(rows)))
    done = CliRunner().invoke(tools.dynamic_shapes.main, [path, "--sizes", "3,5"])
    first, _, three, five, means = done.output.splitlines()
    assert first.endswith("one program: True")
    for size, line in [("3", three), ("5", five)]:
        found, *times = line.split()
        opened, static, peer = map(float, times[:3])
        assert found == size and min(opened, static, peer) > 0
    assert "of static" in means and "of ORT" in means
