"""Gemm becomes MatMul and Add, so that ONNX Runtime's quantiser quantises its weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.quantization.onnx_quantizer import plain_products

X = np.random.default_rng(1).standard_normal((4, 32)).astype(np.float32)


def model(**attributes: Any) -> onnx.ModelProto:
    """x[4, 32] -> Gemm -> Relu -> Gemm without a bias -> y[4, 32]; both share one weight."""
    rng = np.random.default_rng(0)
    g = OnnxBuilder()
    weight = g.constant(rng.standard_normal((32, 32)), np.float32)
    bias = g.constant(rng.standard_normal(32), np.float32)
    hidden = g.node("Relu", g.node("Gemm", g.input("x", (4, 32)), weight, bias, **attributes))
    g.output(g.node("Gemm", hidden, weight, **attributes), (4, 32))
    return g.model()


@pytest.mark.parametrize("transposed", [0, 1])
def test_a_gemm_becomes_a_product_and_a_sum(transposed: int) -> None:
    found = model(transB=transposed)
    (expected,) = ReferenceEvaluator(found).run(None, {"x": X})
    plain_products(found)
    onnx.checker.check_model(found)
    assert [node.op_type for node in found.graph.node] == ["MatMul", "Add", "Relu", "MatMul"]
    assert len(found.graph.initializer) == 2  # one form of the weight
    (result,) = ReferenceEvaluator(found).run(None, {"x": X})
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("attributes", [{"alpha": 0.5}, {"beta": 2.0}])
def test_what_scales_stays(attributes: dict[str, float]) -> None:
    found, before = model(**attributes), model(**attributes)
    plain_products(found)
    assert found == before


def test_what_is_excluded_stays() -> None:
    found = model(transB=1)
    plain_products(found, ("Gemm0",))
    assert [node.op_type for node in found.graph.node] == ["Gemm", "Relu", "MatMul"]
    assert len(found.graph.initializer) == 3  # another node still reads the original weight


def test_narrow_weights_of_gemms(tmp_path: Path) -> None:
    report = tvm_hybrid.quantize(
        model(transB=1), tmp_path / "out.onnx", mode="weights", num_threads=1, seconds=0
    )
    assert report.passed and report.narrow_kernels == 2
