"""Every rewrite compared with ONNX's reference, or with NumPy if ONNX lacks the operator."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tvm_hybrid.errors import InputValueError, UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx

from .models import compare, f32, folded, i64, make_model, onnxruntime_run, operators, random

MICROSOFT = "com.microsoft"


@pytest.mark.sampled
@pytest.mark.parametrize("alpha", [1.0, 0.125])
@pytest.mark.parametrize("flags", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_fused_matmul(flags: tuple[int, int], alpha: float) -> None:
    shapes = [(2, 5, 3) if flags[0] else (2, 3, 5), (2, 4, 5) if flags[1] else (2, 5, 4)]
    node = helper.make_node(
        "FusedMatMul", ["a", "b"], ["y"], domain=MICROSOFT,
        transA=flags[0], transB=flags[1], alpha=alpha,
    )  # fmt: skip
    model = make_model([node], [f32("a", *shapes[0]), f32("b", *shapes[1])], [f32("y", 2, 3, 4)])
    a, b = random(*shapes[0]), random(*shapes[1], seed=1)
    left, right = (np.swapaxes(v, 1, 2) if f else v for v, f in zip((a, b), flags, strict=True))
    compare(model, {"a": a, "b": b}, [np.float32(alpha) * (left @ right)])


def test_a_product_of_two_constants() -> None:
    """Only the second constant is packed."""
    a, b = random(1, 33), random(3, 33, seed=1)
    node = helper.make_node("FusedMatMul", ["a", "b"], ["c"], domain=MICROSOFT, transB=1, alpha=0.5)
    nodes = [node, helper.make_node("Add", ["c", "x"], ["y"])]
    model = make_model(nodes, [f32("x", 1, 3)], [f32("y", 1, 3)], {"a": a, "b": b})
    x = random(1, 3, seed=2)
    compare(model, {"x": x}, [np.float32(0.5) * (a @ b.T) + x])


@pytest.mark.parametrize(
    "attributes",
    [{}, {"transB": 1}, {"transA": 1, "alpha": 0.5}, {"transB": 1, "alpha": 2.0, "beta": 0.25},
     {"beta": 0.0}],
    ids=str,
)  # fmt: skip
def test_gemm_has_no_work_left_on_constants(attributes: dict[str, Any]) -> None:
    weight = random(4, 3) if attributes.get("transB") else random(3, 4)
    shape = (3, 2) if attributes.get("transA") else (2, 3)
    node = helper.make_node("Gemm", ["x", "w", "c"], ["y"], **attributes)
    constants = {"w": weight, "c": random(4, seed=2)}
    model = make_model([node], [f32("x", *shape)], [f32("y", 2, 4)], constants)
    found = operators(compare(model, {"x": random(*shape, seed=1)}))
    assert found["multiply"] == 0
    assert found["permute_dims"] == attributes.get("transA", 0)
    assert found["add"] == (attributes.get("beta") != 0.0)


def test_gemm_of_computed_operands() -> None:
    node = helper.make_node("Gemm", ["a", "b"], ["y"], transB=1, alpha=0.5)
    model = make_model([node], [f32("a", 2, 3), f32("b", 4, 3)], [f32("y", 2, 4)])
    compare(model, {"a": random(2, 3), "b": random(4, 3, seed=1)})


def _gelu(x: NDArray) -> NDArray:
    erf = np.vectorize(math.erf)
    return (x * 0.5 * (1 + erf(x.astype(np.float64) / math.sqrt(2)))).astype(np.float32)


def _gelu_tanh(x: NDArray) -> NDArray:
    x = x.astype(np.float64)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return (0.5 * x * (1 + np.tanh(inner))).astype(np.float32)


@pytest.mark.parametrize(
    ("op_type", "bias", "expected"),
    [
        ("Gelu", False, _gelu),
        ("BiasGelu", True, _gelu),
        ("FastGelu", True, _gelu_tanh),
        ("FastGelu", False, _gelu_tanh),
        ("QuickGelu", False, lambda x: x / (1 + np.exp(-np.float32(1.702) * x))),
    ],
)
def test_contrib_activations(op_type: str, bias: bool, expected: Any) -> None:
    node = helper.make_node(op_type, ["x", "b"] if bias else ["x"], ["y"], domain=MICROSOFT)
    constants = {"b": random(4, seed=1)} if bias else {}
    model = make_model([node], [f32("x", 3, 4)], [f32("y", 3, 4)], constants)
    x = random(3, 4)
    compare(model, {"x": x}, [expected(x + constants["b"] if bias else x)])


def _normalize(x: NDArray, gamma: NDArray, beta: NDArray, epsilon: float) -> NDArray:
    x = x.astype(np.float64)
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return (scaled * gamma + beta).astype(np.float32)


@pytest.mark.parametrize("bias", [False, True])
def test_skip_layer_normalization(bias: bool) -> None:
    constants = {"g": random(6, seed=2), "b": random(6, seed=3), "e": random(6, seed=4)}
    node = helper.make_node(
        "SkipLayerNormalization", ["x", "s", "g", "b", *(["e"] if bias else [])],
        ["y", "", "", "total"], domain=MICROSOFT, epsilon=1e-5,
    )  # fmt: skip
    outputs = [f32("y", 2, 6), f32("total", 2, 6)]
    model = make_model([node], [f32("x", 2, 6), f32("s", 2, 6)], outputs, constants)
    x, s = random(2, 6), random(2, 6, seed=1)
    total = x + s + (constants["e"] if bias else np.float32(0))
    wanted = _normalize(total, constants["g"], constants["b"], 1e-5)
    imported = compare(model, {"x": x, "s": s}, [wanted, total])
    assert operators(imported)["nn.layer_norm"] == 1


def test_simplified_layer_normalization() -> None:
    node = helper.make_node(
        "SimplifiedLayerNormalization", ["x", "g"], ["y"], epsilon=1e-6, axis=-1
    )
    gamma, x = random(6, seed=1), random(2, 6)
    model = make_model([node], [f32("x", 2, 6)], [f32("y", 2, 6)], {"g": gamma})
    wanted = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6) * gamma
    imported = compare(model, {"x": x}, [wanted.astype(np.float32)])
    assert operators(imported) == {"nn.rms_norm": 1}


def _normalization(channels: int) -> dict[str, NDArray]:
    return {
        "gamma": random(channels, seed=11),
        "beta": random(channels, seed=12),
        "mean": random(channels, seed=13),
        "var": np.abs(random(channels, seed=14)) + np.float32(0.5),
    }


@pytest.mark.sampled
@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("groups", [1, 2])
def test_batch_normalization_goes_into_the_convolution(op_type: str, groups: int) -> None:
    weight = random(4, 6 // groups, 3, 3) if op_type == "ConvTranspose" else None
    if weight is None:
        weight = random(6, 4 // groups, 3, 3)
    names = _normalization(6)
    nodes = [
        helper.make_node(op_type, ["x", "w"], ["c"], group=groups, pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", *names], ["y"]),
    ]
    model = make_model(nodes, [f32("x", 1, 4, 5, 5)], [f32("y", 1, 6, 5, 5)], names | {"w": weight})
    # 36 products of values near 1 and a cancelling mean: a few float32 roundings of about 10.
    feeds = {"x": random(1, 4, 5, 5)}
    # ONNX's reference fails for grouped ConvTranspose.
    wanted = onnxruntime_run(model, feeds)
    found = operators(folded(compare(model, feeds, wanted, rtol=1e-4, atol=1e-5)))
    assert found["multiply"] == 0
    assert found["add"] == 1


def test_batch_normalization_alone() -> None:
    names = _normalization(3)
    node = helper.make_node("BatchNormalization", ["x", *names], ["y"])
    model = make_model([node], [f32("x", 2, 3, 4)], [f32("y", 2, 3, 4)], names)
    assert operators(compare(model, {"x": random(2, 3, 4)})) == {"multiply": 1, "add": 1}


def test_a_convolution_with_another_use_keeps_its_weight() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Mul", ["c", "two"], ["y"]),
    ]
    constants = {"w": random(2, 2, 1, 1), "two": np.array(2, np.float32)}
    outputs = [f32("y", 1, 2, 3, 3), f32("c", 1, 2, 3, 3)]
    model = make_model(nodes, [f32("x", 1, 2, 3, 3)], outputs, constants)
    assert operators(compare(model, {"x": random(1, 2, 3, 3)}))["multiply"] == 1


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("pads", "attributes", "folds"),
    [
        ([0, 0, 0, 1, 0, 0, 2, 0], {}, True),
        ([0, 0, 1, 1, 0, 0, 1, 1], {"pads": [0, 1, 0, 1], "strides": [2, 2]}, True),
        ([0, 1, 0, 0, 0, 0, 0, 0], {}, False),
        ([0, 0, -1, 0, 0, 0, 0, 0], {}, False),
        ([0, 0, 1, 1, 0, 0, 1, 1], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, True),
    ],
    ids=str,
)
def test_padding_goes_into_the_convolution(
    pads: list[int], attributes: dict[str, Any], folds: bool
) -> None:
    channels = 3 + pads[1]
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["p"]),
        helper.make_node("Conv", ["p", "w"], ["y"], **attributes),
    ]
    constants = {"pads": np.array(pads, np.int64), "w": random(2, channels, 2, 2)}
    model = make_model(nodes, [f32("x", 1, 3, 5, 5)], [f32("y", *[None] * 4)], constants)
    feeds = {"x": random(1, 3, 5, 5)}
    # ONNX's reference cannot crop.
    wanted = onnxruntime_run(model, feeds)
    found = operators(folded(compare(model, feeds, wanted)))
    assert ("nn.pad" in found or "strided_slice" in found) == (not folds)


@pytest.mark.sampled
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("op_type", ["Conv", "MaxPool", "AveragePool"])
def test_automatic_padding(op_type: str, mode: str) -> None:
    attributes: dict[str, Any] = {"auto_pad": mode, "strides": [2, 3]}
    if op_type != "Conv":
        attributes["kernel_shape"] = [3, 2]
    names = ["x", "w"] if op_type == "Conv" else ["x"]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    constants = {"w": random(2, 2, 3, 2)}
    model = make_model([node], [f32("x", 1, 2, 6, 7)], [f32("y", *[None] * 4)], constants)
    feeds = {"x": random(1, 2, 6, 7)}
    wanted = onnxruntime_run(model, feeds)
    assert operators(compare(model, feeds, wanted))["call_tir"] == 0


@pytest.mark.parametrize(("mode", "value"), [("reflect", 0.0), ("edge", 0.0), ("constant", 1.0)])
def test_other_padding_stays(mode: str, value: float) -> None:
    nodes = [
        helper.make_node("Pad", ["x", "pads", "v"], ["p"], mode=mode),
        helper.make_node("Conv", ["p", "w"], ["y"]),
    ]
    constants = {
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64),
        "v": np.array(value, np.float32),
        "w": random(2, 3, 2, 2),
    }
    model = make_model(nodes, [f32("x", 1, 3, 5, 5)], [f32("y", 1, 2, 6, 6)], constants)
    found = operators(compare(model, {"x": random(1, 3, 5, 5)}))
    assert (found["nn.pad"], found["take"]) == ((1, 0) if mode == "constant" else (0, 2))


def _if(branches: dict[str, onnx.NodeProto], condition: str, **shapes: Any) -> onnx.NodeProto:
    bodies = {
        key: helper.make_graph(
            [node], key, [], [helper.make_tensor_value_info(node.output[0], 1, shapes.get(key))]
        )
        for key, node in branches.items()
    }
    return helper.make_node("If", [condition], ["y"], name="choice", **bodies)


_BRANCHES = {
    "then_branch": helper.make_node("Relu", ["x"], ["inner"]),
    "else_branch": helper.make_node("Neg", ["x"], ["inner"]),
}


@pytest.mark.parametrize("value", [True, False])
def test_if_of_a_constant(value: bool) -> None:
    constants = {"c": np.array(value)}
    model = make_model([_if(_BRANCHES, "c")], [f32("x", 4)], [f32("y", 4)], constants)
    x = random(4)
    imported = compare(model, {"x": x}, [np.maximum(x, 0) if value else -x])
    assert operators(imported) == {"nn.relu" if value else "negative": 1}


@pytest.mark.parametrize("value", [True, False])
def test_if_of_an_input_selects(value: bool) -> None:
    inputs = [f32("x", 4), ("c", TensorProto.BOOL, [])]
    model = make_model([_if(_BRANCHES, "c")], inputs, [f32("y", 4)])
    x = random(4)
    feeds = {"x": x, "c": np.array(value)}
    compare(model, feeds, [np.maximum(x, 0) if value else -x])


def test_if_of_different_ranks_is_refused() -> None:
    scalar = helper.make_node("ReduceSum", ["x"], ["inner"], keepdims=0)
    branches = _BRANCHES | {"else_branch": scalar}
    inputs = [f32("x", 4), ("c", TensorProto.BOOL, [])]
    model = make_model([_if(branches, "c")], inputs, [f32("y", None)])
    with pytest.raises(InputValueError, match=r"If node 'choice'.*graph input 'c'"):
        import_onnx(model)  # a constant value would do
    computed = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["c"], to=TensorProto.BOOL),
    ]
    model = make_model([*computed, _if(branches, "c")], [f32("x", 400)], [f32("y", None)])
    with pytest.raises(UnsupportedOperatorError, match=r"'choice'.*\(400,\) and \(\)"):
        import_onnx(model)


def test_function_bodies_stand_in_for_missing_converters() -> None:
    node = helper.make_node("Swish", ["x"], ["y"], alpha=1.5)
    model = make_model([node], [f32("x", 3, 4)], [f32("y", 3, 4)], opset=24)
    x = random(3, 4)
    imported = compare(model, {"x": x}, [x / (1 + np.exp(np.float32(-1.5) * x))])
    assert operators(imported)["sigmoid"] == 1


def test_attention_of_opset_23() -> None:
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"])
    shape = (1, 2, 5, 8)
    model = make_model([node], [f32(n, *shape) for n in "qkv"], [f32("y", *shape)], opset=23)
    q, k, v = (random(*shape, seed=seed) for seed in range(3))
    scores = (q @ k.swapaxes(-1, -2)).astype(np.float64) / math.sqrt(8)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = (weights / weights.sum(-1, keepdims=True)) @ v
    compare(model, {"q": q, "k": k, "v": v}, [wanted.astype(np.float32)])


def test_local_functions_are_inlined() -> None:
    function = helper.make_function(
        "mine", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    nodes = [helper.make_node("Twice", ["x"], ["y"], domain="mine")]
    model = make_model(nodes, [f32("x", 3)], [f32("y", 3)], functions=[function])
    model.opset_import.append(helper.make_opsetid("mine", 1))
    compare(model, {"x": random(3)})


def test_data_dependent_ranks_are_refused() -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["found"]),
        helper.make_node("Squeeze", ["found"], ["y"], name="drop"),
    ]
    with pytest.raises(UnsupportedOperatorError, match=r"Squeeze node 'drop'.*axes must be given"):
        import_onnx(make_model(nodes, [f32("x", 2, 3)], [i64("y", None)]))
