"""Verification, and the search for the first differing node, with stand-ins for the plugin."""

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from microkernels.base.errors import CompileError
from relay_passes.ir.decisions import Decision
from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.onnx_models import reference, two_layers
from tvm_hybrid.bench import verify as verify_module
from tvm_hybrid.bench.bench_tables import verify_table
from tvm_hybrid.bench.compare import Tolerance
from tvm_hybrid.bench.peers import onnx_runtime
from tvm_hybrid.bench.peers.contestants import ContestantError
from tvm_hybrid.bench.peers.onnx_runtime import optimised_session
from tvm_hybrid.bench.verify import find_first_difference, locate, verify

Evaluate = Callable[[onnx.ModelProto, Mapping[str, np.ndarray]], tuple[list, list[Decision]]]


def feeds() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)}


def wrong_at(op: str, replacement: str) -> Evaluate:
    """A runtime that computes `replacement` for one operator and reports one decision a node."""

    def evaluate(
        model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]
    ) -> tuple[list, list[Decision]]:
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        decisions = []
        for node in changed.graph.node:
            decisions.append(Decision(node=node.name, op=node.op_type, taken=True, kernel="toy"))
            if node.op_type == op:
                node.op_type = replacement
        session = optimised_session(changed.SerializeToString())
        return session.run(None, dict(inputs)), decisions

    return evaluate


def test_right_outputs_pass() -> None:
    inputs = feeds()
    report = verify(
        two_layers(), [reference(inputs["x"]).astype(np.float32)], inputs, Tolerance(1e-5)
    )
    assert report.passed
    (output,) = report.outputs
    assert output.name == "y" and output.ours.max_rel <= 1e-5
    assert output.optimised is not None and output.optimised.max_rel <= 1e-5


def bytes_product() -> tuple[onnx.ModelProto, dict[str, np.ndarray], np.ndarray]:
    """A uint8 by int8 product of activations that saturates 16 bits, its inputs and its result."""
    g = OnnxBuilder()
    one, scale = g.constant(1.0, np.float32), g.constant(2.0**14, np.float32)
    a = [g.input("a", (4, 64), np.uint8), one, g.constant(0, np.uint8)]
    b = [g.input("b", (64, 5), np.int8), one, g.constant(0, np.int8)]
    y = g.node("QLinearMatMul", *a, *b, scale, g.constant(0, np.uint8))
    g.output(y, (4, 5), np.uint8)
    inputs = {"a": np.full((4, 64), 255, np.uint8), "b": np.full((64, 5), 127, np.int8)}
    return g.model(), inputs, np.full((4, 5), round(255 * 127 * 64 / 2**14), np.uint8)


@pytest.mark.parametrize("vnni", [False, True])
def test_a_peer_that_saturates_is_noted_and_decides_nothing(
    vnni: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On any CPU: the peer here returns what saturating vpmaddubsw would."""
    model, inputs, right = bytes_product()
    saturated = np.full_like(right, round(32767 * 32 / 2**14))

    class Peer:
        def run(self, names: None, feeds: object) -> list[np.ndarray]:
            return [saturated]

    monkeypatch.setattr(verify_module, "optimised_session", lambda *arguments: Peer())
    features = {"avx2", "avxvnni"} if vnni else {"avx2"}
    monkeypatch.setattr(onnx_runtime, "host_features", lambda: frozenset(features))
    report = verify(model, [right], inputs, Tolerance(1e-5, 1))
    (output,) = report.outputs
    assert report.passed and output.ours.exact and (output.allowed, report.steps) == (1 / 255, 1)
    told = "ONNX Runtime optimised differs by 63 of 255 steps"
    assert output.note == told + ("" if vnni else ": its u8s8 kernels saturate on this CPU")
    assert output.note in str(verify_table(report).caption)
    assert not verify(model, [saturated], inputs, Tolerance(1e-5, 1)).passed


def test_a_model_that_only_runs_without_optimisation(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise ContestantError("no")

    monkeypatch.setattr(verify_module, "optimised_session", refuse)
    inputs = feeds()
    right = reference(inputs["x"]).astype(np.float32)
    report = verify(two_layers(), [right], inputs, Tolerance(1e-5))
    assert report.passed and report.outputs[0].optimised is None
    assert verify_table(report).row_count == 1


def test_8_bit_integers_are_equal_where_nothing_is_quantised() -> None:
    model, inputs, right = bytes_product()
    assert verify(model, [right + np.uint8(1)], inputs, Tolerance(0.5, 1)).passed
    assert not verify(model, [right + np.uint8(1)], inputs, Tolerance(0.5)).passed
    assert not verify(model, [right.astype(np.int32)], inputs, Tolerance(0.5, 255)).passed


def test_wrong_outputs_fail() -> None:
    inputs = feeds()
    wrong = reference(inputs["x"]).astype(np.float32)
    wrong[2, 3] += 0.01 * np.abs(wrong).max()
    report = verify(two_layers(), [wrong], inputs, Tolerance(1e-3))
    assert not report.passed
    assert report.outputs[0].ours.max_rel == pytest.approx(0.01, rel=1e-3)


def test_the_first_wrong_node_and_its_region_are_named() -> None:
    first = locate(two_layers(), feeds(), Tolerance(1e-5), wrong_at("Relu", "Neg"))
    assert first is not None
    assert (first.op, first.node) == ("Relu", "rectify")
    assert [region.op for region in first.regions] == ["Relu"]
    assert "'rectify'" in str(first) and "toy" in str(first)


def test_a_wrong_first_node_has_no_prefix_before_it() -> None:
    def evaluate(
        model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]
    ) -> tuple[list, list[Decision]]:
        raise CompileError("always")

    first = locate(two_layers(), feeds(), Tolerance(1e-5), evaluate)
    assert first is not None and first.node == "first" and not first.regions


def branches() -> onnx.ModelProto:
    """Two branches that meet: y = exp(neg(x)) + tanh(abs(x)); neg(x) is an output, too."""
    nodes = [
        helper.make_node("Neg", ["x"], ["n"], name="neg"),
        helper.make_node("Abs", ["x"], ["a"], name="abs"),
        helper.make_node("Exp", ["n"], ["e"], name="exp"),
        helper.make_node("Tanh", ["a"], ["t"], name="tanh"),
        helper.make_node("Add", ["e", "t"], ["y"], name="add"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "branches",
        [value("x", TensorProto.FLOAT, (3,))],
        [value("y", TensorProto.FLOAT, (3,)), value("n", TensorProto.FLOAT, (3,))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("index", range(5))
def test_bisection_finds_every_node(index: int) -> None:
    model = branches()
    seen = []

    def agrees(prefix: onnx.ModelProto) -> bool:
        onnx.checker.check_model(prefix, full_check=True)
        seen.append(len(prefix.graph.node))
        return len(prefix.graph.node) <= index

    culprit = find_first_difference(model, agrees)
    assert culprit is not None and culprit.index == index
    assert culprit.node == model.graph.node[index].name
    assert culprit.after.graph.node[-1].name == culprit.node
    assert (culprit.before is None) == (index == 0)
    assert len(seen) <= 3


def test_prefixes_keep_what_later_nodes_read() -> None:
    outputs = {}

    def agrees(prefix: onnx.ModelProto) -> bool:
        outputs[len(prefix.graph.node)] = [value.name for value in prefix.graph.output]
        return True

    find_first_difference(branches(), agrees)
    assert outputs[3] == ["n", "a", "e"]  # n is a model output, a is read by tanh
    assert outputs[4] == ["n", "e", "t"]


def test_a_model_that_onnx_runtime_refuses() -> None:
    broken = two_layers()
    broken.graph.node[1].op_type = "NoSuchOperator"
    with pytest.raises(ContestantError, match="NoSuchOperator"):
        verify(broken, [np.zeros((4, 5), np.float32)], feeds(), 1e-5)
