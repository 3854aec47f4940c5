"""Pools with ceil_mode have the sizes and values of ONNX Runtime, statically and dynamically."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.bench.peers.onnx_runtime import literal_session
from tvm_hybrid.errors import UnsupportedOperatorError

pytestmark = pytest.mark.turns

# Kernel, stride, dilation and pads; the last window begins in the padding in some cases only.
WINDOWS = [
    *itertools.product([(2, 2, 1)], [(0, 0), (1, 1), (0, 1)]),
    *itertools.product([(3, 2, 1), (3, 2, 2)], [(0, 0), (1, 1), (2, 2)]),
    *itertools.product([(3, 3, 1), (4, 5, 1)], [(1, 1), (0, 1)]),
    ((1, 2, 1), (0, 0)),
]
DYNAMIC = [WINDOWS[place] for place in (0, 1, 7, 9, 13)]  # one of each form
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("MaxPool", {}),
    ("LpPool", {"p": 2}),
    ("AveragePool", {"count_include_pad": 0}),
    ("AveragePool", {"count_include_pad": 1}),
]


def pools(shape: Sequence[int | str], windows: list[Any]) -> onnx.ModelProto:
    """All kinds of pools with all these windows, along one axis."""
    build = OnnxBuilder(opset=22)
    x = build.input("x", shape)
    for (op, attributes), ((kernel, stride, dilation), pads) in itertools.product(KINDS, windows):
        y = build.node(
            op, x, kernel_shape=[kernel], strides=[stride], dilations=[dilation], pads=pads,
            ceil_mode=1, **attributes,
        )  # fmt: skip
        build.output(y, None)
    return build.model()


def check(program: Any, model: onnx.ModelProto, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).uniform(1, 2, shape).astype(np.float32)
    wanted = literal_session(model).run(None, {"x": x})
    for number, (result, want) in enumerate(zip(program.run(x), wanted, strict=True)):
        assert tuple(result.shape) == want.shape, (shape, number)
        # Sums of four products at most, two divisions and a root.
        np.testing.assert_allclose(
            result.numpy(), want, rtol=8 * 2.0**-23, err_msg=f"{shape} {number}"
        )


@pytest.mark.parametrize(("extent", "windows"), [(5, WINDOWS), (8, DYNAMIC)])
def test_static_sizes(extent: int, windows: list[Any]) -> None:
    model = pools((1, 2, extent), windows)
    check(tvm_hybrid.compile(model, num_threads=1, records=[]), model, (1, 2, extent))


def test_dynamic_sizes() -> None:
    model = pools((1, 2, "n"), DYNAMIC)
    program = tvm_hybrid.compile(model, num_threads=1, records=[], keep_dynamic=True)
    for extent in (5, 6, 7, 8, 11, 12):
        check(program, model, (1, 2, extent))


def test_two_axes_and_a_declared_shape_that_is_another() -> None:
    """ONNX infers [2, 3, 5, 6]; ONNX Runtime only warns about a different size."""
    window = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1] * 4, "ceil_mode": 1}
    node = helper.make_node("AveragePool", ["x"], ["a"], **window)
    places = helper.make_node("MaxPool", ["x"], ["b", "c"], **window)
    shapes = {"a": (2, 3, 5, 6), "b": (2, 3, 5, 6), "c": None}
    outputs = [
        helper.make_tensor_value_info(
            name, TensorProto.INT64 if name == "c" else TensorProto.FLOAT, shape
        )
        for name, shape in shapes.items()
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3, 7, 10))
    graph = helper.make_graph([node, places], "pools", [x], outputs)
    opsets = [helper.make_opsetid("", 19)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    feeds = {"x": np.random.default_rng(0).random((2, 3, 7, 10), np.float32)}
    results = tvm_hybrid.InferenceSession(model, num_threads=1, records=[]).run(None, feeds)
    for result, want in zip(results, literal_session(model).run(None, feeds), strict=True):
        assert result.shape == want.shape == (2, 3, 4, 6)
        np.testing.assert_allclose(result, want, rtol=4 * 2.0**-23)


def test_places_of_a_dynamic_extent_are_refused() -> None:
    build = OnnxBuilder(opset=19)
    window = {"kernel_shape": [3], "strides": [3], "pads": [1, 1], "ceil_mode": 1}
    for each in build.nodes("MaxPool", 2, build.input("x", (1, 1, "n")), **window):
        build.output(each, None)
    with pytest.raises(UnsupportedOperatorError, match=r"'MaxPool0': .*depend on a dynamic extent"):
        tvm_hybrid.compile(build.model(), num_threads=1, keep_dynamic=True)


@pytest.mark.parametrize(
    ("op", "opset", "scale"), [("Resize", 13, 1.3), ("Resize", 13, 4.2), ("Upsample", 9, 2.6)]
)
@pytest.mark.parametrize("shape", [(1, 2, 15, 10), (1, 2, "h", 10)])
def test_scales_are_multiplied_in_float32(
    op: str, opset: int, scale: float, shape: tuple[int | str, ...]
) -> None:
    """ONNX infers the size from a product in float64."""
    build = OnnxBuilder(opset=opset)
    scales = build.constant([1, 1, scale, scale], np.float32)
    region = [""] if op == "Resize" else []
    y = build.node(op, build.input("x", shape), *region, scales, mode="nearest")
    build.output(build.node("Relu", y), None)
    program = tvm_hybrid.compile(build.model(), num_threads=1, records=[], keep_dynamic=True)
    x = np.random.default_rng(0).random((1, 2, 15, 10), np.float32)
    (wanted,) = literal_session(build.model()).run(None, {"x": x})
    np.testing.assert_array_equal(program.run(x)[0].numpy(), wanted)
