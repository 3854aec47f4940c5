"""Bad models: each is refused by a typed error that names the culprit, and the process goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tvm_hybrid.errors import InputValueError, ModelError, ShapeError, UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx

from .models import f32, i64, make_model, random


def relu(**extra: Any) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="r")]
    return make_model(nodes, [f32("x", 4)], [f32("y", 4)], **extra)


def one(op_type: str, *inputs: str, outputs: Any = None, **attributes: Any) -> onnx.ModelProto:
    """A model with one node "culprit" over x [2, 3], i [2] and constants."""
    node = helper.make_node(op_type, inputs, ["y"], name="culprit", **attributes)
    constants = {"w": random(5, 7), "c": np.array([2, 2], np.int64), "s": np.array([0.5])}
    return make_model(
        [node], [f32("x", 2, 3), i64("i", 2)], outputs or [f32("y", None, None)], constants
    )


def edited(change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    """The Relu model with a change applied."""
    model = relu()
    change(model)
    return model


def weighted(change: Callable[[onnx.TensorProto], object]) -> onnx.ModelProto:
    """An Add model whose initializer w is changed."""
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    model = make_model(nodes, [f32("x", 4)], [f32("y", 4)], {"w": np.arange(4, dtype=np.float32)})
    change(model.graph.initializer[0])
    return model


def set_opset(version: int) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        model.opset_import[0].version = version

    return change


def sequence_input(model: onnx.ModelProto) -> None:
    info = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, None)
    model.graph.input[0].CopyFrom(info)


def nested(depth: int) -> onnx.ModelProto:
    """Nested Ifs, `depth` levels deep."""
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    node = helper.make_node("Relu", ["x"], ["y"])
    for level in range(depth):
        bodies = {
            key: helper.make_graph([node], key, [], [output])
            for key in ("then_branch", "else_branch")[: 1 if level else 2]
        }
        node = helper.make_node("If", ["p"], ["y"], name=f"level {level}", **bodies)
    inputs = [f32("x", 4), ("p", TensorProto.BOOL, [])]
    return make_model([node], inputs, [f32("y", 4)])


def function_bomb(recursive: bool) -> onnx.ModelProto:
    """Functions, forty deep, that call themselves or each call the next one twice."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    functions = []
    for level in range(1 if recursive else 40):
        callee = "F0" if recursive else f"F{level + 1}"
        body = [
            helper.make_node(callee, ["a"], ["h"], domain="f"),
            helper.make_node(callee, ["h"], ["b"], domain="f"),
        ]
        functions.append(helper.make_function("f", f"F{level}", ["a"], ["b"], body, opsets))
    if not recursive:
        leaf = [helper.make_node("Relu", ["a"], ["b"])]
        functions.append(helper.make_function("f", "F40", ["a"], ["b"], leaf, opsets))
    nodes = [helper.make_node("F0", ["x"], ["y"], domain="f")]
    model = make_model(nodes, [f32("x", 4)], [f32("y", 4)], functions=functions)
    model.opset_import.append(helper.make_opsetid("f", 1))
    return model


def only_functions() -> onnx.ModelProto:
    body = [helper.make_node("Relu", ["a"], ["b"])]
    function = helper.make_function("f", "F", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    return edited(
        lambda m: (m.ClearField("graph"), m.functions.append(function), m.graph.SetInParent())
    )


def growing_loop() -> onnx.ModelProto:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["again"]),
            helper.make_node("Concat", ["v", "v"], ["w"], axis=0),
        ],
        "body",
        [
            helper.make_tensor_value_info("n", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [4]),
        ],
        [
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [None]),
        ],
    )
    node = helper.make_node("Loop", ["count", "", "x"], ["y"], name="culprit", body=body)
    return make_model([node], [f32("x", 4), i64("count")], [f32("y", None)])


def cycle() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="second"),
    ]
    return make_model(nodes, [f32("x", 4)], [f32("b", 4)])


def twice() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["x"], ["y"], name="first"),
        helper.make_node("Neg", ["x"], ["y"], name="second"),
    ]
    return make_model(nodes, [f32("x", 4)], [f32("y", 4)])


def string_input() -> onnx.ModelProto:
    node = helper.make_node("Identity", ["x"], ["y"])
    text = TensorProto.STRING
    return make_model([node], [("x", text, [2])], [("y", text, [2])])


def string_weight() -> onnx.ModelProto:
    nodes = [helper.make_node("Gather", ["names", "i"], ["y"])]
    model = make_model(nodes, [i64("i", 2)], [("y", 0, [2])])
    model.graph.initializer.append(helper.make_tensor("names", TensorProto.STRING, [2], ["a", "b"]))
    return model


_FULL = relu().SerializeToString()
_BYTES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "text": (b"# a markdown file, not a model\n" * 20, "not an ONNX model"),
    "zeros": (bytes(1000), "not an ONNX model"),
    "random": (np.random.default_rng(3).bytes(4096), "not an ONNX model"),
    "pickle": (b"\x80\x04\x95" + bytes(50), "pickle"),
    "zip": (b"PK\x03\x04" + bytes(50), "zip"),
    "elf": (b"\x7fELF" + bytes(50), "shared library"),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "header only": (b"\x08\x08", "no graph"),
    "truncated": (_FULL[:-7], "truncated"),
    "deeply nested": (b"\x3a\x80\x80\x80\x80\x08" + b"\x0a" * 500, "not an ONNX model"),
}


@pytest.mark.parametrize("name", _BYTES)
def test_bad_bytes(name: str, tmp_path: Path) -> None:
    data, words = _BYTES[name]
    with pytest.raises(ModelError, match=words):
        import_onnx(data)
    path = tmp_path / "culprit.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match="culprit.onnx.*" + words):
        import_onnx(path)


@pytest.mark.parametrize("length", range(0, len(_FULL), 3))
def test_every_truncation(length: int) -> None:
    """A truncated model is refused or still means the same."""
    try:
        imported = import_onnx(_FULL[:length])
    except ModelError as error:
        assert str(error)
    else:
        assert [item.name for item in imported.outputs] == ["y"]


def small_network() -> bytes:
    """A model with a convolution, a computed reshape, a Gemm and a recurrent layer."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "cw", "cb"], ["c"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c", "cb", "cb", "cb", "cb"], ["n"]),
        node("Shape", ["n"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"]),
        node("Unsqueeze", ["batch", "axes"], ["first"]),
        node("Concat", ["first", "rest"], ["target"], axis=0),
        node("Reshape", ["n", "target"], ["r"]),
        node("Gemm", ["r", "gw"], ["g"], transB=1),
        node("LSTM", ["s", "w", "r_", "b"], ["y"], hidden_size=4),
        node("Slice", ["g", "axes", "rest2"], ["z"]),
    ]
    constants = {
        "cw": random(2, 1, 3, 3),
        "cb": np.abs(random(2)),
        "zero": np.array(0),
        "axes": np.array([0]),
        "rest": np.array([-1]),
        "rest2": np.array([1]),
        "gw": random(3, 8),
        "w": random(1, 16, 3),
        "r_": random(1, 16, 4),
        "b": random(1, 32),
    }
    inputs = [f32("x", 1, 1, 2, 2), f32("s", 2, 1, 3)]
    outputs = [f32("y", None, None, None, None), f32("z", None, None)]
    return make_model(nodes, inputs, outputs, constants).SerializeToString()


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(8))
def test_flipped_bytes(seed: int) -> None:
    """Damage is either harmless or a ModelError; each happens in about half of the cases."""
    original = small_network()
    random_bytes = np.random.default_rng(seed)
    refused = 0
    for _ in range(40):
        data = bytearray(original)
        for position in random_bytes.integers(len(data), size=2):
            data[position] = random_bytes.integers(256)
        try:
            import_onnx(data)
        except ModelError as error:
            refused += 1
            assert str(error)
    assert 0 < refused < 40


def test_bad_paths(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "missing.onnx", "no model file.*missing.onnx"),
        (tmp_path, "directory"),
        ("nul\0byte", "cannot read|no model file"),
        (str(tmp_path / ("x" * 5000)), "cannot read"),
    ):
        with pytest.raises(ModelError, match=words):
            import_onnx(path)


@pytest.mark.parametrize(
    "value", [None, 3, ["m.onnx"], {}, pytest.param(object(), id="object")], ids=str
)
def test_not_a_model_at_all(value: Any) -> None:
    with pytest.raises(ModelError, match=type(value).__name__):
        import_onnx(value)


_MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], type[ModelError], str]] = {
    "no model": (onnx.ModelProto, ModelError, "IR version is 0"),
    "ir version": (lambda: edited(lambda m: setattr(m, "ir_version", 999)), ModelError, "999"),
    "opset 0": (lambda: edited(set_opset(0)), ModelError, "opset 0"),
    "opset 999": (lambda: edited(set_opset(999)), ModelError, "opset 999"),
    "opset negative": (lambda: edited(set_opset(-5)), ModelError, "opset -5"),
    "no opset": (lambda: edited(lambda m: m.ClearField("opset_import")), ModelError, "opset_i"),
    "no outputs": (
        lambda: edited(lambda m: m.graph.ClearField("output")), ModelError, "no outputs",
    ),
    "no nodes": (lambda: edited(lambda m: m.graph.ClearField("node")), ModelError, "output 'y'"),
    "only functions": (only_functions, ModelError, "no outputs"),
    "input listed twice": (
        lambda: edited(lambda m: m.graph.input.append(m.graph.input[0])), ModelError, "'x'.*2",
    ),
    "output listed twice": (
        lambda: edited(lambda m: m.graph.output.append(m.graph.output[0])), ModelError, "'y'.*2",
    ),
    "nameless input": (
        lambda: edited(lambda m: setattr(m.graph.input[0], "name", "")), ModelError, "no name",
    ),
    "input without type": (
        lambda: edited(lambda m: m.graph.input[0].ClearField("type")), ModelError, "'x'.*type",
    ),
    "sequence input": (lambda: edited(sequence_input), ModelError, "'x' is seq"),
    "string input": (string_input, ModelError, "'x' holds STRING"),
    "string weight": (string_weight, ModelError, "'names' holds STRING"),
    "length of what is no sequence": (
        lambda: one("SequenceLength", "x"), ModelError, "'culprit'.*how many elements.*'x' has",
    ),
    "attribute for which there is no definition": (
        lambda: make_model(
            [helper.make_node("CausalConvWithState", ["x", "w"], ["y", "z"], name="culprit",
                              activation="none of them")],
            [f32("x", 1, 2, 5), f32("w", 2, 1, 3)], [f32("y", None, None, None)], opset=27,
        ), UnsupportedOperatorError, "'culprit'.*definition makes no 'y'",
    ),
    "undefined input": (lambda: one("Relu", "ghost"), ModelError, "'culprit'.*'ghost'"),
    "cycle": (cycle, ModelError, "cycle.*'first'.*'second'"),
    "value made twice": (twice, ModelError, "'second'.*'y'"),
    "node makes an input": (
        lambda: edited(lambda m: m.graph.node[0].output.__setitem__(0, "x")), ModelError, "'x'",
    ),
    "short raw data": (
        lambda: weighted(lambda t: setattr(t, "raw_data", t.raw_data[:7])), ModelError, "'w'",
    ),
    "long raw data": (
        lambda: weighted(lambda t: setattr(t, "raw_data", t.raw_data * 2)), ModelError, "'w'",
    ),
    "no data": (lambda: weighted(lambda t: t.ClearField("raw_data")), ModelError, "'w'"),
    "negative dims": (
        lambda: weighted(lambda t: t.dims.__setitem__(0, -1)), ModelError, "'w'.*negative",
    ),
    "huge dims": (lambda: weighted(lambda t: t.dims.__setitem__(0, 2**62)), ModelError, "'w'"),
    "unknown data type": (
        lambda: weighted(lambda t: setattr(t, "data_type", 99)), ModelError, "'w' holds type 99",
    ),
    "nameless weight": (lambda: weighted(lambda t: t.ClearField("name")), ModelError, "'w'"),
    "unknown operator": (
        lambda: one("Frobnicate", "x"), UnsupportedOperatorError, "Frobnicate node 'culprit'",
    ),
    "unknown domain": (
        lambda: one("Relu", "x", domain="acme.ops"), UnsupportedOperatorError,
        "Relu node 'culprit' \\(domain acme.ops\\)",
    ),
    "unknown contrib operator": (
        lambda: one("MatMulBnb4", "x", domain="com.microsoft"), UnsupportedOperatorError,
        "MatMulBnb4 node 'culprit' \\(domain com.microsoft\\)",
    ),
    "growing loop": (growing_loop, InputValueError, "Loop node 'culprit'"),
    "nested bodies": (lambda: nested(20), UnsupportedOperatorError, "nested.*16"),
    "recursive function": (lambda: function_bomb(True), ModelError, "'F0'.*calls itself"),
    "exploding functions": (lambda: function_bomb(False), ModelError, "nested more than|expands"),
    "too few inputs": (lambda: one("MatMul", "x"), ModelError, "'culprit' has 1 inputs"),
    "too many inputs": (lambda: one("Relu", "x", "x"), ModelError, "'culprit' has 2 inputs"),
    "missing attribute": (lambda: one("Cast", "x"), ModelError, "'culprit' lacks.*'to'"),
    "attribute of a wrong type": (
        lambda: one("Transpose", "x", perm="ab"), ModelError, "'culprit'",
    ),
    "permutation out of range": (
        lambda: one("Transpose", "x", perm=[0, 5]), ModelError, "'culprit'",
    ),
    "axis out of range": (lambda: one("Softmax", "x", axis=7), ModelError, "'culprit'"),
    "cast to nothing": (lambda: one("Cast", "x", to=77), ModelError, "'culprit'"),
    "shapes that do not multiply": (
        lambda: one("MatMul", "x", "w"), ShapeError, "'culprit'.*\\(2, 3\\).*\\(5, 7\\)",
    ),
    "shapes that do not broadcast": (lambda: one("Add", "x", "w"), ShapeError, "'culprit'"),
    "types that do not mix": (lambda: one("Add", "x", "s"), ModelError, "'culprit'"),
    "reshape to another size": (lambda: one("Reshape", "x", "c"), ModelError, "'culprit'"),
    "computed reshape": (
        lambda: one("Reshape", "x", "i"), InputValueError, "'culprit'.*graph input 'i'",
    ),
    "constant without data": (lambda: one("Constant"), ModelError, "'culprit'"),
    "gather out of range": (
        lambda: make_model(
            [helper.make_node("Gather", ["x", "k"], ["y"], name="culprit")], [f32("x", 3)],
            [f32("y", 1)], {"k": np.array([7], np.int64)},
        ), ModelError, "'culprit'.*7",
    ),
    "if without branches": (lambda: one("If", "x"), ModelError, "'culprit'"),
}  # fmt: skip


@pytest.mark.parametrize("name", _MODELS)
def test_bad_model(name: str) -> None:
    make, kind, words = _MODELS[name]
    with pytest.raises(kind, match=words) as caught:
        import_onnx(make())
    assert "Traceback" not in str(caught.value)
