"""No command overwrites its inputs, under any name, or a file of another kind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pytest

import tvm_hybrid
from tests.tvm_hybrid.onnx_models import saved
from tvm_hybrid.cli import main
from tvm_hybrid.cli.base.options import FileCommand, OutputFile
from tvm_hybrid.cli.group import COMMANDS, cli
from tvm_hybrid.errors import OutputError, RecordError

SAME = {
    "itself": lambda path, link: path,
    "a symbolic link": lambda path, link: (link.symlink_to(path), link)[1],
    "a hard link": lambda path, link: (os.link(path, link), link)[1],
    "a path with detours": lambda path, link: path.parent / "." / path.name,
}
# Input file, its suffix, and the command that would overwrite it.
WRITERS: dict[str, tuple[str, list[str]]] = {
    "compile": (".so", ["compile", "READ", "-o", "WRITTEN"]),
    "compile, records": (".so", ["compile", "M", "--records", "READ", "-o", "WRITTEN"]),
    "quantize": (".onnx", ["quantize", "READ", "--dynamic", "-o", "WRITTEN"]),
    "report": (".html", ["report", "READ", "-o", "WRITTEN"]),
    "run": (".npz", ["run", "READ", "--output", "WRITTEN"]),
    "run, inputs": (".npz", ["run", "M", "--inputs", "READ", "--output", "WRITTEN"]),
    "run, input": (".npz", ["run", "M", "--input", "x=READ", "--output", "WRITTEN"]),
    "bench": (".csv", ["bench", "READ", "--csv", "WRITTEN"]),
    "tune": (".png", ["tune", "READ", "--plot", "WRITTEN"]),
    "simulate": (".png", ["simulate", "READ", "--plot", "WRITTEN"]),
}


@pytest.mark.parametrize("way", SAME)
@pytest.mark.parametrize("name", WRITERS)
def test_what_is_read_is_not_written_over(
    name: str, way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suffix, arguments = WRITERS[name]
    read = tmp_path / f"read{suffix}"
    read.write_bytes(b"precious")
    written = SAME[way](read, tmp_path / f"link{suffix}")
    places = {"READ": str(read), "WRITTEN": str(written), "M": str(tmp_path / "none.onnx")}
    words = [places.get(word, word.replace("READ", str(read))) for word in arguments]
    assert main(words) == 2
    assert "is the file that is read; write into another file" in capsys.readouterr().err
    assert read.read_bytes() == b"precious"


@pytest.mark.parametrize(
    "arguments",
    [
        ["compile", "M", "-o", "M"],
        ["quantize", "M", "--dynamic", "-o", "data.npz"],
        ["report", "M", "-o", "M"],
        ["run", "M", "--output", "M"],
        ["run", "M", "--output", "other.onnx"],
        ["bench", "M", "--csv", "M"],
        ["bench", "--layers", "resnet18", "--markdown", "M"],
        ["kernels", "--markdown", "M"],
        ["calibrate", "--output", "M"],
        ["simulate", "--markdown", "M"],
        ["tune", "M", "--plot", "M"],
        ["tune", "M", "--records", "M"],
        ["tune", "M", "--records", "notes.jsonl"],
        ["records", "prune", "M"],
        ["records", "prune", "notes.jsonl"],
        ["records", "merge", "M", "-o", "M"],
        ["records", "merge", "notes.jsonl", "-o", "notes.jsonl"],
    ],
)
def test_a_file_of_another_kind_stays_as_it_is(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    model = saved(tmp_path)
    Path("other.onnx").write_bytes(b"precious")
    Path("notes.jsonl").write_text('{"note": "not of a tuner"}\n')
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert main([str(model) if word == "M" else word for word in arguments]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Error: ")]
    assert "does not end in" in line or "is no record file" in line or "is the file" in line
    found = {path: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".lock"}
    assert found == before


def test_every_output_of_a_file_has_the_type_that_looks() -> None:
    """Options that are named like outputs are checked as outputs."""
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        outputs = [
            each for each in command.params if each.name in ("output", "table", "plot", "markdown")
        ]
        for option in outputs:
            assert isinstance(option.type, OutputFile), (name, option.name)
        if outputs and any(type(each.type) is click.Path for each in command.params):
            assert isinstance(command, FileCommand), name


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (lambda path: tvm_hybrid.quantize(path, path, mode="dynamic"), OutputError),
        (lambda path: tvm_hybrid.tune(path, records=path), RecordError),
    ],
)
def test_functions_refuse_it_too(
    use: Callable[[Path], object], error: type[Exception], tmp_path: Path
) -> None:
    model = saved(tmp_path)
    before = model.read_bytes()
    with pytest.raises(error):
        use(model)
    assert model.read_bytes() == before


def test_outputs_replace_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An existing output of the right kind that is not an input is overwritten."""
    model, output, feeds = saved(tmp_path), tmp_path / "y.npz", tmp_path / "x.npz"
    np.savez(feeds, x=np.zeros((4, 8), np.float32))
    for _ in range(2):
        assert main(["run", str(model), "--inputs", str(feeds), "--output", str(output)]) == 0
    assert sorted(np.load(output)) == ["y"] and sorted(np.load(feeds)) == ["x"]
    assert capsys.readouterr().out
