"""Norms of heads whose number is only known as a multiple of the number of tokens."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tests.onnx_builder import OnnxBuilder
from tvm_hybrid import InferenceSession

from .attention_forms import ATOL, RTOL
from .models import random

SIZE = 16


@pytest.mark.parametrize("norm", ["RMSNormalization", "LayerNormalization"])
@pytest.mark.parametrize("heads", [3, 4])
def test_norms_of_heads_before_a_product(norm: str, heads: int) -> None:
    """Norms as in decoders: [batch, heads * n, size] between two reshapes."""
    build = OnnxBuilder(23)
    x = build.input("x", ["batch", "n", heads * SIZE])
    apart = build.node("Reshape", x, build.constant([0, -1, SIZE]))
    normal = build.node(norm, apart, build.constant(random(SIZE)))
    rows = build.node("Reshape", normal, build.constant([0, -1, heads * SIZE]))
    weight = build.constant(random(heads * SIZE, 24, seed=1) / 8)
    build.output(build.node("MatMul", rows, weight), None)
    model = build.model()
    session, reference = InferenceSession(model, num_threads=1), ReferenceEvaluator(model)
    assert len(session.programs) == 1
    for batch, n in ((1, 1), (2, 5), (3, 17)):
        feeds = {"x": random(batch, n, heads * SIZE, seed=2)}
        np.testing.assert_allclose(
            session.run(None, feeds)[0], reference.run(None, feeds)[0], RTOL, ATOL
        )
