"""Reshapes to sizes that are sums copy nothing, and TVM's pass does not change them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.ir import assert_structural_equal

import tvm_hybrid
from relay_passes.legalize.schedule_generic import legalize_operators
from relay_passes.legalize.shapes import views_of_sums
from tests.onnx_builder import OnnxBuilder
from tests.relay_passes.graphs import module


def reshaped() -> tvm.IRModule:
    """Reshapes x: [n + 5, 8] to [1, n + 5, 2, 4]; `n` is the length of another input."""
    n = tirx.Var("n", "int64")

    def body(x: relax.Expr, _: relax.Expr) -> relax.Expr:
        return relax.op.reshape(x, relax.ShapeExpr([1, n + 5, 2, 4]))

    return module(body, ((n + 5, 8), "float32"), ((n,), "float32"))  # type: ignore[arg-type]


def test_a_view_is_a_reshape_again() -> None:
    after = views_of_sums()(legalize_operators()(reshaped()))
    assert_structural_equal(after["main"], reshaped()["main"])


@pytest.mark.parametrize("shape", [[1, 2, 3, -1, 8], [2, 3, -1, 1, 8], [3, 2, -1, 8], [2, -1, 8]])
def test_what_is_joined_may_take_any_shape(shape: list[int]) -> None:
    build = OnnxBuilder()
    x, y = build.input("x", [2, 3, "n", 8]), build.input("y", [2, 3, 5, 8])
    joined = build.node("Concat", x, y, axis=2)
    build.output(build.node("Reshape", joined, build.constant(np.array(shape))), None)
    model = build.model()
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    assert session.programs
    feeds = {name: np.random.default_rng(n).random((2, 3, n, 8), np.float32) for name, n in
             (("x", 4), ("y", 5))}  # fmt: skip
    (found,) = session.run(None, feeds)
    np.testing.assert_array_equal(found, np.concatenate([*feeds.values()], 2).reshape(shape))
