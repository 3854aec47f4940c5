"""Initializers in other files: large ones are read when they are needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from relay_passes.ir.constants import constants_of, tensor_of
from tvm_hybrid.errors import ModelError
from tvm_hybrid.frontend import import_onnx
from tvm_hybrid.frontend.onnx.reader import read_model as read_model_module
from tvm_hybrid.frontend.onnx.reader.read_model import read_all_but_large, read_model
from tvm_hybrid.frontend.onnx.reader.wire_format import LARGE_BYTES

ROWS, COLUMNS = 512, LARGE_BYTES // 128
W = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
BIAS = np.random.default_rng(1).standard_normal(COLUMNS).astype(np.float32)


def saved(folder: Path, opset: int = 17) -> Path:
    """x @ W + BIAS, both in one file."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, ROWS])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, COLUMNS])]
    weights = [numpy_helper.from_array(W, "w"), numpy_helper.from_array(BIAS, "b")]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    path = folder / "m.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="data", size_threshold=0)
    return path


def constants(path: Path) -> list[np.ndarray]:
    return [each.value.numpy() for each in constants_of(import_onnx(path).mod)]


@pytest.mark.parametrize("opset", [6, 17])
def test_large_initializers_are_read_late(opset: int, tmp_path: Path) -> None:
    path = saved(tmp_path, opset)
    proto, left = read_all_but_large(path)
    found = {tensor.name: len(tensor.raw_data) for tensor in proto.graph.initializer}
    assert found == {"w": 0, "b": BIAS.nbytes}
    assert left.folder == str(tmp_path)
    assert all(tensor.raw_data for tensor in read_model(path).graph.initializer)


def test_they_are_read_right(tmp_path: Path) -> None:
    found = constants(saved(tmp_path))
    assert len(found) == 2
    for array in (W, BIAS):
        assert any(np.array_equal(array, each) for each in found)


@pytest.mark.parametrize("size", [None, 0, 1000, W.nbytes - 1])
def test_a_file_that_is_cut_off_or_gone_is_named(size: int | None, tmp_path: Path) -> None:
    path = saved(tmp_path)
    data = (tmp_path / "data").read_bytes()
    (tmp_path / "data").unlink()
    if size is not None:
        (tmp_path / "data").write_bytes(data[:size])
    with pytest.raises(ModelError, match=r"external data .*cannot be loaded"):
        import_onnx(path)


@pytest.mark.parametrize("beyond", [0, 1 << 32, 5 << 32])
def test_data_beyond_4_gib(beyond: int, tmp_path: Path) -> None:
    path = saved(tmp_path)
    data = (tmp_path / "data").read_bytes()
    with (tmp_path / "data").open("r+b") as file:  # with a hole in front
        file.seek(beyond)
        file.write(data)
    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "offset":
                entry.value = str(int(entry.value) + beyond)
    path.write_bytes(proto.SerializeToString())
    found = constants(path)
    assert any(np.array_equal(W, each) for each in found)


def test_large_data_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr(
        numpy_helper, "to_array", lambda tensor, *_: read.append(len(tensor.raw_data))
    )
    proto, left = read_all_but_large(saved(tmp_path))
    (weight,) = [tensor for tensor in proto.graph.initializer if tensor.name == "w"]
    array = left.array(weight)
    tensor = tensor_of(array)
    assert tensor is not None and tensor.data_ptr() % 64 == 0
    np.testing.assert_array_equal(array, W)
    assert not read and weight.external_data


@pytest.mark.parametrize("location", ["../data", "/etc/hostname"])
def test_files_elsewhere_are_refused(location: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    path = saved(tmp_path / "model")
    (tmp_path / "data").write_bytes((tmp_path / "model" / "data").read_bytes())
    proto = onnx.load(path, load_external_data=False)
    (entry,) = [e for e in proto.graph.initializer[0].external_data if e.key == "location"]
    entry.value = location
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match=r"external data .*cannot be loaded"):
        import_onnx(path)


@pytest.mark.parametrize("length", [W.nbytes - 4, W.nbytes + 4, 0])
def test_a_length_that_does_not_fit_is_refused(length: int, tmp_path: Path) -> None:
    path = saved(tmp_path)
    proto = onnx.load(path, load_external_data=False)
    (entry,) = [e for e in proto.graph.initializer[0].external_data if e.key == "length"]
    entry.value = str(length)
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match=r"external data .*cannot be loaded"):
        import_onnx(path)


def test_a_file_without_external_data_is_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.load(saved(tmp_path))
    onnx.save_model(model, tmp_path / "whole.onnx")
    parsed: list[str] = []
    parse = read_model_module._parse
    monkeypatch.setattr(
        read_model_module, "_parse", lambda data, where: parsed.append(where) or parse(data, where)
    )
    import_onnx(tmp_path / "whole.onnx")
    assert parsed == [str(tmp_path / "whole.onnx")]
