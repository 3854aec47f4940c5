"""`inspect`, `profile`, `bench` and `verify` of libraries, hints, and the order of the help."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import pytest
from onnx import helper

from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.onnx_models import saved
from tvm_hybrid.cli import main
from tvm_hybrid.cli.base.options import FileCommand, SharedOption
from tvm_hybrid.cli.group import COMMANDS, cli

TURNS = ["--repeat", "1", "--seconds", "0", "--warmup", "0", "--threads", "1"]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return str(saved(tmp_path))


@pytest.fixture
def library(model: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["compile", model, "-o", "m.so", "--threads", "1"]) == 0
    capsys.readouterr()
    return "m.so"


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("arguments", [[], ["--debug"], ["records"]])
def test_without_a_command_there_is_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("Usage: tvm-hybrid") and "\nCommands:\n" in shown.out
    assert not shown.err


def test_own_options_come_before_those_of_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        shared = [each for each in command.params if isinstance(each, SharedOption)]
        if not shared:
            continue
        assert isinstance(command, FileCommand), name
        assert main([name, "--help"]) == 0
        own, title, others = capsys.readouterr().out.partition("\nHow the model is compiled:\n")
        assert title and "\nOptions:\n" in own, name
        options = [each for each in command.params if isinstance(each, click.Option)]
        for option in options:
            place = others if option in shared else own
            is_shown = f" {option.opts[-1]} " in place.replace("\n", " ")
            assert is_shown != option.hidden, (name, option.name)  # old names are hidden


def test_inspect_shows_a_model(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "inspect", model)
    assert found["opset"] == {"ai.onnx": 17}
    assert found["inputs"] == ["x: float32[4, 8]"] and found["outputs"] == ["y: float32[4, 5]"]
    assert found["operators"] == {"MatMul": 2, "Relu": 1}
    assert found["weights"] == f"2, {4 * (8 * 16 + 16 * 5)} bytes"
    assert found["refused"] == "nothing"
    assert main(["inspect", model]) == 0
    assert "operators:\n  2 MatMul\n  1 Relu\nrefused: nothing\n" in capsys.readouterr().out


def test_inspect_shows_what_would_be_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lists all unknown operators, in branches too; otherwise the unsupported form."""
    proto = onnx.load(saved(tmp_path))
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    proto.graph.node.append(helper.make_node("Odd", ["y"], ["z"], domain="mine"))
    proto.graph.node.append(helper.make_node("Even", ["y"], ["w"], domain="mine"))
    onnx.save(proto, tmp_path / "odd.onnx")
    found = told(capsys, "inspect", str(tmp_path / "odd.onnx"))
    words = "this operator is not known"
    assert found["refused"] == [f"mine.Odd: {words}", f"mine.Even: {words}"]
    graph = OnnxBuilder()
    x = graph.input("x", ("n", 4))
    axes = graph.input("axes", (1,), np.int64)
    graph.output(graph.node("ReduceSum", x, axes, keepdims=0), (None,))
    path = str(saved(tmp_path, graph.model()))
    (refused,) = told(capsys, "inspect", path)["refused"]
    assert "--value 'axes=[1]'" in refused or "--value" in refused
    assert told(capsys, "inspect", path, "--value", "axes=[1]")["refused"] == "nothing"


def test_inspect_shows_a_library(library: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "inspect", library)
    assert found["inputs"] == ["x: float32[4, 8]"] and "threads: 1" in found["library"]


def test_profile(library: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    for what in (library, model):
        found = told(capsys, "profile", what, "--repeat", "2", "--trace", "t.json")
        assert found["repeat"] == 2 == len(found["runs_us"]) and found["total_us"] > 0
        assert any("mlp_chain" in row["function"] for row in found["rows"])
        assert json.loads(Path("t.json").read_text())["traceEvents"]
    assert main(["profile", model]) == 0
    assert "us a run" in capsys.readouterr().out


def test_bench_of_a_library(library: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    turns = TURNS[:-2]
    alone = told(capsys, "bench", library, *turns)
    assert [row["name"] for row in alone["rows"]] == ["tvm_hybrid"] and alone["rows"][0]["agrees"]
    both = told(capsys, "bench", library, "--onnx", model, "--peers", "ort", *turns)
    assert [row["name"] for row in both["rows"]] == ["tvm_hybrid", "ONNX Runtime"]
    assert both["flops"] == 2 * 4 * (8 * 16 + 16 * 5)
    for arguments, words in (
        ([library, "--peers", "ort"], "by --onnx"),
        ([model, "--onnx", model], "--onnx names the model that a library was made of"),
        ([library, "--onnx", model, "--streams", "1"], "--onnx is for a library"),
    ):
        assert main(["bench", *arguments, *turns]) == 2
        assert words in capsys.readouterr().err


def test_verify_of_a_library(
    library: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(capsys, "verify", library, "--onnx", model)["passed"]
    other = onnx.load(model)
    weight = other.graph.initializer[0]
    weight.raw_data = bytes(len(weight.raw_data))
    onnx.save(other, tmp_path / "other.onnx")
    assert main(["verify", library, "--onnx", str(tmp_path / "other.onnx")]) == 1
    assert "FAIL" in capsys.readouterr().out
    for arguments in ([library], [model, "--onnx", model]):
        assert main(["verify", *arguments]) == 2
        assert "--onnx names the model that a library was made of" in capsys.readouterr().err


def test_hints_choose_streams(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    turns = [*TURNS[:-1], "2", "--peers", ""]
    (row,) = told(capsys, "bench", model, "--hint", "latency", *turns)["rows"]
    assert "streams" not in row
    report = told(capsys, "bench", model, "--hint", "throughput", *turns)
    (row,) = report["rows"]
    rates = {int(count): rate for count, rate in report["tried"].items()}
    assert list(rates) == [1, 2]
    assert row["streams"] == max(rates, key=lambda count: rates[count])
    assert row["streams"] * row["threads"] == 2
    assert main(["bench", model, "--hint", "latency", "--streams", "1"]) == 2
    assert "--hint chooses the streams" in capsys.readouterr().err
