"""Reading models from every source, and the interface of the imported model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.tvm_hybrid.small_models import run_python
from tvm_hybrid.errors import ModelError
from tvm_hybrid.frontend import OutputInfo, TensorInfo, import_onnx

from .models import compare, f32, i64, make_model, random, run_imported


def linear() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Add", ["h", "b"], ["y"], name="sum"),
    ]
    constants = {"w": random(64, 32, seed=1), "b": random(32, seed=2)}
    return make_model(nodes, [f32("x", 2, 64)], [f32("y", 2, 32)], constants)


@pytest.mark.parametrize("form", ["path", "text", "bytes", "bytearray", "memoryview", "proto"])
def test_every_form_of_a_model(form: str, tmp_path: Path) -> None:
    model = linear()
    path = tmp_path / "linear.onnx"
    onnx.save(model, path)
    data = path.read_bytes()
    source = {
        "path": path,
        "text": str(path),
        "bytes": data,
        "bytearray": bytearray(data),
        "memoryview": memoryview(data),
        "proto": model,
    }[form]
    x = random(2, 64)
    result = run_imported(import_onnx(source), {"x": x})[0]
    # 64 products of values near 1 in float32: 64 roundings of 6e-8 of sums of about 8.
    np.testing.assert_allclose(result, x @ random(64, 32, seed=1) + random(32, seed=2), atol=3e-5)


def test_the_given_proto_is_not_changed() -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["h"], transB=1),
        helper.make_node("Identity", ["h"], ["i"]),
        helper.make_node("Relu", ["i"], ["y"]),
    ]
    model = make_model(nodes, [f32("x", "n", 3)], [f32("y", "n", 4)], {"w": random(4, 3)})
    before = model.SerializeToString()
    import_onnx(model, {"n": 2})
    assert model.SerializeToString() == before


def _save_external(path: Path) -> None:
    onnx.save_model(
        linear(), path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )


def test_external_data_beside_the_model(tmp_path: Path) -> None:
    _save_external(tmp_path / "m.onnx")
    x = random(2, 64)
    got = run_imported(import_onnx(tmp_path / "m.onnx"), {"x": x})[0]
    wanted = run_imported(import_onnx(linear()), {"x": x})[0]
    np.testing.assert_array_equal(got, wanted)


def test_external_data_cannot_be_found(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    _save_external(path)
    with pytest.raises(ModelError, match=r"'w'.*give the model's path"):
        import_onnx(path.read_bytes())
    with pytest.raises(ModelError, match=r"'w'.*give the model's path"):
        import_onnx(onnx.load(path, load_external_data=False))
    (tmp_path / "weights.bin").write_bytes(b"short")
    with pytest.raises(ModelError, match=r"m\.onnx"):
        import_onnx(path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"weights\.bin"):
        import_onnx(path)


def test_external_data_stay_in_the_models_folder(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    path = tmp_path / "inner" / "m.onnx"
    _save_external(path)
    model = onnx.load(path, load_external_data=False)
    (tmp_path / "secret").write_bytes(bytes(64 * 32 * 4))
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = "../secret"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="external data"):
        import_onnx(path)


def test_interface_keeps_names_order_and_types() -> None:
    nodes = [
        helper.make_node("Cast", ["2.b"], ["out:1"], to=TensorProto.FLOAT16),
        helper.make_node("Not", ["a/x"], ["out:0"]),
    ]
    inputs = [("a/x", TensorProto.BOOL, [3]), f32("2.b", 2, 2), i64("unused", 4)]
    outputs = [("out:1", TensorProto.FLOAT16, [2, 2]), ("out:0", TensorProto.BOOL, [3])]
    imported = import_onnx(make_model(nodes, inputs, outputs))
    assert imported.inputs == [
        TensorInfo("a/x", (3,), "bool"),
        TensorInfo("2.b", (2, 2), "float32"),
        TensorInfo("unused", (4,), "int64"),
    ]
    assert imported.outputs == [
        OutputInfo("out:1", (2, 2), "float16"),
        OutputInfo("out:0", (3,), "bool"),
    ]
    assert len(imported.mod["main"].params) == 3


def test_outputs_that_are_inputs_or_constants() -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["copy"]),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    outputs = [f32("x", 2, 3), f32("copy", 2, 3), f32("c", 2), i64("shape", 2), f32("y", 2, 3)]
    model = make_model(nodes, [f32("x", 2, 3)], outputs, {"c": np.ones(2, np.float32)})
    x = random(2, 3)
    wanted = [x, x, np.ones(2, np.float32), np.array([2, 3]), np.maximum(x, 0)]
    compare(model, {"x": x}, wanted)


def test_only_output_is_an_input() -> None:
    x = random(3)
    compare(make_model([], [f32("x", 3)], [f32("x", 3)]), {"x": x}, [x])


def test_an_output_listed_for_two_uses() -> None:
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b"], axis=0),
        helper.make_node("Add", ["a", "b"], ["c"]),
    ]
    outputs = [f32("b", 2), f32("c", 2), f32("a", 2)]
    compare(make_model(nodes, [f32("x", 4)], outputs), {"x": random(4)})


def test_nodes_in_any_order() -> None:
    model = linear()
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    x = random(2, 64)
    wanted = run_imported(import_onnx(linear()), {"x": x})[0]
    np.testing.assert_array_equal(run_imported(import_onnx(model), {"x": x})[0], wanted)


def test_dead_nodes_are_not_looked_at() -> None:
    model = linear()
    model.graph.node.append(helper.make_node("NoSuchOperator", ["x"], ["nobody"]))
    assert [item.name for item in import_onnx(model).outputs] == ["y"]


def test_import_is_silent(
    capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    nodes = [helper.make_node("MatMul", ["0.x", "w"], ["y"])]
    model = make_model(nodes, [f32("0.x", 2, 3)], [f32("y", 2, 4)], {"w": random(3, 4)})
    import_onnx(model)
    bad = [helper.make_node("Einsum", ["0.x"], ["y"], equation="nonsense->->")]
    with pytest.raises(ModelError):
        import_onnx(make_model(bad, [f32("0.x", 2, 3)], [f32("y", None)]))
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


def test_a_failure_leaves_the_importer_usable() -> None:
    bad = [helper.make_node("DepthToSpace", ["x"], ["y"], blocksize=2, mode="XYZ", name="d")]
    for _ in range(2):
        with pytest.raises(ModelError, match="'d'"):
            import_onnx(make_model(bad, [f32("x", 1, 4, 2, 2)], [f32("y", 1, 1, 4, 4)]))
        assert import_onnx(linear()).outputs[0].shape == (2, 32)


def test_inputs_are_named_without_dots_and_apart() -> None:
    names = ["1.x", "a.b", "a_b"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in names]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    node = helper.make_node("Sum", names, ["y"])
    graph = helper.make_graph([node], "names", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    params = import_onnx(model).mod["main"].params
    assert [str(each.name) for each in params] == ["input_1_x", "a_b", "a_b_1"]


def test_tvm_s_importer_is_not_needed(tmp_path: Path) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([relu], "relu", [x], [y])
    path = tmp_path / "relu.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    code = (
        f"import sys, tvm_hybrid; tvm_hybrid.compile({str(path)!r});"
        "sys.exit('tvm.relax.frontend.onnx' in sys.modules)"
    )
    assert run_python(code).returncode == 0


@pytest.mark.parametrize(
    ("start", "limit", "delta"), [(0.5, 300000.0, 0.7), (5, -400000, -2), (3, 3, 1)]
)
def test_a_long_range_of_constants_is_a_constant(start: float, limit: float, delta: float) -> None:
    """The range is too long for the ordinary folding."""
    dtype = np.float32 if isinstance(start, float) else np.int64
    numbers = [np.array(each, dtype) for each in (start, limit, delta)]
    initializers = [numpy_helper.from_array(each, f"i{i}") for i, each in enumerate(numbers)]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    y = helper.make_tensor_value_info("y", kind, ["n"])
    node = helper.make_node("Range", ["i0", "i1", "i2"], ["y"])
    graph = helper.make_graph([node], "range", [], [y], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    (result,) = run_imported(import_onnx(model), {})
    first, last, step = (each.astype(np.float64) for each in numbers)
    np.testing.assert_array_equal(result, np.arange(first, last, step).astype(dtype))
