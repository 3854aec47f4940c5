"""A small model with much metadata."""

from __future__ import annotations

import numpy as np
import onnx

from tests.onnx_builder import OnnxBuilder

WIDTH = 16


def talkative(rows: int | str = "batch") -> onnx.ModelProto:
    """x: float32[rows, WIDTH] -> a product of x, and its relu."""
    build = OnnxBuilder()
    weight = np.random.default_rng(0).standard_normal((WIDTH, 8))
    product = build.node("MatMul", build.input("x", [rows, WIDTH]), build.constant(weight, "f4"))
    build.output(build.node("Relu", product), [rows, 8])
    build.output(product, [rows, 8])
    model = build.model()
    model.producer_name, model.domain, model.model_version = "someone", "some.where", 7
    model.doc_string, model.graph.doc_string, model.graph.name = "a model", "a graph", "its name"
    for key in ("names", "stride"):
        model.metadata_props.add(key=key, value=f"value of {key}")
    return model


def sample(rows: int = 3) -> np.ndarray:
    """Values for x."""
    return np.random.default_rng(1).standard_normal((rows, WIDTH)).astype(np.float32)
