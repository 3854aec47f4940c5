"""Our own converters compared with ONNX's reference, and the Relax operators that they emit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax

from tvm_hybrid.frontend import import_onnx

from .models import compare, f32, i64, make_model, operators, random, run_imported

pytestmark = pytest.mark.turns


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", [2, [0, 1], [[-1, 0], [2, -3]], [1]], ids=str)
def test_gather_of_constant_indices(indices: Any, axis: int) -> None:
    node = helper.make_node("Gather", ["x", "i"], ["y"], axis=axis)
    shape = [3, 3, 4] if axis >= 0 else [3, 4, 3]
    model = make_model([node], [f32("x", *shape)], [f32("y", *([None] * (2 + np.ndim(indices))))],
                       {"i": np.array(indices, np.int64)})  # fmt: skip
    compare(model, {"x": random(*shape)})


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_gather_of_fed_indices(dtype: Any) -> None:
    node = helper.make_node("Gather", ["w", "i"], ["y"])
    elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = make_model([node], [("i", elem_type, [4])], [f32("y", 4, 2)], {"w": random(5, 2)})
    compare(model, {"i": np.array([0, 4, -1, -5], dtype)})


def test_a_bad_index_reads_no_foreign_memory() -> None:
    node = helper.make_node("Gather", ["w", "i"], ["y"])
    weight = random(5, 2)
    model = make_model([node], [i64("i", 3)], [f32("y", 3, 2)], {"w": weight})
    feeds = {"i": np.array([2**40, -(2**40), 1], np.int64)}
    assert run_imported(import_onnx(model), feeds)[0].tolist() == weight[[4, 0, 1]].tolist()


@pytest.mark.parametrize(
    ("low", "high", "calls"),
    [
        (-0.5, 0.5, {"clip": 1}),
        (0.0, None, {"maximum": 1}),
        (None, 0.25, {"minimum": 1}),
        (None, None, {}),
        (1.0, -1.0, {"maximum": 1, "minimum": 1}),
        (float("nan"), 0.5, {"minimum": 1}),
    ],
)
def test_clip(low: float | None, high: float | None, calls: dict[str, int]) -> None:
    given = {"low": low, "high": high}
    constants = {key: np.array(v, np.float32) for key, v in given.items() if v is not None}
    names = [key if value is not None else "" for key, value in given.items()]
    model = make_model(
        [helper.make_node("Clip", ["x", *names], ["y"])], [f32("x", 9)], [f32("y", 9)], constants
    )
    x = random(9)
    wanted = x
    if low is not None and low == low:
        wanted = np.maximum(wanted, np.float32(low))
    if high is not None:
        wanted = np.minimum(wanted, np.float32(high))
    assert operators(compare(model, {"x": x}, [wanted])) == calls


def test_clip_by_attributes() -> None:
    node = helper.make_node("Clip", ["x"], ["y"], min=0.0, max=6.0)
    model = make_model([node], [f32("x", 9)], [f32("y", 9)], opset=9)
    x = 5 * random(9)
    assert operators(compare(model, {"x": x}, [np.clip(x, 0, 6)])) == {"clip": 1}


@pytest.mark.parametrize("op_type", ["Min", "Max", "Sum", "Mean"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_variadic_operators_broadcast(op_type: str, count: int) -> None:
    names = ["a", "b", "c"][:count]
    shapes = dict(zip("abc", [(2, 3), (3,), (2, 1)], strict=True))
    node = helper.make_node(op_type, names, ["y"])
    model = make_model([node], [f32(n, *shapes[n]) for n in names], [f32("y", 2, 3)])
    feeds = {name: random(*shapes[name], seed=i) for i, name in enumerate(names)}
    found = operators(compare(model, feeds))
    assert not {"stack", "broadcast_to"} & set(found)


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("form", ["none", "tanh"])
def test_gelu_form_does_not_depend_on_the_opset(form: str, opset: int) -> None:
    """The operator exists since opset 20, but rewrites emit it in models of any opset."""
    domain = {} if opset >= 20 else {"domain": "com.microsoft"}
    op_type = "FastGelu" if form == "tanh" and domain else "Gelu"
    extra = domain or {"approximate": form}
    model = make_model(
        [helper.make_node(op_type, ["x"], ["y"], **extra)], [f32("x", 4)], [f32("y", 4)],
        opset=opset,
    )  # fmt: skip
    assert operators(import_onnx(model)) == {"nn.gelu_tanh" if form == "tanh" else "nn.gelu": 1}


@pytest.mark.parametrize(
    ("exponent", "calls"), [(2.0, {"multiply": 1}), (0.5, {"power": 1}), (3.0, {"power": 1})]
)
def test_pow(exponent: float, calls: dict[str, int]) -> None:
    node = helper.make_node("Pow", ["x", "e"], ["y"])
    constants = {"e": np.array(exponent, np.float32)}
    model = make_model([node], [f32("x", 5)], [f32("y", 5)], constants)
    assert operators(compare(model, {"x": np.abs(random(5))})) == calls


def test_pow_that_broadcasts_the_base() -> None:
    node = helper.make_node("Pow", ["x", "e"], ["y"])
    constants = {"e": np.array([[2.0]], np.float32)}
    model = make_model([node], [f32("x", 5)], [f32("y", 1, 5)], constants)
    compare(model, {"x": np.abs(random(5))})


@pytest.mark.parametrize(
    "bounds",
    [
        {"s": [1], "e": [2**63 - 1], "a": [1]},
        {"s": [-3], "e": [-1], "a": [-1]},
        {"s": [0, 1], "e": [9, 3], "a": [2, 0], "t": [2, 1]},
        {"s": [-1, 3], "e": [-(2**63), 0], "a": [0, 1], "t": [-1, -2]},
        {"s": [3], "e": [1], "a": [1]},
        {"s": [0, 1, 2]} | {"e": [2, 3, 4]},
    ],
    ids=str,
)
def test_slice(bounds: dict[str, list[int]]) -> None:
    constants = {key: np.array(value, np.int64) for key, value in bounds.items()}
    node = helper.make_node("Slice", ["x", *constants], ["y"])
    x = random(4, 5, 6)
    starts, ends = bounds["s"], bounds["e"]
    index = [slice(None)] * 3
    for axis, *bound in zip(
        bounds.get("a", range(3)), starts, ends, bounds.get("t", [1] * 3), strict=False
    ):
        index[axis] = slice(*bound)
    wanted = x[tuple(index)]
    model = make_model([node], [f32("x", 4, 5, 6)], [f32("y", *wanted.shape)], constants)
    if wanted.size:
        compare(model, {"x": x}, [wanted])
    else:
        assert import_onnx(model).outputs[0].shape == wanted.shape


def test_slice_by_attributes() -> None:
    node = helper.make_node("Slice", ["x"], ["y"], starts=[1, -2], ends=[3, 99], axes=[0, 1])
    x = random(4, 5)
    model = make_model([node], [f32("x", 4, 5)], [f32("y", 2, 2)], opset=9)
    compare(model, {"x": x}, [x[1:3, -2:]])


def test_integer_constants_keep_their_width() -> None:
    big = np.array([2**40, -(2**40)], np.int64)
    node = helper.make_node("Add", ["x", "c"], ["y"])
    model = make_model([node], [i64("x", 2)], [i64("y", 2)], {"c": big})
    compare(model, {"x": np.array([1, 1], np.int64)}, [big + 1])


def test_views_of_constants_are_constants() -> None:
    """The bias of a convolution is reshaped at import."""
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"])
    constants = {"w": random(2, 3, 1, 1), "b": random(2)}
    model = make_model([node], [f32("x", 1, 3, 4, 4)], [f32("y", 1, 2, 4, 4)], constants)
    imported = compare(model, {"x": random(1, 3, 4, 4)})
    assert operators(imported) == {"nn.conv2d": 1, "add": 1}


def test_reductions_and_comparisons_keep_bool() -> None:
    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["p"]),
        helper.make_node("Cast", ["p"], ["y"], to=TensorProto.INT32),
    ]
    outputs = [("y", TensorProto.INT32, [5]), ("p", TensorProto.BOOL, [5])]
    constants = {"zero": np.array(0, np.float32)}
    compare(make_model(nodes, [f32("x", 5)], outputs, constants), {"x": random(5)})


def test_main_is_one_dataflow_block() -> None:
    """Fusion and memory planning work only on dataflow blocks."""
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Neg", ["h"], ["y"])]
    mod = import_onnx(make_model(nodes, [f32("x", 2)], [f32("y", 2)])).mod
    assert isinstance(mod, tvm.IRModule)
    blocks = mod["main"].body.blocks
    assert [isinstance(block, relax.DataflowBlock) for block in blocks] == [True]
