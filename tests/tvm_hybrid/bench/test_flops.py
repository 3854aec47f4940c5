"""Operation counts of matrix products and convolutions."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.onnx_builder import OnnxBuilder
from tvm_hybrid import import_onnx
from tvm_hybrid.bench.feeds import ProductSums

from ..onnx_models import two_layers


def test_matrix_products() -> None:
    sums = ProductSums(import_onnx(two_layers(rows=4)).mod)
    assert sorted(sums.lengths) == [8, 16]
    assert sums.flops == 2 * 4 * (8 * 16 + 16 * 5)
    assert [sums.rounded(precision) for precision in ("auto", "f32", "bf16")] == [0, 0, 2]


def test_quantised_tensors() -> None:
    g = OnnxBuilder()
    scale, zero = g.constant(0.1, np.float32), g.constant(3, np.uint8)
    x = g.input("x", (4, 8))
    y = g.node("DequantizeLinear", g.node("QuantizeLinear", x, scale, zero), scale, zero)
    q, step, middle = g.nodes("DynamicQuantizeLinear", 3, g.node("Relu", y))
    g.output(q, (4, 8), np.uint8)
    g.output(step, ())
    g.output(middle, (), np.uint8)
    sums = ProductSums(import_onnx(g.model()).mod)
    assert (sums.quantized, sums.lengths) == (2, [])
    assert ProductSums(import_onnx(two_layers(rows=4)).mod).quantized == 0


def test_a_grouped_convolution() -> None:
    weight = numpy_helper.from_array(np.ones((6, 2, 3, 3), np.float32), "w")
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=2, kernel_shape=[3, 3])
    graph = helper.make_graph(
        [node],
        "conv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4, 8, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 6, 6, 6))],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    sums = ProductSums(import_onnx(model).mod)
    assert sums.lengths == [2 * 3 * 3]
    assert sums.rounded("bf16") == 0
    assert sums.flops == 2 * 18 * 6 * 6 * 6


def test_what_is_float16() -> None:
    g = OnnxBuilder()
    weight = g.constant(np.ones((8, 6)), np.float16)
    y = g.node("Relu", g.node("MatMul", g.input("x", (4, 8), np.float16), weight))
    y = g.node("Softmax", g.node("Transpose", y, perm=[1, 0]), axis=-1)
    g.output(g.node("ReduceMean", y, axes=[0], keepdims=0), (4,), np.float16)
    sums = ProductSums(import_onnx(g.model()).mod)
    assert sums.lengths == [] and sorted(sums.half_lengths) == [4, 6, 8]
    assert sums.halves == 4 and sums.flops == 2 * 4 * 8 * 6
    summing = 8 * 2**-11 * (2 + 6**0.5 + 8**0.5)
    assert sums.tolerance().relative == pytest.approx(summing + 4 * 2**-11 * 2)


def test_what_is_bfloat16() -> None:
    """Finds the bfloat16 operands of products, and bfloat16 results of other operators."""
    g = OnnxBuilder()
    weight = g.constant(np.ones((8, 6)), ml_dtypes.bfloat16)
    y = g.node("MatMul", g.input("x", (4, 8), ml_dtypes.bfloat16), weight)
    g.output(g.node("Exp", y), (4, 6), ml_dtypes.bfloat16)
    sums = ProductSums(import_onnx(g.model()).mod)
    assert sums.lengths == [8] and sums.rounded("auto") >= 3
    assert sums.tolerance().relative >= 4 * 2**-8 * 3**0.5
