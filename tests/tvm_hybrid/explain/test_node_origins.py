"""Every kernel names the nodes of the ONNX model that it computes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.onnx_models import two_layers
from tests.tvm_hybrid.small_models import mlp_module
from tvm_hybrid.executable.executable import Executable
from tvm_hybrid.explain.origins import (
    ModelNode,
    ModelNodes,
    numbers_in,
    variable_name,
    with_origins,
)
from tvm_hybrid.explain.program_graph import INPUT, VALUE, KernelCall, ProgramGraph, Value
from tvm_hybrid.frontend import import_onnx

RNG = np.random.default_rng(0)


def weight(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def compiled(model: onnx.ModelProto, fusion: str = "coarse") -> Executable:
    return tvm_hybrid.compile(model, num_threads=1, records=[], fusion=fusion)


def origins(executable: Executable) -> list[tuple[str, ...]]:
    graph = executable.graph
    assert graph is not None
    return [call.origins for call in graph.calls]


def block() -> onnx.ModelProto:
    """A convolution with batch norm and Relu, a Gelu of five nodes, a mean, a product."""
    build = OnnxBuilder()
    x = build.input("x", [1, 8, 6, 6])
    y = build.node("Conv", x, build.constant(weight(16, 8, 3, 3)), pads=[1, 1, 1, 1])
    norm = [build.constant(np.abs(weight(16)) + 0.5) for _ in range(4)]
    y = build.node("Relu", build.node("BatchNormalization", y, *norm))
    y = build.node("ReduceMean", y, axes=[2, 3], keepdims=0)
    z = build.node("MatMul", y, build.constant(weight(16, 32)))
    root = build.constant(np.sqrt(2), np.float32)
    erf = build.node("Erf", build.node("Div", z, root))
    half = build.constant(0.5, np.float32)
    both = build.node("Mul", z, build.node("Add", erf, build.constant(1.0, np.float32)))
    build.output(build.node("Mul", both, half), [1, 32])
    return build.model()


def test_names_of_variables_tell_the_node() -> None:
    assert numbers_in([variable_name(7, "Conv"), "lv12", "x_n3", "both_n4_n5_", "conv_n7__1"]) == [
        *(7, 4, 5)
    ]
    main = import_onnx(two_layers()).mod["main"]
    names = [binding.var.name for block in main.body.blocks for binding in block.bindings]
    assert names[:2] == ["matmul_n0_", "relu_n1_"]


def test_all_nodes_of_a_fused_kernel() -> None:
    assert origins(compiled(two_layers(), "fine")) == [
        ("first (MatMul)", "rectify (Relu)"),
        ("second (MatMul)",),
    ]


def test_nodes_that_passes_rewrite() -> None:
    found = origins(compiled(block()))
    assert ("Conv0 (Conv)", "BatchNormalization1 (BatchNormalization)", "Relu2 (Relu)") in found
    assert ("ReduceMean3 (ReduceMean)",) in found
    assert found[-1] == (
        "MatMul4 (MatMul)",
        "Div5 (Div)",
        "Erf6 (Erf)",
        "Add7 (Add)",
        "Mul8 (Mul)",
        "Mul9 (Mul)",
    )
    assert all(found)  # also the input's reorder


def test_a_node_without_a_name_is_called_after_its_output() -> None:
    model = two_layers()
    for node in model.graph.node:
        node.name = ""
    assert origins(compiled(model, "fine"))[0] == ("a (MatMul)", "b (Relu)")


def test_what_is_known_before_a_run_is_in_no_kernel() -> None:
    build = OnnxBuilder()
    x = build.input("x", [4, 8])
    moved = build.node("Transpose", build.constant(weight(16, 8)), perm=[1, 0])
    shape = build.node("Concat", build.node("Shape", x, end=1), build.constant([16]), axis=0)
    build.output(build.node("Reshape", build.node("MatMul", x, moved), shape), [4, 16])
    (found,) = origins(compiled(build.model()))
    assert found == ("MatMul3 (MatMul)", "Reshape4 (Reshape)")


def test_a_node_that_becomes_several_operators() -> None:
    build = OnnxBuilder()
    x = build.input("x", [3, 2, 4])
    weights = [build.constant(weight(1, 12, 4)), build.constant(weight(1, 12, 4))]
    y, _ = build.nodes("GRU", 2, x, *weights, hidden_size=4)
    build.output(build.node("Relu", y), [3, 1, 2, 4])
    found = origins(compiled(build.model()))
    assert all(found) and {each for call in found for each in call} == {
        "GRU0 (GRU)",
        "Relu1 (Relu)",
    }


def test_decisions_and_profile_say_so(tmp_path: Path) -> None:
    executable = compiled(block())
    found = origins(executable)
    about = {each.function: each.origins for each in executable.explain() if each.function}
    graph = executable.graph
    assert graph is not None
    for call in graph.calls:
        assert about[call.function] == call.origins
    profile = executable.profile(repeat=2)
    assert [event.origins for event in profile.events if event.origins] == found * 2
    assert "Conv0 (Conv)" in executable.explain().to_json()
    assert executable.explain().table().columns[0].header == "ONNX nodes"
    assert profile.table().columns[-1].header == "ONNX nodes"
    assert "\n".join(found[-1]) in map(str, executable.explain().table().columns[0].cells)
    profile.to_chrome_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [each["args"]["onnx"] for each in trace if "onnx" in each["args"]] == [
        ", ".join(each) for each in found * 2
    ]
    assert all(each["tid"] == each["pid"] > 0 for each in trace)


def test_calls_of_one_kernel_have_their_own_nodes() -> None:
    build = OnnxBuilder()
    x = build.input("x", [4, 16])
    for _ in range(3):
        x = build.node("Relu", build.node("MatMul", x, build.constant(weight(16, 16))))
    build.output(x, [4, 16])
    executable = compiled(build.model(), "fine")
    profile = executable.profile(repeat=2)
    (row,) = [row for row in profile.rows if row.kernel]
    assert row.calls == 3 and len(row.origins) == 6
    assert [event.origins[0] for event in profile.events if event.origins] == [
        *("MatMul0 (MatMul)", "MatMul2 (MatMul)", "MatMul4 (MatMul)")
    ] * 2


def test_a_relax_module_has_none() -> None:
    executable = tvm_hybrid.compile(mlp_module(4), num_threads=1)
    assert not any(origins(executable))
    assert executable.explain().table().columns[0].header == "node"
    assert executable.profile(repeat=1).table().columns[-1].header == "GFLOP/s"


def test_a_library_keeps_them(tmp_path: Path) -> None:
    executable = compiled(block())
    loaded = tvm_hybrid.load(executable.export(tmp_path / "m.so"))
    assert origins(loaded) == origins(executable)
    assert loaded.explain().to_json() == executable.explain().to_json()


def test_a_call_whose_variables_tell_nothing_has_the_nodes_of_its_readers() -> None:
    tensor = ((4,), "float32", 16)
    values = (Value("x", *tensor, INPUT), *(Value(name, *tensor, VALUE) for name in "abc"))
    calls = [KernelCall(name, name, (i,), (i + 1,)) for i, name in enumerate("fgh")]
    graph = ProgramGraph(values, tuple(calls), (0,), (3,))
    nodes = ModelNodes({0: ModelNode("p (Exp)", ()), 1: ModelNode("q (Log)", (0,))}, (None,))
    names = [["x"], ["a"], ["log_n1_"], ["c"]]
    found = [call.origins for call in with_origins(graph, names, nodes).calls]
    assert found == [("p (Exp)", "q (Log)")] * 3
