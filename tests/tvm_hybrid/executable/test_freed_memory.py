"""Memory that compilation has freed is returned to the system."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.tvm_hybrid.small_models import run_python, saved_chain

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
    rng = np.random.default_rng(0)
    return saved_chain(path, (rng.random((N, N), np.float32) for _ in range(layers)))


def test_what_stays_is_the_packed_weights(tmp_path: Path) -> None:
    models = saved(tmp_path / "small.onnx", 1), saved(tmp_path / "large.onnx", LAYERS)
    done = run_python(_COMPILE, *models)
    assert done.returncode == 0, done.stderr
    grown = json.loads(done.stdout.splitlines()[-1])
    assert LAYERS * MIB <= grown < 1.5 * LAYERS * MIB  # otherwise two to three copies


_PAGES = """
import json, re, sys, numpy as np, tvm_hybrid
from microkernels.base.tvm_compat.relax import compiler_library
def mib():
    of_library = str(compiler_library()) + r"\\n(?:.*\\n)*?Rss: +(\\d+) kB"
    found = re.findall(of_library, open("/proc/self/smaps").read())
    return sum(map(int, found)) / 1024
imported = mib()
session = tvm_hybrid.InferenceSession(sys.argv[1], num_threads=1, cache=False)
x = np.ones((1, 1000), np.float32)
first = session.run(None, {"x": x})[0]
ran = mib()
again = tvm_hybrid.InferenceSession(sys.argv[1], num_threads=1, cache=False)
assert np.array_equal(first, again.run(None, {"x": x})[0])
print(json.dumps([imported, ran]))
"""


def test_the_compiler_goes_when_it_is_done(tmp_path: Path) -> None:
    done = run_python(_PAGES, saved(tmp_path / "small.onnx", 1))
    assert done.returncode == 0, done.stderr
    imported, ran = json.loads(done.stdout.splitlines()[-1])
    # Of more than 100 MiB after compilation, 5 remain: pages with relocated addresses.
    assert ran < 16 < imported
