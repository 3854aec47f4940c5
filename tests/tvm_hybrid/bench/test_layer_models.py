"""Convolutions as models: their shapes, and that their numbers stay in range."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tvm_hybrid import import_onnx
from tvm_hybrid.bench.feeds import ProductSums
from tvm_hybrid.bench.layer_models import (
    DTYPES,
    FLOAT32,
    INT8,
    RESNET18,
    Layer,
    layer_input,
    layer_model,
)
from tvm_hybrid.bench.peers.onnx_runtime import literal_session

SMALL = Layer("S1", 9, 16, 24, 3, 2)


def test_the_layers_of_resnet18() -> None:
    """Operations match the publication's shapes; ResNet-18 needs 3.6e9 in all."""
    assert [layer.name for layer in RESNET18] == [f"C{place}" for place in range(1, 13)]
    assert [layer.result_size for layer in RESNET18] == [112, 56, 56, *[28] * 3, *[14] * 3, 7, 7, 7]
    times = (1, 4, 0, 1, 1, 3, 1, 1, 3, 1, 1, 3)  # C3 occurs only in the publication's table
    whole = sum(count * layer.flops for count, layer in zip(times, RESNET18, strict=True))
    assert 3.6e9 < whole < 3.7e9


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", [SMALL, RESNET18[4]])
def test_operations_and_shapes(layer: Layer, dtype: str) -> None:
    model = layer_model(layer, dtype)
    assert ProductSums(import_onnx(model).mod).flops == layer.flops
    (result,) = model.graph.output
    sizes = [size.dim_value for size in result.type.tensor_type.shape.dim]
    assert sizes == [1, layer.filters, layer.result_size, layer.result_size]


def test_quantised_models_have_what_a_quantiser_writes() -> None:
    nodes = [node.op_type for node in layer_model(SMALL, INT8).graph.node]
    assert nodes == ["DequantizeLinear"] * 3 + ["Conv", "Relu", "QuantizeLinear"]
    assert layer_input(SMALL, INT8).dtype == np.uint8
    weights = {array.data_type for array in layer_model(SMALL, INT8).graph.initializer}
    assert {onnx.TensorProto.INT8, onnx.TensorProto.INT32, onnx.TensorProto.UINT8} <= weights


@pytest.mark.parametrize("zero_point", [0, 128])
def test_quantised_results_use_the_range(zero_point: int) -> None:
    """Wrong sums must show: most positive results are neither 0 nor 255."""
    layer = Layer("S2", 9, 16, 24, 3, 1, zero_point)
    session = literal_session(layer_model(layer, INT8))
    (result,) = session.run(None, {"x": layer_input(layer, INT8)})
    assert np.mean((result > 0) & (result < 255)) > 0.2
    assert np.mean(result == 255) < 0.2
    assert len(np.unique(result)) > 100


def test_float_models_are_the_same_every_time() -> None:
    assert layer_model(SMALL, FLOAT32) == layer_model(SMALL, FLOAT32)
    assert np.array_equal(layer_input(SMALL, FLOAT32), layer_input(SMALL, FLOAT32))
    assert str(SMALL) == "9x9x16 -> 24, 3x3 /2"
