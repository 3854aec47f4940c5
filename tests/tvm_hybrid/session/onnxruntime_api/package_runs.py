"""Runs a published package over ONNX Runtime and over our module, and compares its answers."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[4]
# `make test-all` installs the extra `packages` there, because packages want other versions of
# what .venv and .venv/torch have.
INTERPRETER = ROOT / ".venv" / "packages" / "bin" / "python"

SWAP = """
import json, sys
if sys.argv[1] == "ours":
    import tvm_hybrid.onnxruntime
    sys.modules["onnxruntime"] = tvm_hybrid.onnxruntime
"""


def interpreter_with(package: str) -> Path:
    """A Python that can import a package; skips the test if there is none."""
    if importlib.util.find_spec(package) is not None:
        return Path(sys.executable)
    if not INTERPRETER.exists():
        pytest.skip(f"`make test-all` installs {package}, by the extra `packages`")
    return INTERPRETER


def run(script: str, which: str, *arguments: Path, python: Path | None = None) -> list[Any]:
    """Prints the module of a script's session, and the script's results."""
    done = subprocess.run(
        [str(python or sys.executable), "-c", SWAP + script, which, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(script: str, allowed: float, *arguments: Path, python: Path | None = None) -> None:
    """Runs a script with both modules: answers are equal, scores nearly equal."""
    (ours, mine), (theirs, others) = (
        run(script, each, *arguments, python=python) for each in ("ours", "theirs")
    )
    assert ours == "tvm_hybrid.session.inference_session" and theirs.startswith("onnxruntime.")
    assert [label for label, _ in mine] == [label for label, _ in others] != []
    for (_, score), (_, other) in zip(mine, others, strict=True):
        assert abs(score - other) <= allowed
