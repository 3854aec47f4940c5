"""Transposed convolutions through the whole compiler: near ONNX Runtime; integers exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import tvm_hybrid
from tvm_hybrid.bench.peers.onnx_runtime import literal_session

# Weight [IC, OC / groups, KH, KW]: products, single phases, groups, depthwise, cropped at each end.
CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((16, 24, 2, 2), {"strides": [2, 2]}),
    ((16, 17, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((16, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    ((16, 4, 3, 2), {"strides": [2, 3], "group": 4, "pads": [1, 0, 0, 1]}),
    ((16, 1, 4, 4), {"strides": [2, 2], "group": 16, "pads": [1, 1, 1, 1]}),
]


def constants(shape: tuple[int, ...], seed: int) -> NDArray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model_of(nodes: list[onnx.NodeProto], outputs: list[str], values: dict[str, Any],
             shape: tuple[int, ...]) -> onnx.ModelProto:  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [1, 2])
def test_f32(threads: int) -> None:
    nodes: list[onnx.NodeProto] = []
    values: dict[str, Any] = {}
    for number, (shape, attributes) in enumerate(CASES):
        channels = shape[1] * attributes.get("group", 1)
        values |= {f"w{number}": constants(shape, number), f"b{number}": constants((channels,), 9)}
        names = ["x", f"w{number}", f"b{number}"]
        nodes += [
            helper.make_node("ConvTranspose", names, [f"c{number}"], **attributes),
            helper.make_node("Relu", [f"c{number}"], [f"y{number}"]),
        ]
    model = model_of(nodes, [f"y{n}" for n in range(len(CASES))], values, (1, 16, 5, 7))
    x = constants((1, 16, 5, 7), 99)
    session = tvm_hybrid.InferenceSession(model, num_threads=threads)
    wanted = literal_session(model).run(None, {"x": x})
    for case, got, exact in zip(CASES, session.run(None, {"x": x}), wanted, strict=True):
        # sums of K <= 16 * 9 products of magnitudes below 4 * 4, in different orders
        bound = 2 * 144 * np.finfo(np.float32).eps * 144 * 16
        assert got.shape == exact.shape and np.abs(got - exact).max() <= bound, case
    decisions = session.executable.manifest.decisions
    assert not any("conv2d_transpose" in decision.op for decision in decisions)
    taken = " ".join(decision.op for decision in decisions if decision.taken)
    assert all(kind in taken for kind in ("matmul", "conv2d", "depthwise_conv2d"))


def scattered(x: NDArray, w: NDArray, stride: int, pad: int) -> NDArray:
    """The operator by its definition, in integers: adds every product to its output element."""
    (rows, columns), (own, kernel) = x.shape[2:], w.shape[1:3]
    high, wide = ((n - 1) * stride + kernel for n in (rows, columns))
    y = np.zeros((1, own, high, wide), np.int64)
    for i in range(kernel):
        for j in range(kernel):
            last = (i + (rows - 1) * stride + 1, j + (columns - 1) * stride + 1)
            product = np.einsum("ncrs,co->nors", x, w[:, :, i, j])
            y[:, :, i : last[0] : stride, j : last[1] : stride] += product
    return y[:, :, pad : high - pad, pad : wide - pad]


@pytest.mark.parametrize(("kernel", "pad"), [(2, 0), (4, 1)])
def test_integers(kernel: int, pad: int) -> None:
    """An integer sum with its bias, scaled once: see `integer_product`."""
    rng = np.random.default_rng(kernel)
    sx, sy = np.float32(0.02), np.float32(0.05)
    sw = rng.uniform(0.001, 0.01, 24).astype(np.float32)
    w = rng.integers(-127, 128, (16, 24, kernel, kernel)).astype(np.int8)
    b = rng.integers(-1000, 1000, 24).astype(np.int32)
    values = {
        **{"sx": sx, "zx": np.uint8(120), "sw": sw, "zw": np.zeros(24, np.int8), "w": w, "b": b},
        **{"sb": sx * sw, "zb": np.zeros(24, np.int32), "sy": sy, "zy": np.uint8(10)},
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "sx", "zx"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["wd"], axis=1),
        helper.make_node("DequantizeLinear", ["b", "sb", "zb"], ["bd"], axis=0),
        helper.make_node("ConvTranspose", ["d", "wd", "bd"], ["c"], strides=[2, 2], pads=[pad] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "sy", "zy"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "sy", "zy"], ["y"]),
    ]
    q = rng.integers(0, 256, (1, 16, 5, 7))
    session = tvm_hybrid.InferenceSession(model_of(nodes, ["y"], values, q.shape), num_threads=1)
    (got,) = session.run(None, {"x": (q - 120).astype(np.float32) * sx})
    total = scattered(q - 120, w.astype(np.int64), 2, pad) + b.reshape(1, -1, 1, 1)
    real = np.maximum(total.astype(np.float32) * (sx * sw).reshape(1, -1, 1, 1), 0)
    wanted = np.clip(np.rint(real / sy) + 10, 0, 255)
    np.testing.assert_array_equal(got, (wanted.astype(np.float32) - 10) * sy)
    ops = [each.op for each in session.executable.manifest.decisions if each.taken]
    assert any("quantize" in each and ("matmul" in each or "conv2d" in each) for each in ops)
