"""Dynamic sizes come from arrays, from --dim, or are 1; a library keeps them dynamic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.onnx_models import reference, saved, two_layers
from tvm_hybrid.cli import main
from tvm_hybrid.cli.base.models import sized
from tvm_hybrid.options import CompileOptions

NOTE = "sizes that are not given are 1: rows; set them by --dim NAME=SIZE\n"
TURNS = ["--peers", "ort", "--repeat", "1", "--seconds", "0", "--warmup", "0"]
COMMANDS = {
    "run": ["run", "M"],
    "verify": ["verify", "M"],
    "bench": ["bench", "M", *TURNS],
    "bench --streams": ["bench", "M", "--streams", "1", *TURNS],
    "bench --predict": ["bench", "M", "--predict", "--target", "spr"],
    "explain": ["explain", "M"],
    "profile": ["profile", "M", "--repeat", "1"],
    "report": ["report", "M", "--repeat", "1"],
    "scale": ["scale", "M", "--threads", "1"],
    "tune": ["tune", "M", "--trials", "1"],
}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model with a dynamic dimension, with feeds of three rows beside it."""
    monkeypatch.chdir(tmp_path)
    np.savez("feeds.npz", x=np.ones((3, 8), np.float32))
    np.save("x.npy", np.ones((4, 8), np.float32))
    return str(saved(tmp_path, two_layers("rows")))


def told(arguments: list[str], model: str, capsys: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    """A command's JSON output and its notes."""
    words = [model if word == "M" else word for word in arguments]
    without = words[0] == "scale" or "--predict" in words or words[1] == "m.so"
    threads = [] if without else ["--threads", "1"]
    assert main([*words, *threads, "--json"]) == 0
    shown = capsys.readouterr()
    return json.loads(shown.out), shown.err


@pytest.mark.parametrize("name", COMMANDS)
def test_sizes_are_1_with_a_note(name: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(COMMANDS[name], model, capsys)[1].count(NOTE) == 1


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "bench --predict"])
def test_sizes_are_those_of_arrays(
    name: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert NOTE not in told([*COMMANDS[name], "--inputs", "feeds.npz"], model, capsys)[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_sizes_are_those_of_options(
    name: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in (["--dim", "rows=2"], ["--shape", "x=2x8"]):
        assert NOTE not in told([*COMMANDS[name], *option], model, capsys)[1]


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ([], 1),
        (["--inputs", "feeds.npz"], 3),
        (["--input", "x=x.npy"], 4),
        (["--dim", "rows=2"], 2),
        (["--inputs", "feeds.npz", "--keep-dynamic"], 3),
    ],
)
def test_results_have_these_sizes(
    options: list[str], rows: int, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(["run", "M", *options], model, capsys)[0]["outputs"]["y"]["shape"] == [rows, 5]
    flops = told(["bench", "M", *TURNS, *options], model, capsys)[0]["flops"]
    assert flops == 2 * rows * (8 * 16 + 16 * 5)


def test_a_library_keeps_dynamic_sizes(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", model, "-o", "m.so"]) == 0
    assert "1: rows" not in capsys.readouterr().err
    for file, rows in (("feeds.npz", 3), ("x.npz", 4)):
        np.savez("x.npz", x=np.ones((4, 8), np.float32))
        found, _ = told(["run", "m.so", "--inputs", file], model, capsys)
        wanted = reference(np.ones((rows, 8), np.float32))
        np.testing.assert_allclose(found["outputs"]["y"]["values"], wanted, rtol=1e-4)
    assert main(["verify", "m.so", "--onnx", model, "--inputs", "feeds.npz"]) == 0
    assert main(["compile", model, "-o", "m.so", "--dim", "rows=2"]) == 0
    capsys.readouterr()
    assert told(["inspect", "m.so"], model, capsys)[0]["inputs"] == ["x: float32[2, 8]"]
    assert main(["run", "m.so", "--inputs", "feeds.npz"]) == 2
    assert "expected x: float32[2, 8]" in capsys.readouterr().err


def test_sizes_of_several_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Shared names agree, sums follow, unnamed sizes are 1; given sizes stay."""
    graph = OnnxBuilder()
    shapes: dict[str, Any] = {
        "a": ("batch", "past"),
        "b": ("batch", "past + new"),
        "c": ("batch", None),
        "d": (2, "batch"),
        "e": (2, 3),
    }
    for name, shape in shapes.items():
        graph.output(graph.node("Relu", graph.input(name, shape)), shape)
    path = saved(tmp_path, graph.model())

    def found(options: CompileOptions, **given: tuple[int, ...]) -> Any:
        arrays = {name: np.zeros(shape, np.float32) for name, shape in given.items()}
        return sized(path, options, arrays).shapes

    assert found(CompileOptions()) == {"a": (1, 1), "b": (1, 2), "c": (1, 1), "d": (2, 1)}
    said = capsys.readouterr().err
    assert said.startswith("sizes that are not given are 1: batch, past, new, dimension 1 of c;")
    assert found(CompileOptions(), a=(4, 5)) == {"a": (4, 5), "b": (4, 6), "c": (4, 1), "d": (2, 4)}
    assert "batch" not in capsys.readouterr().err
    given = found(CompileOptions(shapes={"batch": 3, "past": 2}), c=(3, 7))
    assert given == {"batch": 3, "past": 2, "b": (3, 3), "c": (3, 7)}
    everything = CompileOptions(shapes={"batch": 3, "past": 2, "past + new": 4, "c": (3, 4)})
    capsys.readouterr()
    assert found(everything) == everything.shapes and not capsys.readouterr().err
    assert found(CompileOptions(keep_dynamic=True)) is None


def test_a_model_that_must_be_static_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = OnnxBuilder()
    x = graph.input("x", ("n", 4), np.float64)
    weight = graph.constant(np.ones((4, 4)), np.float64)
    graph.output(graph.node("MatMul", x, weight), ("n", 4), np.float64)
    path, library = str(saved(tmp_path, graph.model())), str(tmp_path / "m.so")
    assert main(["compile", path, "-o", library, "--strict"]) == 2
    assert "dynamic: x: float64[n, 4]; --dim makes a size static\n" in capsys.readouterr().err
    assert main(["compile", path, "-o", library, "--strict", "--dim", "n=2"]) == 2
    assert "dynamic" not in capsys.readouterr().err
