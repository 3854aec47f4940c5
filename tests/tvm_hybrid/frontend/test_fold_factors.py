"""Constants per channel and padding of ONNX models are folded into neighbouring products."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from tvm_hybrid.frontend import ImportedModel, import_onnx

from . import models
from .models import compare, f32, folded, make_model, onnxruntime_run, random, run_imported

Constants = dict[str, NDArray]


def node(op_type: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), [output], **attributes)


def operators(imported: ImportedModel) -> Counter[str]:
    """Counts each Relax operator that remains."""
    return models.operators(folded(imported))


def check(
    nodes: list[onnx.NodeProto],
    shape: tuple[int, ...],
    constants: Constants,
    wanted: dict[str, int],
) -> None:
    """Checks ONNX Runtime's results and that only the operators in `wanted` remain."""
    model = make_model(nodes, [f32("x", *shape)], [f32("y", *[None] * len(shape))], constants)
    feeds = {"x": random(*shape)}
    imported = folded(import_onnx(model))
    (result,), (expected,) = run_imported(imported, feeds), onnxruntime_run(model, feeds)
    # Weights are rounded once more: 2^-23 of sums of at most 30 products of values near 1.
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=3e-5)
    assert models.operators(imported) == wanted


def channels(count: int, seed: int, *after: int) -> NDArray:
    return (random(count, seed=seed) + 3).reshape(count, *after)


@pytest.mark.parametrize("groups", [1, 2])
def test_before_a_convolution(groups: int) -> None:
    nodes = [
        node("Relu", "x", "r"),
        node("Mul", "s r", "m"),
        node("Add", "m t", "a"),
        node("Conv", "a w b", "y", group=groups),
    ]
    constants = {"s": channels(4, 1, 1, 1), "t": np.array([0.5], np.float32)}
    constants |= {"w": random(6, 4 // groups, 2, 3), "b": random(6)}
    check(nodes, (2, 4, 5, 6), constants, {"nn.relu": 1, "nn.conv2d": 1, "add": 1})


def test_a_shift_stays_before_padding_and_a_factor_does_not() -> None:
    nodes = [
        node("Sub", "x t", "a"),
        node("Div", "a s", "m"),
        node("Conv", "m w", "y", pads=[0, 1, 0, 0]),
    ]
    constants = {"s": channels(4, 1, 1, 1), "t": channels(4, 2, 1, 1), "w": random(4, 4, 2, 2)}
    check(nodes, (1, 4, 5, 5), constants, {"subtract": 1, "nn.conv2d": 1})


def test_a_value_read_twice_keeps_its_factor() -> None:
    nodes = [node("Mul", "x s", "m"), node("Conv", "m w", "c"), node("Add", "c m", "y")]
    constants = {"s": channels(4, 1, 1, 1), "w": random(4, 4, 1, 1)}
    check(nodes, (1, 4, 5, 5), constants, {"multiply": 1, "nn.conv2d": 1, "add": 1})


def test_a_factor_that_widens_stays() -> None:
    nodes = [node("Mul", "x s", "m"), node("Conv", "m w", "y")]
    constants = {"s": channels(4, 1, 1, 1)[None] * np.ones((2, 1, 1, 1), np.float32)}
    check(nodes, (1, 4, 5, 5), constants | {"w": random(4, 4, 1, 1)},
          {"multiply": 1, "nn.conv2d": 1})  # fmt: skip


@pytest.mark.parametrize("op_type", ["Gemm", "MatMul"])
def test_around_a_matrix_product(op_type: str) -> None:
    shift = [node("Add", "m t", "a")] if op_type == "Gemm" else [node("Identity", "m", "a")]
    nodes = [
        node("Mul", "x s", "m"),
        *shift,
        node(op_type, "a w", "p"),
        node("Div", "p d", "q"),
        node("Sub", "u q", "y"),
    ]
    constants = {"s": channels(5, 1), "t": channels(5, 2), "d": channels(3, 3)[None]}
    constants |= {"u": channels(3, 4), "w": random(5, 3)}
    check(nodes, (7, 5), constants, {"matmul": 1, "add": 1})


@pytest.mark.parametrize("op_type", ["Conv", "MatMul"])
def test_the_last_factor_of_an_activation_stays(op_type: str) -> None:
    nodes = [
        node("Div", "x root", "d"),
        node("Erf", "d", "e"),
        node("Add", "e one", "f"),
        node("Mul", "x f", "g"),
        node("Mul", "g half", "h"),
        node(op_type, "h w", "y"),
    ]
    numbers = {"root": np.sqrt(2), "one": 1, "half": 0.5}
    constants = {name: np.array(value, np.float32) for name, value in numbers.items()}
    shape, weight = ((1, 4, 3, 3), (2, 4, 1, 1)) if op_type == "Conv" else ((3, 4), (4, 2))
    product = "nn.conv2d" if op_type == "Conv" else "matmul"
    check(nodes, shape, constants | {"w": random(*weight)},
          {"nn.gelu": 1, product: 1})  # fmt: skip


def test_a_shared_weight_stays_single() -> None:
    nodes = [node("MatMul", "x w", "p"), node("Mul", "p s", "q"), node("MatMul", "q w", "y")]
    constants = {"s": channels(4, 1), "w": random(4, 4)}
    check(nodes, (3, 4), constants, {"matmul": 2, "multiply": 1})


def test_a_hard_sigmoid_shares_its_line_with_the_convolution() -> None:
    nodes = [node("Conv", "x w b", "c"), node("HardSigmoid", "c", "y", alpha=0.3)]
    check(nodes, (1, 4, 1, 1), {"w": random(6, 4, 1, 1), "b": random(6)},
          {"nn.conv2d": 1, "add": 1, "clip": 1})  # fmt: skip


@pytest.mark.parametrize(
    ("pool", "before", "added", "folded"),
    [
        ("MaxPool", "Relu", 0.0, True),
        ("MaxPool", "Identity", -np.inf, True),
        ("MaxPool", "Identity", 0.0, False),
        ("MaxPool", "Relu", 1.0, False),
        ("AveragePool", "Identity", 0.0, True),
        ("AveragePool", "Identity", 1.0, False),
    ],
)
def test_padding_goes_into_a_pool(pool: str, before: str, added: float, folded: bool) -> None:
    nodes = [
        node(before, "x", "r"),
        node("Pad", "r pads v", "p"),
        node(pool, "p", "y", kernel_shape=[3, 2], strides=[2, 2]),
    ]
    constants = {"pads": np.array([0, 0, 1, 0, 0, 0, 2, 1]), "v": np.array(added, np.float32)}
    wanted = {"nn.max_pool2d" if pool == "MaxPool" else "nn.avg_pool2d": 1}
    wanted |= {"nn.relu": 1} if before == "Relu" else {}
    check(nodes, (1, 3, 5, 7), constants, wanted | ({} if folded else {"nn.pad": 1}))


def test_padding_of_some_axes() -> None:
    nodes = [node("Pad", "x pads v axes", "p"), node("Conv", "p w", "y")]
    constants = {"pads": np.array([2, 1, 0, 1]), "v": np.array(0, np.float32)}
    constants |= {"axes": np.array([-1, 2]), "w": random(2, 3, 2, 2)}
    model = make_model(nodes, [f32("x", 1, 3, 5, 5)], [f32("y", *[None] * 4)], constants, opset=18)
    feeds = {"x": random(1, 3, 5, 5)}
    imported = compare(model, feeds, onnxruntime_run(model, feeds))
    assert operators(imported) == {"nn.conv2d": 1}


@pytest.mark.parametrize(
    ("op_type", "inputs", "neutral", "gone"),
    [
        ("Mul", "c x", [1], True),
        ("Div", "x c", [[1, 1, 1]], True),
        ("Add", "x c", 0, True),
        ("Sub", "x c", [0, 0, 0], True),
        ("Pow", "x c", 1, True),
        ("Sub", "c x", 0, False),
        ("Mul", "x c", [1, 1, 2], False),
        ("Mul", "x c", [[[1]]], False),
    ],
    ids=str,
)
def test_neutral_constants(op_type: str, inputs: str, neutral: Any, gone: bool) -> None:
    nodes = [node(op_type, inputs, "h"), node("Relu", "h", "y")]
    constants = {"c": np.array(neutral, np.float32)}
    rank = max(2, np.ndim(neutral))
    model = make_model(nodes, [f32("x", 2, 3)], [f32("y", *[None] * rank)], constants)
    found = operators(compare(model, {"x": np.abs(random(2, 3))}))
    assert (found == {"nn.relu": 1}) == gone


@pytest.mark.parametrize("factor", [3e38, np.inf, 1e-40])
def test_factors_with_which_sums_have_no_room_stay(factor: float) -> None:
    """x @ w is 0, while sums of products with w * 3e38 give inf - inf."""
    constants = {"s": np.array([factor], np.float32), "w": np.ones((6, 3), np.float32)}
    for nodes in (
        [node("MatMul", "x w", "p"), node("Mul", "s p", "y")],
        [node("Mul", "x s", "p"), node("MatMul", "p w", "y")],
    ):
        model = make_model(nodes, [f32("x", 2, 6)], [f32("y", None, None)], constants)
        assert operators(import_onnx(model)) == {"multiply": 1, "matmul": 1}


def test_channels_that_are_turned_off_stop_no_fold() -> None:
    nodes = [node("Conv", "x w", "p"), node("Mul", "p s", "y")]
    constants = {"w": random(3, 4, 1, 1), "s": np.array([1, 0, 1e-40], np.float32).reshape(3, 1, 1)}
    check(nodes, (1, 4, 5, 5), constants, {"nn.conv2d": 1})


def test_other_sizes_than_the_channels_may_be_dynamic() -> None:
    nodes = [
        node("Mul", "x s", "m"),
        node("Conv", "m w", "c"),
        node("Mul", "c f", "f1"),
        node("Add", "f1 t", "y"),
    ]
    constants = {"s": channels(4, 1, 1, 1), "w": random(6, 4, 2, 3), "f": channels(6, 1, 1, 1)}
    constants |= {"t": np.array([0.5], np.float32)}
    model = make_model(nodes, [f32("x", "n", 4, "h", "w")], [f32("y", *[None] * 4)], constants)
    dynamic = import_onnx(model, keep_dynamic=True)
    assert operators(dynamic) == {"nn.conv2d": 1, "add": 1}
    # The number of dynamic channels is unknown at compile time.
    model = make_model(nodes[2:3], [f32("c", "n", "c", 2, 2)], [f32("f1", *[None] * 4)], constants)
    assert operators(import_onnx(model, keep_dynamic=True))["multiply"] == 1
