"""Compiling holds the weights once, with neither the file's nor unpacked copies beside them."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest

from tests.tvm_hybrid.small_models import run_python, saved_chain

N, LAYERS = 1000, 26
MIB = N * N * 4 * LAYERS / 2**20
# Multiples of the weights: freed memory is returned after each 16 MiB of packed weights, and a few
# single weights exist twice. One more copy would be 2.
LARGEST = 1.5

_COMPILE = """
import json, sys, numpy as np, tvm_hybrid
def mib(name):
    text = open("/proc/self/status").read()
    return int(text.split(name + ":")[1].split()[0]) / 1024
small, large, kind, x, y = sys.argv[1:]
given = {"path": str, "bytes": lambda path: open(path, "rb").read()}[kind](large)
def compiled(model):
    open("/proc/self/clear_refs", "w").write("5")  # the peak begins here
    session = tvm_hybrid.InferenceSession(model, num_threads=1, cache=False)
    return session, mib("VmHWM"), mib("VmRSS")
compiled(small)
_, usual_peak, before = compiled(small)
session, peak, after = compiled(given)
peak, after = peak - usual_peak, after - before
np.save(y, session.run(None, {"x": np.load(x)})[0])
print(json.dumps([peak, after]))
"""


def saved(path: Path, layers: int) -> np.ndarray:
    """Writes a chain of weights that permute x; returns the combined permutation."""
    rng = np.random.default_rng(0)
    orders = [rng.permutation(N) for _ in range(layers)]
    saved_chain(path, (np.eye(N, dtype=np.float32)[:, order] for order in orders))
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
