"""Models of 8-bit integers with open sizes: one program, the bits of programs for known sizes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder

WIDTH = 48
SIZES = [(1, 1), (1, 2), (2, 7), (1, 33), (3, 40)]


class Dynamic(OnnxBuilder):
    """Products by DynamicQuantizeLinear and MatMulInteger."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)

    def quantized(self, x: str) -> list[str]:
        return self.nodes("DynamicQuantizeLinear", 3, x)

    def product(self, parts: list[str], n: int) -> str:
        """A linear layer of a quantised tensor, its scale and its zero point."""
        q, scale, zero = parts
        weight = self.constant(self.rng.integers(-127, 128, (WIDTH, n)), np.int8)
        total = self.node("MatMulInteger", q, weight, zero, self.constant(0, np.int8))
        scales = self.constant(self.rng.uniform(0.001, 0.003, n), np.float32)
        factor = self.node("Mul", scale, scales)
        real = self.node("Mul", self.node("Cast", total, to=1), factor)
        return self.node("Add", real, self.constant(self.rng.standard_normal(n), np.float32))


def gated() -> onnx.ModelProto:
    """Two products of one tensor that are needed apart, a norm, and a product of its own."""
    build = Dynamic()
    x = build.input("x", ["batch", "n", WIDTH])
    parts = build.quantized(x)
    gate = build.node("Sigmoid", build.product(parts, WIDTH))
    mixed = build.node("Mul", gate, build.node("Softmax", build.product(parts, WIDTH)))
    scale = build.constant(build.rng.uniform(0.5, 1.5, WIDTH), np.float32)
    normal = build.node("LayerNormalization", mixed, scale, axis=-1)
    build.output(build.product(build.quantized(normal), 70), ["batch", "n", 70])
    return build.model()


@pytest.mark.parametrize("threads", [1, 2])
def test_dynamic_quantisation(threads: int) -> None:
    model = gated()
    session = tvm_hybrid.InferenceSession(model, num_threads=threads)
    assert len(session.programs) == 1
    decisions = [d for d in session.executable.manifest.decisions if d.taken and d.kernel]
    kernels = {d.op.split(" ")[0]: d.kernel for d in decisions}
    assert "quantization_range" in kernels["quantization_range"]
    assert kernels["matmul"].rpartition("_")[0].endswith("s32")
    assert sum("range" in d.op for d in decisions if d.op.startswith("matmul")) == 1
    assert sum("item" in d.op for d in decisions if d.op.startswith("matmul")) == 2
    rng = np.random.default_rng(1)
    for sizes in SIZES:
        x = rng.standard_normal((*sizes, WIDTH)).astype(np.float32)
        known = tvm_hybrid.compile(model, shapes={"x": x.shape}, num_threads=threads)
        (found,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(found, known.run(x)[0].numpy())
    assert session.run(None, {"x": np.zeros((2, 0, WIDTH), np.float32)})[0].shape == (2, 0, 70)


def test_a_check_of_a_size_does_not_keep_attention_apart() -> None:
    """A table of positions limits the length; the check stands between projections and scores."""
    build = OnnxBuilder()
    x = build.input("x", ["n", 2, 16])
    table = build.constant(np.random.default_rng(2).standard_normal((40, 1, 16)), np.float32)
    q, k, v = (build.node("Transpose", x, perm=[1, 0, 2]) for _ in range(3))
    length = build.node("Slice", build.node("Shape", x), build.constant([0]), build.constant([1]))
    placed = build.node("Slice", table, build.constant([0]), length, build.constant([0]))
    k = build.node("Transpose", build.node("Add", x, placed), perm=[1, 2, 0])
    mixed = build.node("MatMul", build.node("Softmax", build.node("MatMul", q, k)), v)
    build.output(mixed, [2, "n", 16])
    session = tvm_hybrid.InferenceSession(build.model(), num_threads=1)
    ops = [d.op for d in session.executable.manifest.decisions if d.taken]
    assert [op.split(" ")[0] for op in ops] == ["attention"]
