"""Quantised operators with dynamic sizes: one program with ONNX Runtime's integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import tvm_hybrid
from tests.microkernels.isa_targets import target_of
from tests.onnx_builder import CONTRIB, OnnxBuilder
from tests.onnx_reference.arithmetic import dynamic_quantize
from tvm_hybrid.bench.peers.onnx_runtime import literal_session
from tvm_hybrid.errors import FeedError

pytestmark = pytest.mark.turns

RNG = np.random.default_rng(0)


def dynamic_program(model: onnx.ModelProto) -> tvm_hybrid.Executable:
    executable = tvm_hybrid.compile(model, keep_dynamic=True, num_threads=1)
    assert executable.is_dynamic
    return executable


def same_integers(model: onnx.ModelProto, *shapes: tuple[int, ...]) -> list[str]:
    """Asserts ONNX Runtime's integers for several shapes; returns the ops that templates took."""
    executable = dynamic_program(model)
    for shape in shapes:
        feeds = {
            info.name: RNG.integers(0, 256, shape).astype(info.dtype)
            if info.dtype != "float32"
            else (40 * RNG.standard_normal(shape)).astype(np.float32)
            for info in executable.inputs
        }
        expected = literal_session(model).run(None, feeds)
        for found, wanted in zip(executable.run(feeds), expected, strict=True):
            np.testing.assert_array_equal(found.numpy(), wanted)
    return [d.op.split(" ")[0] for d in executable.manifest.decisions if d.taken]


def numbers(build: OnnxBuilder, scale: float, zero: int, dtype: type = np.uint8) -> list[str]:
    return [build.constant(scale, np.float32), build.constant(zero, dtype)]


def test_quantize_and_dequantize() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["batch", "n", 4])
    q = build.node("QuantizeLinear", x, *numbers(build, 0.25, 7))
    build.output(q, ["batch", "n", 4], np.uint8)
    build.output(build.node("DequantizeLinear", q, *numbers(build, 0.25, 7)), ["batch", "n", 4])
    same_integers(build.model(), (1, 1, 4), (2, 5, 4), (0, 3, 4), (3, 70, 4))


def test_scales_along_a_known_axis() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["batch", 3, "n"])
    scale = build.constant([0.5, 1, 2], np.float32)
    zero = build.constant([0, 1, -2], np.int8)
    q = build.node("QuantizeLinear", x, scale, zero, axis=1)
    build.output(q, ["batch", 3, "n"], np.int8)
    y = build.node("DequantizeLinear", q, scale, zero, axis=-2)
    build.output(y, ["batch", 3, "n"])
    same_integers(build.model(), (1, 3, 1), (2, 3, 5), (1, 3, 33))


def test_a_dynamic_axis_has_as_many_elements_as_there_are_scales() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["n", "m"])
    scale = build.constant([0.5, 1, 2, 4], np.float32)
    zero = build.constant([1, 2, 3, 4], np.uint8)
    build.output(build.node("QuantizeLinear", x, scale, zero, axis=1), ["n", "m"], np.uint8)
    same_integers(build.model(), (1, 4), (5, 4))
    executable = dynamic_program(build.model())
    assert executable.inputs[0].shape == ("n", 4)
    with pytest.raises(FeedError, match=r"expected x: float32\[n, 4\], got x: float32\[2, 3\]"):
        executable.run({"x": np.zeros((2, 3), np.float32)})


def test_dynamic_quantize() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["batch", "n", 3])
    q, scale, zero = build.nodes("DynamicQuantizeLinear", 3, x)
    build.output(q, ["batch", "n", 3], np.uint8)
    build.output(scale, [])
    build.output(zero, [], np.uint8)
    executable = dynamic_program(build.model())
    for shape in ((1, 1, 3), (2, 7, 3), (1, 100, 3)):
        value = (RNG.standard_normal(shape) * 9).astype(np.float32)
        for found, wanted in zip(executable.run(value), dynamic_quantize(value), strict=True):
            np.testing.assert_array_equal(found.numpy(), wanted)
    found = [each.numpy().tolist() for each in executable.run(np.zeros((2, 0, 3), np.float32))]
    assert found[1:] == [1.0, 0]  # no elements give the result of zeros


@pytest.mark.parametrize("zero", [0, 3])
def test_integer_products(zero: int) -> None:
    build = OnnxBuilder()
    x = build.input("x", ["batch", "n", "k"], np.uint8)
    weight = build.constant(RNG.integers(-128, 128, (24, 40)), np.int8)
    y = build.node("MatMulInteger", x, weight, build.constant(zero, np.uint8))
    build.output(y, ["batch", "n", 40], np.int32)
    taken = same_integers(build.model(), (1, 1, 24), (2, 3, 24), (1, 70, 24))
    assert taken == ["matmul"]


def test_integer_convolutions() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["batch", 4, 7, 7], np.uint8)
    weight = build.constant(RNG.integers(-128, 128, (8, 4, 3, 3)), np.int8)
    y = build.node("ConvInteger", x, weight, build.constant(3, np.uint8), pads=[1, 1, 1, 1])
    build.output(y, ["batch", 8, 7, 7], np.int32)
    taken = same_integers(build.model(), (1, 4, 7, 7), (3, 4, 7, 7))
    assert taken == ["conv2d"]


@pytest.mark.parametrize("op", ["QLinearConv", "QLinearMatMul", "QLinearAdd"])
def test_operators_on_quantised_tensors(op: str) -> None:
    build = OnnxBuilder()
    shape = [7, 7] if op == "QLinearConv" else [4]
    x = build.input("x", ["batch", 4, *shape], np.uint8)
    weight = RNG.integers(-9, 10, (8, 4, 3, 3) if op == "QLinearConv" else (4, 8))
    inputs = [x, *numbers(build, 0.1, 3)]
    if op == "QLinearAdd":
        inputs += [x, *numbers(build, 0.2, 2)]
    else:
        inputs += [build.constant(weight, np.int8), *numbers(build, 0.1, 0, np.int8)]
    domain = CONTRIB if op == "QLinearAdd" else ""
    y = build.node(op, *inputs, *numbers(build, 0.3, 7), domain=domain)
    result = {"QLinearConv": [8, 5, 5], "QLinearMatMul": [4, 8], "QLinearAdd": [4, 4]}[op]
    build.output(y, ["batch", *result], np.uint8)
    taken = same_integers(build.model(), (1, 4, *shape), (3, 4, *shape))
    kernels = {"QLinearConv": "conv2d", "QLinearMatMul": "matmul", "QLinearAdd": "elementwise"}
    assert taken == [kernels[op]]


def test_layers_that_differ_in_scales_and_zero_points_are_one_kernel(tmp_path: Path) -> None:
    build = OnnxBuilder()
    value, pair = build.input("x", ["batch", 64], np.uint8), (0.05, 130)
    for after in ((0.4, 120), (2.5, 101)):
        weight = build.constant(RNG.integers(-127, 128, (64, 64)), np.int8)
        known = [*numbers(build, *pair), weight, *numbers(build, 0.1, 3, np.int8)]
        value, pair = build.node("QLinearMatMul", value, *known, *numbers(build, *after)), after
        build.output(value, ["batch", 64], np.uint8)  # both are outputs, so they form no chain
    model = build.model()
    assert same_integers(model, (1, 64), (2, 64), (40, 64)) == ["matmul"] * 2
    # AVX2's kernels use the zero point: bytes far from it are multiplied separately.
    shared = tvm_hybrid.compile(model, target=target_of("avx512_vnni"), keep_dynamic=True)
    assert len({d.function for d in shared.manifest.decisions if d.taken}) == 1
    executable = dynamic_program(model)
    loaded = tvm_hybrid.load(executable.export(tmp_path / "dynamic.so"))
    x = RNG.integers(0, 256, (3, 64)).astype(np.uint8)
    for found, wanted in zip(
        loaded.run(x), literal_session(model).run(None, {"x": x}), strict=True
    ):
        np.testing.assert_array_equal(found.numpy(), wanted)


def test_quantised_convolutions_of_any_batch_have_the_bits_of_known_ones() -> None:
    """A small network between QuantizeLinear and DequantizeLinear: pool, mean, sum, product."""
    build = OnnxBuilder()

    def pair(value: str, step: float, zero: int) -> str:
        q = build.node("QuantizeLinear", value, *numbers(build, step, zero))
        return build.node("DequantizeLinear", q, *numbers(build, step, zero))

    def weight(*shape: int) -> str:
        q = build.constant(RNG.integers(-127, 128, shape), np.int8)
        scales = build.constant(RNG.uniform(0.01, 0.03, shape[0]), np.float32)
        zeros = build.constant(np.zeros(shape[0]), np.int8)
        return build.node("DequantizeLinear", q, scales, zeros, axis=0)

    x = pair(build.input("x", ["batch", 3, 12, 12]), 0.05, 128)
    first = pair(build.node("Relu", build.node("Conv", x, weight(16, 3, 3, 3))), 0.2, 0)
    deep = build.node("Conv", first, weight(16, 1, 3, 3), group=16, pads=[1, 1, 1, 1])
    wide = build.node("Conv", pair(deep, 0.2, 100), weight(16, 16, 1, 1))
    joined = pair(build.node("Add", pair(wide, 0.3, 90), first), 0.4, 80)
    pooled = build.node("MaxPool", joined, kernel_shape=[2, 2], strides=[2, 2])
    mean = build.node("Flatten", pair(build.node("GlobalAveragePool", pooled), 0.1, 50))
    build.output(build.node("Gemm", mean, weight(5, 16), transB=1), ["batch", 5])
    model = build.model()
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    assert len(session.programs) == 1
    taken = [d.op.split(" ")[0] for d in session.executable.manifest.decisions if d.taken]
    wanted = ["elementwise", "conv2d", "depthwise_conv2d", "matmul", "elementwise", "matmul"]
    assert taken == wanted
    kernels = [d.kernel for d in session.executable.manifest.decisions if d.taken]
    assert not any("f32" in kernel for kernel in kernels)
    for batch in (1, 2, 5):
        value = RNG.standard_normal((batch, 3, 12, 12)).astype(np.float32)
        known = tvm_hybrid.compile(model, shapes={"batch": batch}, num_threads=1)
        (found,) = session.run(None, {"x": value})
        np.testing.assert_array_equal(found, known.run(value)[0].numpy())
