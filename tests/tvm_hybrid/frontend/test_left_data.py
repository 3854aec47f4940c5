"""Data of large initializers, read one by one from the model's file, and forms that are not."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from relay_passes.ir.constants import constants_of
from tvm_hybrid.errors import ModelError
from tvm_hybrid.frontend import import_onnx
from tvm_hybrid.frontend.onnx.reader.read_model import read_all_but_large
from tvm_hybrid.frontend.onnx.reader.wire_format import (
    LARGE_BYTES,
    WireError,
    fields,
    message,
    read_varint,
    varint,
    without_large_data,
)

ROWS, COLUMNS = 512, LARGE_BYTES // 1024
W = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
UNKNOWN = message(99, b"what nobody knows")
DAMAGED = bytes([99 << 3 & 127 | 128 | 2, 6, 255, 255, 3])  # a field that is longer than the data


def model(*tensors: TensorProto, opset: int = 17) -> onnx.ModelProto:
    """x[1, ROWS] @ w, and a Relu."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, ROWS])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, COLUMNS])]
    weights = tensors or (numpy_helper.from_array(W, "w"),)
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def parts(proto: onnx.ModelProto) -> tuple[bytes, bytes, bytes]:
    """Serialised: all but the graph, the graph without initializers, and the initializer."""
    rest, graph = onnx.ModelProto(), onnx.GraphProto()
    rest.CopyFrom(proto)
    rest.ClearField("graph")
    graph.CopyFrom(proto.graph)
    del graph.initializer[:]
    (tensor,) = proto.graph.initializer
    return rest.SerializeToString(), graph.SerializeToString(), tensor.SerializeToString()


def found(data: bytes | Path) -> np.ndarray:
    """The imported weight."""
    (constant,) = [each for each in constants_of(import_onnx(data).mod) if each.value.ndim == 2]
    return constant.value.numpy()


@pytest.mark.parametrize("given", [bytes, Path])
def test_large_data_stay_in_the_file(given: type, tmp_path: Path) -> None:
    whole = model()
    whole.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    data = whole.SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data)
    proto, left = read_all_but_large(data if given is bytes else tmp_path / "m.onnx")
    (tensor,) = proto.graph.initializer
    assert not tensor.raw_data and list(tensor.dims) == [ROWS, COLUMNS]
    with left:
        np.testing.assert_array_equal(left.array(tensor), W)
    np.testing.assert_array_equal(found(data if given is bytes else tmp_path / "m.onnx"), W)
    tensor.raw_data = W.tobytes()
    assert proto == whole


def test_small_data_and_other_forms_are_parsed() -> None:
    small = numpy_helper.from_array(W[:, : COLUMNS // 4], "w")
    listed = helper.make_tensor("w", TensorProto.FLOAT, W.shape, W.flatten())
    twice = model()
    twice.graph.initializer[0].float_data.append(1)
    for proto in (model(small), model(listed), twice):
        read, left = read_all_but_large(proto.SerializeToString())
        with left:
            assert read == proto


@pytest.mark.parametrize("kind", ["float16", "float64", "int8", "uint16", "int64", "bool"])
def test_every_type_is_read_alike(kind: str) -> None:
    values = (W[:, :, None] * np.ones(8)).astype(kind)
    proto, left = read_all_but_large(
        model(numpy_helper.from_array(values, "w")).SerializeToString()
    )
    with left:
        array = left.array(proto.graph.initializer[0])
    assert not proto.graph.initializer[0].raw_data
    np.testing.assert_array_equal(array, values)
    assert array.dtype == values.dtype


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.BFLOAT16, TensorProto.FLOAT8E5M2])
def test_types_that_numpy_lacks_are_read_alike(kind: int) -> None:
    values = np.random.default_rng(1).integers(-8, 8, (ROWS, 8 * COLUMNS))
    whole = helper.make_tensor("w", kind, values.shape, values.flatten())
    whole = numpy_helper.from_array(numpy_helper.to_array(whole), "w")
    proto, left = read_all_but_large(model(whole).SerializeToString())
    with left:
        array = left.array(proto.graph.initializer[0])
    assert not proto.graph.initializer[0].raw_data
    np.testing.assert_array_equal(array, numpy_helper.to_array(whole))


FORMS: dict[str, Callable[[bytes, bytes, bytes], bytes]] = {
    "fields that nobody knows": lambda rest, graph, tensor: (
        UNKNOWN + rest + message(7, graph + UNKNOWN + message(5, UNKNOWN + tensor + UNKNOWN))
    ),
    "the graph before all else": lambda rest, graph, tensor: (
        message(7, graph + message(5, tensor)) + rest
    ),
    "a graph in two parts": lambda rest, graph, tensor: (
        message(7, message(5, tensor)) + rest + message(7, graph)
    ),
    "data twice": lambda rest, graph, tensor: (
        rest + message(7, graph + message(5, message(9, bytes(W.nbytes)) + tensor))
    ),
    "a group": lambda rest, graph, tensor: (
        rest + varint(99 << 3 | 3) + varint(99 << 3 | 4) + message(7, graph + message(5, tensor))
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_other_ways_to_write_a_model(form: str) -> None:
    data = FORMS[form](*parts(model()))
    wanted = numpy_helper.to_array(onnx.load_from_string(data).graph.initializer[0])
    np.testing.assert_array_equal(found(data), wanted)


@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
def test_a_model_that_is_cut_off_is_refused(share: float, tmp_path: Path) -> None:
    data = model().SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ModelError, match="damaged or truncated"):
        import_onnx(path)


def test_damaged_fields_are_refused() -> None:
    rest, graph, tensor = parts(model())
    for damaged in (
        rest + message(7, graph + message(5, tensor + DAMAGED)),
        rest + message(7, graph + message(5, tensor) + DAMAGED),
        rest + message(7, graph + message(5, tensor)) + DAMAGED,
        rest + message(7, graph + message(5, tensor)) + b"\xff" * 11,
    ):
        with pytest.raises(WireError):
            without_large_data(io.BytesIO(damaged), len(damaged))
        with pytest.raises(ModelError, match="damaged or truncated"):
            import_onnx(damaged)


def test_functions_are_expanded_without_the_data() -> None:
    proto = model()
    nodes = [helper.make_node("MatMul", ["a", "b"], ["c"])]
    opsets = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function("own", "F", ["a", "b"], ["c"], nodes, opsets))
    proto.opset_import.append(helper.make_opsetid("own", 1))
    proto.graph.node[0].op_type, proto.graph.node[0].domain = "F", "own"
    np.testing.assert_array_equal(found(proto.SerializeToString()), W)


def test_outputs_without_a_shape_are_inferred_without_the_data() -> None:
    proto = model()
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    declared = import_onnx(proto.SerializeToString(), keep_dynamic=True).declared
    assert declared is not None and declared.outputs[0].shape == (1, COLUMNS)


def test_data_that_do_not_fit_the_shape_are_named() -> None:
    proto = model()
    proto.graph.initializer[0].dims[0] += 1
    with pytest.raises(ModelError, match="initializer 'w': the data do not fit shape"):
        import_onnx(proto.SerializeToString())


def test_two_large_initializers_of_one_name_are_refused() -> None:
    weight = numpy_helper.from_array(W, "w")
    with pytest.raises(ModelError, match="listed twice"):
        import_onnx(model(weight, weight).SerializeToString())


def test_a_file_that_shrinks_meanwhile_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model().SerializeToString())
    proto, left = read_all_but_large(path)
    path.write_bytes(b"")
    with left, pytest.raises(ValueError, match="cut off"):
        left.array(proto.graph.initializer[0])


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**31, 2**63])
def test_numbers_are_written_as_they_are_read(value: int) -> None:
    assert read_varint(io.BytesIO(varint(value))) == value


def test_fields_are_found_in_their_places() -> None:
    data = varint(1 << 3) + varint(300) + message(2, b"abc") + varint(3 << 3 | 5) + bytes(4)
    file = io.BytesIO(data)
    assert [(f.number, data[f.start : f.end]) for f in fields(file, 0, len(data))] == [
        (1, varint(300)),
        (2, b"abc"),
        (3, bytes(4)),
    ]
