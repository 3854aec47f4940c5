"""LSTM and GRU compared with their equations in NumPy; quantised ones with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper

from tvm_hybrid import InferenceSession
from tvm_hybrid.errors import ModelError, UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx

from .models import compare, f32, integers, make_model, onnxruntime_run, operators, random


def _sigmoid(x: NDArray) -> NDArray:
    return 1 / (1 + np.exp(-x))


def _lstm_reference(x: NDArray, w: NDArray, r: NDArray, b: NDArray, h: NDArray, c: NDArray) -> Any:
    rows = []
    for step in x:
        gates = step @ w.T + h @ r.T + b[: len(w)] + b[len(w) :]
        i, o, f, g = np.split(gates, 4, axis=1)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        h = _sigmoid(o) * np.tanh(c)
        rows.append(h)
    return np.stack(rows), h, c


def _gru_reference(
    x: NDArray, w: NDArray, r: NDArray, b: NDArray, h: NDArray, reset_after: int
) -> Any:
    rows = []
    size = w.shape[0] // 3
    wb, rb = b[: 3 * size], b[3 * size :]
    for step in x:
        part = step @ w.T + wb
        inner = h @ r[: 2 * size].T + rb[: 2 * size]
        z = _sigmoid(part[:, :size] + inner[:, :size])
        reset = _sigmoid(part[:, size : 2 * size] + inner[:, size:])
        if reset_after:
            n = np.tanh(part[:, 2 * size :] + reset * (h @ r[2 * size :].T + rb[2 * size :]))
        else:
            n = np.tanh(part[:, 2 * size :] + (reset * h) @ r[2 * size :].T + rb[2 * size :])
        h = (1 - z) * n + z * h
        rows.append(h)
    return np.stack(rows), h


def _sides(direction: str) -> list[int]:
    return {"forward": [1], "reverse": [-1], "bidirectional": [1, -1]}[direction]


def _weights(gates: int, directions: int) -> dict[str, NDArray]:
    return {
        "w": random(directions, gates * 4, 3, seed=1),
        "r": random(directions, gates * 4, 4, seed=2),
        "b": random(directions, gates * 8, seed=3),
    }


@pytest.mark.sampled
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("steps", [1, 3])
def test_lstm(direction: str, steps: int) -> None:
    sides = _sides(direction)
    n = len(sides)
    constants = _weights(4, n)
    names = ["x", "w", "r", "b", "", "h", "c"]
    node = helper.make_node("LSTM", names, ["y", "yh", "yc"], hidden_size=4, direction=direction)
    inputs = [f32("x", steps, 2, 3), f32("h", n, 2, 4), f32("c", n, 2, 4)]
    outputs = [f32("y", steps, n, 2, 4), f32("yh", n, 2, 4), f32("yc", n, 2, 4)]
    w, r, b = constants.values()
    x, h, c = random(steps, 2, 3), random(n, 2, 4, seed=5), random(n, 2, 4, seed=6)
    parts = [
        _lstm_reference(x[::side], w[d], r[d], b[d], h[d], c[d]) for d, side in enumerate(sides)
    ]
    wanted = [
        np.stack([part[0][::side] for part, side in zip(parts, sides, strict=True)], axis=1),
        np.stack([part[1] for part in parts]),
        np.stack([part[2] for part in parts]),
    ]
    model = make_model([node], inputs, outputs, constants)
    compare(model, {"x": x, "h": h, "c": c}, wanted)


@pytest.mark.sampled
@pytest.mark.parametrize("reset_after", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_gru(direction: str, reset_after: int) -> None:
    sides = _sides(direction)
    n = len(sides)
    constants = _weights(3, n)
    node = helper.make_node(
        "GRU", ["x", "w", "r", "b"], ["y", "yh"], hidden_size=4, direction=direction,
        linear_before_reset=reset_after,
    )  # fmt: skip
    x = random(3, 2, 3)
    start = np.zeros((2, 4), np.float32)
    w, r, b = constants.values()
    parts = [
        _gru_reference(x[::side], w[d], r[d], b[d], start, reset_after)
        for d, side in enumerate(sides)
    ]
    wanted = [
        np.stack([part[0][::side] for part, side in zip(parts, sides, strict=True)], axis=1),
        np.stack([part[1] for part in parts]),
    ]
    outputs = [f32("y", 3, n, 2, 4), f32("yh", n, 2, 4)]
    compare(make_model([node], [f32("x", 3, 2, 3)], outputs, constants), {"x": x}, wanted)


@pytest.mark.parametrize(
    ("attributes", "error", "word"),
    [
        ({"activations": ["Sinh", "Tanh", "Tanh"]}, UnsupportedOperatorError, "Sinh"),
        ({"activations": ["Sigmoid", "Affine", "Tanh"]}, UnsupportedOperatorError, "defaults"),
        ({"activations": ["Sigmoid"]}, ModelError, "1 activations"),
        ({"direction": "bidirectional"}, ModelError, "bidirectional"),
        ({"direction": "sideways"}, ModelError, "sideways"),
    ],
)
def test_refused_forms_of_lstm(
    attributes: dict[str, Any], error: type[Exception], word: str
) -> None:
    node = helper.make_node(
        "LSTM", ["x", "w", "r"], ["y"], hidden_size=4, name="cell", **attributes
    )
    model = make_model([node], [f32("x", 2, 2, 3)], [f32("y", None)], _weights(4, 1))
    with pytest.raises(error, match=word) as caught:
        import_onnx(model)
    assert "'cell'" in str(caught.value)


INTEGER_PARAMETERS = {"w", "r", "ws", "wz", "rs", "rz"}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("direction", "per_channel", "batch", "computed", "zero_point"),
    [("forward", False, 1, set(), 0), ("reverse", True, 1, set(), 0),
     ("bidirectional", True, 1, set(), 0), ("forward", True, 2, set(), 0),
     ("forward", True, 1, {"rs"}, 0), ("bidirectional", False, 2, {"rs", "ws"}, 0),
     ("forward", False, 1, set(), 5), ("bidirectional", False, 1, set(), 100),
     ("bidirectional", False, 1, INTEGER_PARAMETERS, 3), ("reverse", False, 1, {"r"}, 0),
     ("bidirectional", True, 1, INTEGER_PARAMETERS, 0)],
)  # fmt: skip
def test_dynamic_quantize_lstm(
    direction: str, per_channel: bool, batch: int, computed: set[str], zero_point: int
) -> None:
    """One operator; it uses int16 if R minus its zero point exceeds 8 bits or is computed."""
    n, hidden, rng = len(_sides(direction)), 8, np.random.default_rng(9)
    shape = (n, 4 * hidden) if per_channel else (n,)
    constants: dict[str, NDArray] = {
        "w": integers(n, 5, 4 * hidden, dtype="int8"),
        "r": integers(n, hidden, 4 * hidden, dtype="int8", seed=1),
        "b": random(n, 8 * hidden),
        "ws": rng.uniform(0.002, 0.004, shape).astype(np.float32),
        "wz": np.full(shape, zero_point, np.int8),
        "rs": rng.uniform(0.002, 0.004, shape).astype(np.float32),
        "rz": np.full(shape, zero_point, np.int8),
    }
    names = ["x", "w", "r", "b", "", "h", "c", "", "ws", "wz", "rs", "rz"]
    node = helper.make_node("DynamicQuantizeLSTM", names, ["y", "yh", "yc"], hidden_size=hidden,
                            direction=direction, domain="com.microsoft")  # fmt: skip
    state = (n, batch, hidden)
    inputs = [f32("x", 4, batch, 5), f32("h", *state), f32("c", *state)]
    outputs = [f32("y", 4, n, batch, hidden), f32("yh", *state), f32("yc", *state)]
    model = make_model([node], inputs, outputs, constants)
    feeds = {"x": random(4, batch, 5), "h": random(*state, seed=5), "c": random(*state, seed=6)}
    wanted = onnxruntime_run(model, feeds)
    for name in computed:
        feeds[name] = constants.pop(name)
        kind = helper.np_dtype_to_tensor_dtype(feeds[name].dtype)
        inputs.append((name, kind, feeds[name].shape))
    model = make_model([node], inputs, outputs, constants)
    # With one row the quantised values are equal. With several rows ONNX Runtime quantises as many
    # at once as a thread has: a hidden value is a step of 2 / 255 off, times a weight of at most
    # 128 * 0.004, once or twice.
    atol = 1e-6 if batch == 1 else 2 * 2 / 255 * 128 * 0.004
    imported = compare(model, feeds, wanted, rtol=0, atol=atol)
    assert operators(imported)["matmul"] == 1
    session = InferenceSession(model)
    for mine, theirs in zip(session.run(None, feeds), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, 0, atol)
    taken = {each.op: each for each in session.explain().taken}
    assert "s32_" in taken["recurrent"].kernel
    words = zero_point or not computed.isdisjoint(("r", "rz"))
    assert ("int16" if words else "int8") in taken["recurrent"].workload


def test_layers_of_8_bits_behind_each_other() -> None:
    """The second layer reads a shape that is known only after the first one's rewrite."""
    rng = np.random.default_rng(3)
    constants: dict[str, NDArray] = {
        "b": random(1, 64),
        "s": rng.uniform(0.002, 0.004, 1).astype(np.float32),
        "z": np.zeros(1, np.int8),
        "shape": np.array([0, 0, 8], np.int64),
    }
    nodes = []
    for number, (x, inner) in enumerate((("x", 5), ("x1", 8))):
        constants[f"w{number}"] = integers(1, inner, 32, dtype="int8", seed=number)
        constants[f"r{number}"] = integers(1, 8, 32, dtype="int8", seed=number + 2)
        names = [x, f"w{number}", f"r{number}", "b", "", "", "", "", "s", "z", "s", "z"]
        nodes += [
            helper.make_node("DynamicQuantizeLSTM", names, [f"y{number}"], hidden_size=8,
                             domain="com.microsoft"),
            helper.make_node("Transpose", [f"y{number}"], [f"t{number}"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [f"t{number}", "shape"], [f"x{number + 1}"]),
        ]  # fmt: skip
    model = make_model(nodes, [f32("x", 4, 1, 5)], [f32("x2", 4, 1, 8)], constants)
    feeds = {"x": random(4, 1, 5)}
    compare(model, feeds, onnxruntime_run(model, feeds), rtol=0, atol=1e-5)
    taken = [each.op for each in InferenceSession(model).explain().taken]
    assert taken.count("recurrent") == 2
