"""Models of 8-bit integers with dynamic sizes: one program with the bits of static programs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tvm_hybrid
from relay_passes.ir.decisions import Decision
from tests.examples import some
from tests.onnx_builder import OnnxBuilder

pytestmark = pytest.mark.turns

WIDTH = 48
SIZES = [(1, 1), (1, 2), (2, 7), (1, 33), (3, 40)]


class Dynamic(OnnxBuilder):
    """Products with DynamicQuantizeLinear and MatMulInteger."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)

    def quantized(self, x: str) -> list[str]:
        return self.nodes("DynamicQuantizeLinear", 3, x)

    def product(self, parts: list[str], n: int) -> str:
        """A linear layer on a quantised tensor, its scale and its zero point."""
        q, scale, zero = parts
        weight = self.constant(self.rng.integers(-127, 128, (WIDTH, n)), np.int8)
        total = self.node("MatMulInteger", q, weight, zero, self.constant(0, np.int8))
        scales = self.constant(self.rng.uniform(0.001, 0.003, n), np.float32)
        factor = self.node("Mul", scale, scales)
        real = self.node("Mul", self.node("Cast", total, to=1), factor)
        return self.node("Add", real, self.constant(self.rng.standard_normal(n), np.float32))


def gated() -> onnx.ModelProto:
    """Two products of one tensor with separate uses, a norm, and a third product."""
    build = Dynamic()
    x = build.input("x", ["batch", "n", WIDTH])
    parts = build.quantized(x)
    gate = build.node("Sigmoid", build.product(parts, WIDTH))
    mixed = build.node("Mul", gate, build.node("Softmax", build.product(parts, WIDTH)))
    scale = build.constant(build.rng.uniform(0.5, 1.5, WIDTH), np.float32)
    normal = build.node("LayerNormalization", mixed, scale, axis=-1)
    build.output(build.product(build.quantized(normal), 70), ["batch", "n", 70])
    return build.model()


def one_program(
    model: onnx.ModelProto, threads: int
) -> tuple[tvm_hybrid.InferenceSession, list[Decision]]:
    """A session with a single program, and the decisions about its kernels."""
    session = tvm_hybrid.InferenceSession(model, num_threads=threads)
    (program,) = session.programs
    return session, [d for d in program.executable.manifest.decisions if d.taken and d.kernel]


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [1, 2])
def test_dynamic_quantisation(threads: int) -> None:
    model = gated()
    session, decisions = one_program(model, threads)
    kernels = {d.op.split(" ")[0]: d.kernel for d in decisions}
    assert "quantization_range" in kernels["quantization_range"]
    assert kernels["matmul"].rpartition("_")[0].endswith("s32")
    assert sum("range" in d.op for d in decisions if d.op.startswith("matmul")) == 1
    # One of them is a chain that includes the norm.
    assert sum("matmul + cast + item" in d.op for d in decisions) == 2
    rng = np.random.default_rng(1)
    for sizes in some(SIZES):
        x = rng.standard_normal((*sizes, WIDTH)).astype(np.float32)
        known = tvm_hybrid.compile(model, shapes={"x": x.shape}, num_threads=threads)
        (found,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(found, known.run(x)[0].numpy())
    assert session.run(None, {"x": np.zeros((2, 0, WIDTH), np.float32)})[0].shape == (2, 0, 70)


class Static(OnnxBuilder):
    """Layers between QuantizeLinear and DequantizeLinear."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(3)

    def pair(self, value: str, step: float, zero: int) -> str:
        numbers = [self.constant(step, np.float32), self.constant(zero, np.uint8)]
        q = self.node("QuantizeLinear", value, *numbers)
        return self.node("DequantizeLinear", q, *numbers)

    def linear(self, x: str, n: int) -> str:
        weight = self.constant(self.rng.integers(-127, 128, (WIDTH, n)), np.int8)
        scales = self.constant(self.rng.uniform(0.001, 0.003, n), np.float32)
        zeros = self.constant(np.zeros(n), np.int8)
        value = self.node("DequantizeLinear", weight, scales, zeros, axis=1)
        bias = self.constant(self.rng.standard_normal(n), np.float32)
        return self.node("Add", self.node("MatMul", x, value), bias)


def attending() -> onnx.ModelProto:
    """Fully quantised attention with three heads and a mask of keys."""
    build = Static()
    x = build.pair(build.input("x", ["batch", "n", WIDTH]), 0.03, 120)
    mask = build.input("mask", ["batch", 1, 1, "n"])
    heads = build.constant([0, 0, 3, 16], np.int64)

    def part(number: int) -> str:
        value = build.pair(build.linear(x, WIDTH), 0.02, 110 + number)
        return build.node("Reshape", value, heads)

    q, k, v = (
        build.node("Transpose", part(number), perm=perm)
        for number, perm in enumerate([[0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]])
    )
    scores = build.pair(build.node("MatMul", q, k), 0.1, 128)
    scaled = build.node("Mul", scores, build.constant(0.25, np.float32))
    chances = build.node("Softmax", build.node("Add", scaled, mask), axis=-1)
    mixed = build.node("MatMul", build.pair(chances, 1 / 255, 0), v)
    back = build.node("Transpose", build.pair(mixed, 0.02, 130), perm=[0, 2, 1, 3])
    rows = build.node("Reshape", back, build.constant([0, 0, WIDTH], np.int64))
    build.output(build.linear(rows, 70), ["batch", "n", 70])
    return build.model()


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [1, 2])
def test_quantised_attention(threads: int) -> None:
    model = attending()
    session, decisions = one_program(model, threads)
    ops = [d.op.split(" ")[0] for d in decisions if not d.op.startswith("elementwise")]
    assert ops == ["matmul", "matmul", "matmul", "attention", "matmul"]
    assert all("s32" in d.kernel for d in decisions if d.op.startswith(("matmul", "attention")))
    rng = np.random.default_rng(4)
    for batch, n in some([(1, 17), (2, 33), (1, 64)]):
        feeds = {
            "x": rng.standard_normal((batch, n, WIDTH)).astype(np.float32),
            "mask": np.where(rng.random((batch, 1, 1, n)) < 0.2, -1e4, 0).astype(np.float32),
        }
        known = tvm_hybrid.compile(model, shapes={"batch": batch, "n": n}, num_threads=threads)
        (found,) = session.run(None, feeds)
        np.testing.assert_array_equal(found, known.run(feeds)[0].numpy())


def test_a_check_of_a_size_does_not_keep_attention_apart() -> None:
    """A position table limits the length; the check stands between projections and scores."""
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


def images() -> onnx.ModelProto:
    """A depthwise convolution between QuantizeLinear and DequantizeLinear."""
    build = Dynamic()
    scale, zero = build.constant(0.02, np.float32), build.constant(128, np.uint8)
    x = build.input("x", ["batch", 40, "h", "w"])
    real = build.node("DequantizeLinear", build.node("QuantizeLinear", x, scale, zero), scale, zero)
    weight = build.constant(build.rng.integers(-127, 128, (40, 1, 3, 3)), np.int8)
    factor = build.constant(0.01, np.float32)
    weight = build.node("DequantizeLinear", weight, factor, build.constant(0, np.int8))
    result = build.node("Conv", real, weight, group=40, pads=[1, 1, 1, 1], strides=[2, 2])
    result = build.node("QuantizeLinear", result, build.constant(0.05, np.float32), zero)
    build.output(result, ["batch", 40, "p", "q"], np.uint8)
    return build.model()


def test_depthwise_convolutions_of_images_of_any_size() -> None:
    session, decisions = one_program(images(), 1)
    assert [d.kernel for d in decisions if "depthwise" in d.kernel]
    rng = np.random.default_rng(2)
    for size in some([(1, 3, 3), (2, 8, 29), (0, 5, 5), (1, 17, 40)]):
        x = rng.uniform(-2.5, 2.5, (size[0], 40, *size[1:])).astype(np.float32)
        known = tvm_hybrid.InferenceSession(images(), shapes={"x": x.shape}, num_threads=1)
        (result,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(result, known.run(None, {"x": x})[0])


def residual() -> onnx.ModelProto:
    """The quantised sum of two quantised images, without a product."""
    build = Static()
    images = [build.input(name, ["batch", 6, "h", "w"], np.uint8) for name in ("x", "y")]
    numbers = [
        [build.constant(0.03, np.float32), build.constant(zero, np.uint8)] for zero in (3, 99)
    ]
    real = [build.node("DequantizeLinear", image, *numbers[0]) for image in images]
    total = build.node("QuantizeLinear", build.node("Add", *real), *numbers[1])
    build.output(total, ["batch", 6, "h", "w"], np.uint8)
    return build.model()


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [1, 2])
def test_sums_of_quantised_images(threads: int) -> None:
    model = residual()
    session, decisions = one_program(model, threads)
    assert [d.op.split(" ")[0] for d in decisions] == ["elementwise"]
    assert (decisions[0].kernel or "").endswith("elementwise")
    assert "side by side" in decisions[0].at_run_time
    rng = np.random.default_rng(5)
    for sizes in some([(1, 1, 1), (2, 3, 5), (3, 64, 50)]):
        shape = (sizes[0], 6, *sizes[1:])
        feeds = {name: rng.integers(0, 256, shape).astype(np.uint8) for name in ("x", "y")}
        known = tvm_hybrid.compile(model, shapes=dict.fromkeys("xy", shape), num_threads=threads)
        (found,) = session.run(None, feeds)
        np.testing.assert_array_equal(found, known.run(*feeds.values())[0].numpy())
