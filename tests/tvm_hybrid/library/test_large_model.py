"""A model of more than 2 GB is imported, compiled, exported and loaded with little memory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.tvm_hybrid.small_models import run_python
from tvm_hybrid.library.artifact import read_manifest

N, LAYERS = 8192, 10
LAYER_BYTES = N * N * 4
LARGEST_GIB = 3.3  # weights take 2.5 of them
ROWS = 8  # nonzero rows of each weight

_COMPILE = """
import json, sys, numpy as np, tvm_hybrid
def mib(name):
    text = open("/proc/self/status").read()
    return int(text.split(name + ":")[1].split()[0]) / 1024
model, library, x = sys.argv[1:]
executable = tvm_hybrid.compile(model, num_threads=1)
compiled = mib("VmHWM")
executable.export(library)
exported = mib("VmHWM")
y = executable.run(np.load(x))[0].numpy()
loaded = tvm_hybrid.load(library).run(np.load(x))[0].numpy()
print(json.dumps([compiled, exported, bool(np.array_equal(y, loaded)), y[0, :8].tolist()]))
"""

_RUN = """
import json, sys, numpy as np, tvm
def mib(name):
    text = open("/proc/self/status").read()
    return int(text.split(name + ":")[1].split()[0]) / 1024
before = mib("RssAnon")
module = tvm.runtime.load_module(sys.argv[1])
machine = module["vm_load_executable"]()
machine["vm_initialization"](1, 0, 2)
loaded = mib("VmRSS")
y = machine["main"](tvm.runtime.tensor(np.load(sys.argv[2]))).numpy()
print(json.dumps([loaded, mib("RssAnon") - before, mib("RssFile"), y[0, :8].tolist()]))
"""


def saved(folder: Path) -> tuple[Path, list[np.ndarray]]:
    """x[1, N] times ten weights of 256 MiB in another file, and the nonzero part of each."""
    rng = np.random.default_rng(0)
    blocks, nodes, weights = [], [], []
    name = "x"
    with (folder / "weights").open("wb") as file:
        file.truncate(LAYERS * LAYER_BYTES)
        for layer in range(LAYERS):
            blocks.append(rng.standard_normal((ROWS, N)).astype(np.float32) / 4)
            file.seek(layer * LAYER_BYTES)
            file.write(blocks[-1].tobytes())
            weight = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=[N, N])
            weight.data_location = TensorProto.EXTERNAL
            place = {"location": "weights", "offset": layer * LAYER_BYTES, "length": LAYER_BYTES}
            for key, value in place.items():
                entry = weight.external_data.add()
                entry.key, entry.value = key, str(value)
            weights.append(weight)
            nodes.append(helper.make_node("MatMul", [name, weight.name], [f"y{layer}"]))
            name = f"y{layer}"
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, N])]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, N])]
    graph = helper.make_graph(nodes, "large", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert onnx.load(path, load_external_data=False).graph.initializer[0].dims == [N, N]
    return path, blocks


@pytest.mark.slow
def test_more_than_2_gb(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < 8 << 30:
        pytest.skip("the disk has less than 8 GiB left")
    path, blocks = saved(tmp_path)
    x = np.random.default_rng(1).standard_normal((1, N)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    wanted = x.astype(np.float64)
    for block in blocks:  # sums have 8 nonzero terms
        wanted = wanted[:, :ROWS] @ block.astype(np.float64)
    tolerance = 1e-5 * np.abs(wanted).max()
    library = tmp_path / "m.so"
    done = run_python(_COMPILE, path, library, tmp_path / "x.npy")
    assert done.returncode == 0, done.stderr
    compiled, exported, same, y = json.loads(done.stdout)
    print(f"most MiB: {compiled:.0f} after compiling, {exported:.0f} after exporting")
    assert same
    np.testing.assert_allclose(y, wanted[0, :8], rtol=0, atol=tolerance)
    assert max(compiled, exported) < LARGEST_GIB * 1024
    assert sum(each.size for each in read_manifest(library).weights) == LAYERS * LAYER_BYTES
    path.unlink()
    (tmp_path / "weights").unlink()
    done = run_python(
        _RUN, library, tmp_path / "x.npy", TVM_USE_RUNTIME_LIB="1", TVM_DEVICE_BACKEND_AUTOLOAD="0"
    )
    assert done.returncode == 0, done.stderr
    loaded, anonymous, mapped, y = json.loads(done.stdout)
    print(f"MiB: {loaded:.0f} after loading, {anonymous:.0f} more and {mapped:.0f} mapped then")
    np.testing.assert_allclose(y, wanted[0, :8], rtol=0, atol=tolerance)
    assert loaded < 500 and anonymous < 100
    assert mapped > LAYERS * LAYER_BYTES / 2**20
