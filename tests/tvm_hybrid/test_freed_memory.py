"""What compiling has freed is given back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.tvm_hybrid.small_models import run_python

N, LAYERS = 1000, 20
MIB = N * N * 4 / 2**20

_COMPILE = """
import json, sys, tvm_hybrid
def mib():
    text = open("/proc/self/status").read()
    return int(text.split("RssAnon:")[1].split()[0]) / 1024
small = tvm_hybrid.compile(sys.argv[1], num_threads=1)
before = mib()
large = tvm_hybrid.compile(sys.argv[2], num_threads=1)
print(json.dumps(mib() - before))
"""


def saved(path: Path, layers: int) -> Path:
    """x[1, N] times some weights."""
    rng, names = np.random.default_rng(0), [f"w{layer}" for layer in range(layers)]
    weights = [numpy_helper.from_array(rng.random((N, N), np.float32), name) for name in names]
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
    return path


def test_what_stays_is_the_packed_weights(tmp_path: Path) -> None:
    models = saved(tmp_path / "small.onnx", 1), saved(tmp_path / "large.onnx", LAYERS)
    done = run_python(_COMPILE, *models)
    assert done.returncode == 0, done.stderr
    grown = json.loads(done.stdout.splitlines()[-1])
    assert LAYERS * MIB <= grown < 1.5 * LAYERS * MIB  # without, there are two to three copies
