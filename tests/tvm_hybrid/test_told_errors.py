"""Users' mistakes: one of our exceptions in Python, one line at the command line."""

from __future__ import annotations

import io
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_hybrid
from tests.tvm_hybrid.onnx_models import saved, two_layers
from tvm_hybrid import errors
from tvm_hybrid.cli import main

X = np.zeros((4, 8), np.float32)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder with files of every wrong kind."""
    monkeypatch.chdir(tmp_path)
    saved(tmp_path)
    Path("text").write_text("words")
    Path("page.html").write_text("\n<!DOCTYPE html><html>not found</html>")
    Path("m.tflite").write_bytes(b"\x1c\0\0\0TFL3" + bytes(100))
    with zipfile.ZipFile("m.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"x")
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save("x.npy", X)
    onnx.save_model(
        two_layers(), "outside.onnx", save_as_external_data=True, location="w", size_threshold=0
    )
    Path("w").unlink()
    return tmp_path


def run(feeds: Any) -> Callable[[], object]:
    """Runs a valid model."""
    return lambda: tvm_hybrid.InferenceSession("model.onnx", num_threads=1).run(None, feeds)


@pytest.mark.parametrize("door", [tvm_hybrid.compile, tvm_hybrid.InferenceSession, tvm_hybrid.tune])
@pytest.mark.parametrize(
    ("model", "options", "kind", "words"),
    [
        ("page.html", {}, errors.ModelError, r"a web page .* not an ONNX model$"),
        ("m.tflite", {}, errors.ModelError, "TensorFlow Lite"),
        ("m.pt", {}, errors.ModelError, "PyTorch"),
        ("x.npy", {}, errors.ModelError, "NumPy"),
        ("text", {}, errors.ModelError, r"5 bytes\); export it again"),
        ("none.onnx", {}, errors.ModelError, "no model file none.onnx"),
        ("outside.onnx", {}, errors.ModelError, "there is no file w; put it there"),
        (io.BytesIO(b""), {}, errors.ModelError, r"its read\(\)"),
        ("model.onnx", {"shapes": (4, 8)}, errors.ShapeError, "must be a dictionary"),
        ("model.onnx", {"values": [1]}, errors.InputValueError, "must be a dictionary"),
        ("model.onnx", {"num_thread": 2}, errors.UnknownOptionError, "did you mean num_threads?"),
        ("model.onnx", {"num_thread": 2}, TypeError, "did you mean num_threads?"),
        ("model.onnx", {"precision": "int8"}, errors.CompileError, "tvm-hybrid quantize"),
        ("model.onnx", {"target": "pentium"}, errors.TargetError, "x86-64"),
    ],
)
def test_a_slip_is_one_exception_of_ours(
    door: Callable[..., object],
    model: Any,
    options: dict[str, Any],
    kind: type[Exception],
    words: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(kind, match=words) as caught:
        door(model, **options)
    _require_one(caught.value)


@pytest.mark.parametrize(
    ("slip", "words"),
    [
        (run({"z": X}), "no value for input 'x'"),
        (run({"x": X, "z": X}), "no input 'z'"),
        (run([X]), "must be a dictionary"),
        (run({"x": X[:, 1:]}), "give an array of the shape expected"),
        (lambda: tvm_hybrid.load("none.so"), "none.so"),
        (lambda: tvm_hybrid.load("text"), "not a shared library"),
        (lambda: tvm_hybrid.quantize("page.html", "q.onnx", mode="dynamic"), "web page"),
    ],
)
def test_so_is_one_at_other_doors(slip: Callable[[], object], words: str) -> None:
    with pytest.raises(errors.TvmHybridError, match=words) as caught:
        slip()
    _require_one(caught.value)


def _require_one(error: BaseException) -> None:
    shown = "".join(traceback.format_exception(error))
    assert shown.count("Traceback (most recent call last)") == 1, shown
    assert f"\ntvm_hybrid.errors.{type(error).__name__}: " in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "model.onnx", "--inputs", "text"], "numpy.savez write such files"),
        (["run", "model.onnx", "--input", "x=text"], "text cannot be read as one .npy array"),
        (["run", "model.onnx", "--input", "x=objects.npy"], "of numbers alone"),
        (["run", "model.onnx", "--input", "x=none.npy"], "there is no such file"),
        (["run", "model.onnx", "--precision", "int8"], "`tvm-hybrid quantize` makes one"),
        (["run", "page.html"], "a web page"),
        (["run", "outside.onnx"], "there is no file w; put it there"),
        (["run", "model.onnx", "--target", "pentium"], "lacks 64bit"),
        (["run", "model.onnx", "--target", "cuda"], "name a CPU, such as 'spr'"),
        *(
            ([command, "none.onnx", *more], "there is no model file none.onnx; check the path")
            for command, *more in (
                ("compile", "-o", "m.so"),
                ("run",),
                ("bench",),
                ("serve",),
                ("verify",),
                ("quantize", "--dynamic", "-o", "q.onnx"),
                ("explain",),
                ("report", "--json"),
                ("scale",),
                ("tune",),
                ("layouts",),
            )
        ),
    ],
)
def test_a_slip_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1 and words in lines[0], said
    assert "unsafely" not in said and "Wire format" not in said
    if "none.onnx" in arguments:
        assert said == f"Error: {words}\n"


def test_a_contestant_that_was_named_must_be_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TVM_HYBRID_OPENVINO_PYTHON", "/nowhere/python")
    turns = ["--repeat", "1", "--seconds", "0", "--warmup", "0", "--threads", "1"]
    assert main(["bench", "model.onnx", "--peers", "openvino", *turns]) == 1
    assert "left out: OpenVINO" in " ".join(capsys.readouterr().err.split())
    assert main(["bench", "model.onnx", "--peers", "ort", *turns]) == 0
