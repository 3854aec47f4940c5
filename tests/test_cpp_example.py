"""examples/cpp: both kinds of library, run by a C++ program on TVM's runtime alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm_ffi import libinfo

import tvm_hybrid
from tests.tvm_hybrid.small_models import ROOT, mlp, mlp_module, several
from tvm_hybrid.targets.cpu_features import missing_on_host
from tvm_hybrid.targets.resolve import host_target

HEADER = Path(libinfo.find_include_path()) / "tvm" / "ffi" / "extra" / "module.h"
X = np.random.default_rng(5).standard_normal((1, 16)).astype(np.float32)
OF_THE_SYSTEM = {
    "ld-linux-x86-64.so.2",
    *("libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0"),
    *("libgcc_s.so.1", "libstdc++.so.6"),
}

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed"),
    pytest.mark.skipif(not HEADER.exists(), reason=f"{HEADER} is missing"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with its two libraries, as docs/deploy.md ships it."""
    made = tmp_path_factory.mktemp("shipped")
    environment = {**os.environ, "PYTHON": sys.executable, "CXX": "g++"}
    script = ROOT / "examples" / "cpp" / "build.sh"
    done = subprocess.run(
        ["sh", script, made], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no compiler warning
    return made


def run(
    folder: Path, library: Path | str, *inputs: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs the program in its folder with an empty environment; results are y.0, ..."""
    return subprocess.run(
        ["./run_library", library, "y", *inputs],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def stored(folder: Path, name: str, value: np.ndarray) -> str:
    """Writes an input in the program's format."""
    value.tofile(folder / name)
    return f"{name}:{value.dtype}:{'x'.join(map(str, value.shape))}"


def library_of(kind: str, folder: Path) -> Path:
    """The MLP as a library in our format, or in TVM's own."""
    path = folder / f"{kind}.so"
    if kind == "ours":
        return mlp().export(path)
    lib = tvm.compile(mlp_module(), target=host_target(), relax_pipeline="tvm_hybrid")
    lib.export_library(str(path))
    return path


@pytest.mark.parametrize("kind", ["ours", "tvms"])
def test_a_program_of_cpp_computes_what_python_does(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    library = library_of(kind, tmp_path)
    traced = tmp_path / "loaded"
    done = run(
        folder, library, stored(folder, "x", X), LD_DEBUG="files", LD_DEBUG_OUTPUT=str(traced)
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "y.0: float32 1 16\n"
    found = np.fromfile(folder / "y.0", np.float32).reshape(1, 16)
    np.testing.assert_array_equal(found, mlp().run(X)[0].numpy())
    (trace,) = tmp_path.glob("loaded.*")
    loaded = set(map(Path, re.findall(r"calling init: (\S+)", trace.read_text())))
    others = {path for path in loaded if path.name not in OF_THE_SYSTEM}
    assert others == {folder / "libtvm_ffi.so", folder / "libtvm_runtime.so", library}


def test_a_name_without_a_folder_is_a_file_of_the_current_folder(folder: Path) -> None:
    library = mlp().export(folder / "model.so")
    done = run(folder, library.name, stored(folder, "x", X))
    assert done.returncode == 0, done.stderr


def test_several_inputs_and_outputs(folder: Path, tmp_path: Path) -> None:
    library = several().export(tmp_path / "several.so")
    x, n = np.ones((2, 3), np.float32), np.arange(4)
    done = run(folder, library, stored(folder, "x", x), stored(folder, "n", n))
    assert done.returncode == 0, done.stderr
    for place, wanted in enumerate((x + 1, n * 2, x.reshape(6), x)):
        found = np.fromfile(folder / f"y.{place}", wanted.dtype).reshape(wanted.shape)
        np.testing.assert_array_equal(found, wanted)


def test_errors_say_what_is_wrong(folder: Path, tmp_path: Path) -> None:
    library = mlp().export(tmp_path / "mlp.so")
    x = stored(folder, "x", X)
    cases = {
        (str(tmp_path / "no.so"), x): f"{tmp_path}/no.so: cannot open shared object file",
        (str(library), "x:float32:1x17"): "error: x is missing, or has not 68 bytes",
        (str(library), "x:float32:4x4"): "ValueError: Invalid A.shape[0] on argument #0",
        (str(library), "x:int32:1x16"): "TypeError: Mismatched A.dtype on argument #0",
        (str(library), x, x): "expects 1 arguments (x), but 2 arguments were provided",
        (str(folder / "libtvm_ffi.so"), x): "no model: the library has no function vm_load_exec",
    }
    for arguments, text in cases.items():
        done = run(folder, *arguments)
        assert done.returncode == 1
        assert text in done.stderr


def test_a_lesser_cpu_is_refused(folder: Path, tmp_path: Path) -> None:
    # No CPU has both AMX and AMD's SSE4a.
    target = {"kind": "llvm", "mcpu": "sapphirerapids", "mattr": ["+sse4a"]}
    executable = tvm_hybrid.compile(mlp_module(), target=target, num_threads=1)
    done = run(folder, executable.export(tmp_path / "spr.so"), stored(folder, "x", X))
    assert done.returncode == 1
    missing = ", ".join(missing_on_host(executable.manifest.features))
    assert f"sapphirerapids and needs {missing}, which this CPU lacks" in done.stderr
