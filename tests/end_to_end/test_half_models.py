"""Models of float16 on tiles of fp16, against NumPy in float64.

Tolerances are derived element by element: an operand of a product is rounded to float16 (U of its
size), a sum of k terms in f32 is off by at most (k + 1) * E of the sum of sizes, and the result is
rounded once. Values between products stay f32. The slopes of later operators bound how much these
roundings grow.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import tvm_hybrid
from tests.amx_emulator import emulator

pytestmark = pytest.mark.isa("amx_fp16")

GNR = "tvm_hybrid/graniterapids"
U, E = 2.0**-11, 2.0**-24
Floats = NDArray[np.float64]
RNG = np.random.default_rng(0)
TOKENS, WIDTH, HEADS = 40, 64, 2


def half(*shape: int) -> NDArray[np.float16]:
    return (RNG.standard_normal(shape) / 8).astype(np.float16)


def model(
    nodes: Sequence[onnx.NodeProto],
    weights: dict[str, np.ndarray],
    x: tuple[int, ...],
    y: tuple[int, ...],
) -> bytes:
    """A float16 model with one input and one output."""
    kind = TensorProto.FLOAT16
    graph = helper.make_graph(
        nodes,
        "half",
        [helper.make_tensor_value_info("x", kind, x)],
        [helper.make_tensor_value_info("y", kind, y)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


def run(executable: tvm_hybrid.Executable, x: np.ndarray, on_tiles: bool = True) -> Floats:
    """The result; checks which instructions multiplied."""
    emulator.reset()
    result = executable.run(x)
    result = result[0] if isinstance(result, list | tuple) else result
    emulator.check()
    found = emulator.counts()
    if found is not None:
        names = {name for name, count in found.items() if count and name.startswith("tdp")}
        assert names == ({"tdpfp16ps"} if on_tiles else set())
    array = result.numpy() if hasattr(result, "numpy") else np.asarray(result)
    assert array.dtype == np.float16
    return array.astype(np.float64)


def kernels(executable: tvm_hybrid.Executable) -> dict[str, str]:
    """Microkernels of the regions with products, by operator."""
    taken = [each for each in executable.explain().taken if each.flops]
    return {each.op: each.kernel for each in taken}


def product(a: Floats, a_off: Floats, w: np.ndarray) -> tuple[Floats, Floats]:
    """a @ w and its error bound, given the error `a_off` of `a` before rounding."""
    size = abs(w.astype(np.float64))
    off = a_off + U * (abs(a) + a_off)
    reached = abs(a) + off
    return a @ w.astype(np.float64), off @ size + (a.shape[-1] + 1) * E * (reached @ size)


def stored(y: Floats, off: Floats) -> Floats:
    """Error bound after rounding the result, including some f32 rounding before it."""
    return off + (U + 8 * E) * (abs(y) + off)


W, V, BIAS = half(96, 112), half(112, 48), half(112)
LAYERS = [
    helper.make_node("MatMul", ["x", "w"], ["a"]),
    helper.make_node("Add", ["a", "b"], ["c"]),
    helper.make_node("Relu", ["c"], ["d"]),
    helper.make_node("MatMul", ["d", "v"], ["y"]),
]


@functools.cache
def layers() -> bytes:
    return model(LAYERS, {"w": W, "v": V, "b": BIAS}, (40, 96), (40, 48))


def check_layers(executable: tvm_hybrid.Executable, on_tiles: bool = True) -> None:
    x = RNG.standard_normal((40, 96)).astype(np.float16)
    wide = x.astype(np.float64)
    hidden, off = product(wide, np.zeros_like(wide), W)
    hidden = np.maximum(hidden + BIAS, 0)
    wanted, off = product(hidden, off + 2 * E * abs(hidden), V)
    assert (abs(run(executable, x, on_tiles) - wanted) <= stored(wanted, off)).all()


@pytest.mark.parametrize("fusion", ["coarse", "fine"])
def test_perceptrons(fusion: str) -> None:
    executable = tvm_hybrid.compile(layers(), target=GNR, fusion=fusion, num_threads=2)
    found = kernels(executable)
    assert len(found) == (1 if fusion == "coarse" else 2)
    assert all(kernel.startswith("amx_fp16_") for kernel in found.values())
    check_layers(executable)


def test_the_program_for_older_cpus_is_the_one_of_before() -> None:
    """The fallback multiplies in f32, and only the first program requests fp16 tiles."""
    executable = tvm_hybrid.compile(layers(), target=GNR, fallback="amx", num_threads=1)
    manifest = executable.manifest
    assert "amx-fp16" in manifest.features
    assert manifest.fallback is not None and "amx-fp16" not in manifest.fallback.features
    older = tvm_hybrid.compile(layers(), target="spr", num_threads=1)
    assert not any("amx" in kernel for kernel in kernels(older).values())
    check_layers(older, on_tiles=False)


def attention() -> tuple[bytes, dict[str, NDArray[np.float16]]]:
    """x + (softmax(q k^T / sqrt(d)) v) o; each projection has a bias."""
    depth = WIDTH // HEADS
    make, nodes = helper.make_node, []
    for name in "qkv":
        order = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        nodes += [
            make("MatMul", ["x", f"w{name}"], [f"p{name}"]),
            make("Add", [f"p{name}", f"b{name}"], [f"a{name}"]),
            make("Reshape", [f"a{name}", "heads"], [f"r{name}"]),
            make("Transpose", [f"r{name}"], [f"t{name}"], perm=order),
        ]
    nodes += [
        make("MatMul", ["tq", "tk"], ["scores"]),
        make("Mul", ["scores", "scale"], ["scaled"]),
        make("Softmax", ["scaled"], ["p"], axis=-1),
        make("MatMul", ["p", "tv"], ["c"]),
        make("Transpose", ["c"], ["tc"], perm=[0, 2, 1, 3]),
        make("Reshape", ["tc", "whole"], ["rc"]),
        make("MatMul", ["rc", "wo"], ["po"]),
        make("Add", ["po", "bo"], ["ao"]),
        make("Add", ["ao", "x"], ["y"]),
    ]
    weights = {f"w{name}": half(WIDTH, WIDTH) for name in "qkvo"}
    weights |= {f"b{name}": half(WIDTH) for name in "qkvo"}
    shapes = {
        "heads": np.array([1, TOKENS, HEADS, depth]),
        "whole": np.array([1, TOKENS, WIDTH]),
        "scale": np.array(depth**-0.5, np.float16),
    }
    size = (1, TOKENS, WIDTH)
    return model(nodes, {**weights, **shapes}, size, size), weights


def heads(x: Floats) -> Floats:
    return x.reshape(TOKENS, HEADS, -1).transpose(1, 0, 2)


def test_attention() -> None:
    source, weights = attention()
    executable = tvm_hybrid.compile(source, target=GNR, num_threads=2)
    found = kernels(executable)
    assert any("softmax" in op for op in found)
    assert all(kernel.startswith("amx_fp16_") for kernel in found.values())
    x = RNG.standard_normal((1, TOKENS, WIDTH)).astype(np.float16)
    wide = x[0].astype(np.float64)
    parts = {}
    for name in "qkv":
        value, off = product(wide, np.zeros_like(wide), weights[f"w{name}"])
        value = value + weights[f"b{name}"]
        off = off + 2 * E * abs(value)
        parts[name] = heads(value), heads(off + U * (abs(value) + off))  # rounded when it is read
    (q, q_off), (k, k_off), (v, v_off) = (parts[name] for name in "qkv")
    scale = float(np.float16((WIDTH // HEADS) ** -0.5))
    depth, turned = q.shape[-1], (0, 2, 1)
    scores = scale * (q @ k.transpose(turned))
    sizes = (abs(q) + q_off) @ (abs(k) + k_off).transpose(turned)
    s_off = scale * (sizes - abs(q) @ abs(k).transpose(turned) + (depth + 3) * E * sizes)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    p = powers / powers.sum(-1, keepdims=True)
    # An exponential is off by exp(2 d) - 1, d being the largest error of a row's scores, and by its
    # rounding, which is absolute below 2**-14; 64 * E covers the exponential function.
    d = s_off.max(-1, keepdims=True)
    p_off = p * (np.expm1(2 * d) + 2 * U + 64 * E) + 2.0**-25
    c = p @ v
    c_off = p_off @ (abs(v) + v_off) + p @ v_off + (TOKENS + 3) * E * ((p + p_off) @ abs(v))
    flat, flat_off = (each.transpose(1, 0, 2).reshape(TOKENS, WIDTH) for each in (c, c_off))
    y, off = product(flat, flat_off, weights["wo"])
    y = y + weights["bo"] + wide
    assert (abs(run(executable, x)[0] - y) <= stored(y, off)).all()


def test_convolutions() -> None:
    """3x3 on windows, then a pointwise product; the image between them is rounded once."""
    w, v, bias = half(32, 16, 3, 3), half(24, 32, 1, 1), half(32)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["y"]),
    ]
    source = model(nodes, {"w": w, "v": v, "b": bias}, (1, 16, 9, 9), (1, 24, 9, 9))
    executable = tvm_hybrid.compile(source, target=GNR, num_threads=1)
    found = kernels(executable)
    assert len(found) == 2 and any("conv2d" in op for op in found)
    assert all(kernel.startswith("amx_fp16_") for kernel in found.values())
    x = RNG.standard_normal((1, 16, 9, 9)).astype(np.float16)
    padded = np.pad(x[0].astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    rows = windows.transpose(1, 2, 0, 3, 4).reshape(81, 16 * 9)
    hidden, off = product(rows, np.zeros_like(rows), w.reshape(32, -1).T)
    hidden = np.maximum(hidden + bias, 0)
    wanted, off = product(hidden, off + 2 * E * abs(hidden), v.reshape(24, 32).T)
    result = run(executable, x)[0].reshape(24, 81).T
    assert (abs(result - wanted) <= stored(wanted, off)).all()
