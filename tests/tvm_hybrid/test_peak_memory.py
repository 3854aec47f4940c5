"""Compiling takes the memory of the weights once: neither the model's file nor what is not packed
yet stays beside packed weights."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.tvm_hybrid.small_models import run_python

N, LAYERS = 1000, 26
MIB = N * N * 4 * LAYERS / 2**20
# Of weights: freed memory is given back after each 16 MiB that have been packed, and a few single
# weights are there twice. One copy more would be 2.
LARGEST = 1.5

_COMPILE = """
import json, sys, numpy as np, tvm_hybrid
def mib(name):
    text = open("/proc/self/status").read()
    return int(text.split(name + ":")[1].split()[0]) / 1024
small, large, kind, x, y = sys.argv[1:]
given = {"path": str, "bytes": lambda path: open(path, "rb").read()}[kind](large)
tvm_hybrid.InferenceSession(small, num_threads=1, cache=False)
before = mib("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the peak begins here
session = tvm_hybrid.InferenceSession(given, num_threads=1, cache=False)
peak, after = mib("VmHWM") - before, mib("VmRSS") - before
np.save(y, session.run(None, {"x": np.load(x)})[0])
print(json.dumps([peak, after]))
"""


def saved(path: Path, layers: int) -> np.ndarray:
    """x[1, N] times some weights, which permute it; the permutation that they make together."""
    rng, names = np.random.default_rng(0), [f"w{layer}" for layer in range(layers)]
    orders = [rng.permutation(N) for _ in names]
    weights = [
        numpy_helper.from_array(np.eye(N, dtype=np.float32)[:, order], name)
        for order, name in zip(orders, names, strict=True)
    ]
    values = ["x", *(f"v{layer}" for layer in range(layers))]
    nodes = [
        helper.make_node("MatMul", [values[layer], name], [values[layer + 1]])
        for layer, name in enumerate(names)
    ]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, N])]
        for name in ("x", values[-1])
    )
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(model, path)
    return functools.reduce(lambda order, next_order: order[next_order], orders)


@pytest.mark.parametrize("kind", ["path", "bytes"])
def test_weights_are_in_memory_once(kind: str, tmp_path: Path) -> None:
    saved(tmp_path / "small.onnx", 1)
    order = saved(tmp_path / "large.onnx", LAYERS)
    x = np.random.default_rng(1).random((1, N), np.float32)
    np.save(tmp_path / "x.npy", x)
    names = "small.onnx", "large.onnx", kind, "x.npy", "y.npy"
    done = run_python(_COMPILE, *(name if name == kind else tmp_path / name for name in names))
    assert done.returncode == 0, done.stderr
    peak, after = json.loads(done.stdout.splitlines()[-1])
    print(f"MiB: {MIB:.0f} of weights, {peak:.0f} more at most, {after:.0f} more afterwards")
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), x[:, order])
    assert peak < LARGEST * MIB
