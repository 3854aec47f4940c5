"""The package of `make wheel` installs into an empty environment and runs a model there."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import tvm_hybrid
from tests.licences import license_files

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("microkernels", "tir_schedules", "relay_passes", "tvm_hybrid")
FILES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "NOTICE", "tvm_hybrid_command.py")
QUICKSTART = """
import numpy as np, onnx, tvm_hybrid
from onnx import TensorProto, helper
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 3)) for name in "xy")
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
opset = helper.make_opsetid("", 17)
onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), "model.onnx")
session = tvm_hybrid.InferenceSession("model.onnx")
(found,) = session.run(None, {"x": np.array([[-1, 0, 1], [2, -2, 3]], np.float32)})
assert found.tolist() == [[0, 0, 1], [2, 0, 3]], found
print(tvm_hybrid.__file__)
"""


def run(*command: object, cwd: Path) -> str:
    """A command's output, without this repository on Python's path."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_wheel_and_source_distribution_install_and_run(tmp_path: Path) -> None:
    source, output = tmp_path / "source", tmp_path / "dist"
    source.mkdir()
    for name in PACKAGES:
        shutil.copytree(
            ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    for name in FILES:
        shutil.copy(ROOT / name, source / name)
    shutil.copytree(ROOT / "licenses", source / "licenses")
    run(sys.executable, "-m", "build", "--outdir", output, source, cwd=tmp_path)
    (wheel,), (archive,) = output.glob("*.whl"), output.glob("*.tar.gz")
    assert wheel.name == f"tvm_hybrid-{tvm_hybrid.__version__}-py3-none-any.whl"
    inside = zipfile.ZipFile(wheel).namelist()
    licences = [f"licenses/{name}" for name in license_files(ROOT)]
    for wanted in (*licences, "machines/znver4.json", "recordings/", "py.typed"):
        assert any(wanted in name for name in inside), wanted
    assert not [name for name in inside if name.startswith(("tests", "tools"))]
    with tarfile.open(archive) as files:
        for wanted in ("machines/znver4.json", *license_files(ROOT)):
            assert any(name.endswith(wanted) for name in files.getnames()), wanted
    venv.create(tmp_path / "empty", with_pip=True)
    programs = tmp_path / "empty" / "bin"
    run(programs / "pip", "install", "--quiet", wheel, cwd=tmp_path)
    assert str(programs.parent) in run(programs / "python", "-c", QUICKSTART, cwd=tmp_path)
    printed = run(programs / "tvm-hybrid", "--version", cwd=tmp_path)
    assert printed == f"tvm-hybrid, version {tvm_hybrid.__version__}\n"
    # A wheel from the source distribution shows that the distribution is complete.
    run(
        programs / "pip",
        "install",
        "--quiet",
        "--force-reinstall",
        "--no-deps",
        archive,
        cwd=tmp_path,
    )
    run(programs / "python", "-c", QUICKSTART, cwd=tmp_path)
