"""Stages on a terminal, tables on narrow ones, advice in errors, options of several commands."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from relay_passes.ir.stages import Stage, listening, size_of
from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.onnx_models import saved, two_layers
from tests.tvm_hybrid.small_models import mlp_module
from tvm_hybrid import compile as compile_model
from tvm_hybrid import tune
from tvm_hybrid.cli import main
from tvm_hybrid.errors import CompileError
from tvm_hybrid.frontend.onnx.operators import why_unsupported
from tvm_hybrid.runtime.places import on_cpus
from tvm_hybrid.tuning import Trial

pytestmark = pytest.mark.turns

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output goes to a terminal without colours, 60 columns wide."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")


def doubles() -> onnx.ModelProto:
    """A product of float64, which no template takes."""
    g = OnnxBuilder()
    g.output(
        g.node("MatMul", g.input("x", (8, 8), np.float64), g.input("z", (8, 8), np.float64)),
        (8, 8),
        np.float64,
    )
    return g.model()


def untemplated() -> onnx.ModelProto:
    """An operator that has no template at all."""
    g = OnnxBuilder()
    g.output(g.node("LRN", g.input("x", (1, 4, 8, 8)), size=3), (1, 4, 8, 8))
    return g.model()


def test_stages_are_announced_in_order_with_counts() -> None:
    found: list[Stage] = []
    with listening(found.append):
        compile_model(two_layers(), num_threads=1)
    compile_model(two_layers(), num_threads=1)  # without a listener
    assert [stage.number for stage in found] == list(range(1, 10))
    assert {stage.count for stage in found} == {10}  # an executable makes machine code later
    assert found[0].size.startswith("operators: ")
    assert "regions: 1" in found[4].size and "kernels: 1" in found[-1].size
    assert size_of(mlp_module()) == "operators: 3"


@pytest.mark.skipif(shutil.which("g++") is None, reason="exporting needs g++")
def test_compile_shows_stages_on_a_terminal_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compile", str(saved(tmp_path)), "-o", str(tmp_path / "m.so"), "--threads", "1"]
    assert main(arguments) == 0
    assert capsys.readouterr().err.split("\n") == ["compiling model.onnx", ""]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    assert main(arguments) == 0
    shown = capsys.readouterr().err
    assert " s  reading the model" in shown and " s  writing the library" in shown
    assert "9/10 kernels optimised by LLVM" in shown and "regions: 1" in shown
    assert "10/10 machine code" in shown
    assert main(["explain", arguments[1]]) == 0
    shown = capsys.readouterr().err
    assert "compiling model.onnx" in shown and " s  " not in shown  # no stage's line remains


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("command", ["explain", "verify", "bench --peers ort --repeat 1", "scale"])
def test_tables_fit_into_60_columns(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *options = command.split()
    assert main([name, str(saved(tmp_path)), *options]) == 0
    lines = ESCAPE.sub("", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 60
    assert not [line for line in lines if "\N{HORIZONTAL ELLIPSIS}" in line]  # no text is cut


def test_strict_refuses_what_a_template_is_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As its help says: operators without any template are allowed."""
    path = str(saved(tmp_path, doubles()))
    for command in ("explain", "tune"):
        records = ["--records", str(tmp_path / "r.jsonl")] if command == "tune" else []
        assert main([command, path, "--strict", *records]) == 2
        error = " ".join(capsys.readouterr().err.split())
        assert "--strict: no template takes matmul" in error and "float64" in error
        assert "Compile without --strict" in error
    assert main(["explain", path]) == 0
    assert main(["explain", str(saved(tmp_path, untemplated())), "--strict"]) == 0
    assert main(["explain", "--help"]) == 0
    assert "operators without any template remain" in " ".join(capsys.readouterr().out.split())


def test_tune_takes_the_common_options(tmp_path: Path) -> None:
    """A place binds this process and its measurers; passes are dumped."""
    cpu = min(os.sched_getaffinity(0))
    seen = []

    def watch(_trial: Trial) -> None:
        seen.append(os.sched_getaffinity(0))

    before = os.sched_getaffinity(0)
    result = tune(
        two_layers(),
        records=tmp_path / "r.jsonl",
        trials=1,
        threads=f"{cpu}-{cpu}",
        dump_ir=tmp_path / "ir",
        callbacks=[watch],
    )
    assert seen[0] == {cpu} and os.sched_getaffinity(0) == before
    assert result.regions and list((tmp_path / "ir").iterdir())
    with pytest.raises(CompileError, match="strict: no template takes matmul"):
        tune(doubles(), records=tmp_path / "r.jsonl", strict=True)


def test_cpus_are_given_back_after_an_error() -> None:
    before = os.sched_getaffinity(0)
    with on_cpus(()):
        assert os.sched_getaffinity(0) == before
    with pytest.raises(ValueError, match="inside"), on_cpus((min(before),)):
        assert os.sched_getaffinity(0) == {min(before)}
        raise ValueError("inside")
    assert os.sched_getaffinity(0) == before


def test_predictions_of_float32_advise_bf16(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(saved(tmp_path))
    advice = "(regions with such products: 1); with --precision bf16 they do"
    assert main(["bench", path, "--predict"]) == 0
    assert advice in capsys.readouterr().out
    assert main(["bench", path, "--predict", "--json"]) == 0
    assert advice in json.loads(capsys.readouterr().out)["advice"]
    assert main(["bench", path, "--predict", "--precision", "bf16"]) == 0
    assert "float32" not in capsys.readouterr().out


def bad_models() -> Iterator[tuple[str, onnx.ModelProto, str]]:
    """Models with one wrong node, and the message about it."""

    def model(op: str, inputs: tuple[str, ...] = ("x",), domain: str = "") -> onnx.ModelProto:
        values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2, 3)) for n in "xy"]
        node = helper.make_node(op, inputs, ["y"], name="it", domain=domain)
        graph = helper.make_graph([node], "g", values[:1], values[1:])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    yield "unknown", model("FooBar"), "FooBar is not known: it is no operator of ONNX"
    yield "misspelt", model("Sofmax"), "did you mean Softmax"
    yield "domain", model("FooBar", domain="mine"), "FooBar of domain mine is not known; export"
    yield "shape", model("MatMul", ("x", "x")), "matrix multiplication; correct the model"
    yield "count", model("Relu", ("x", "x")), "has 2 inputs, and the operator takes 1; export"


@pytest.mark.parametrize(
    ("model", "message"), [pytest.param(*rest, id=name) for name, *rest in bad_models()]
)
def test_a_bad_node_is_one_message_with_advice(
    model: onnx.ModelProto, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(saved(tmp_path, model))]) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("Error: ")]
    assert message in line and "node 'it'" in line
    assert line.count(";") == 1


def test_an_operator_without_a_converter_is_not_called_unknown() -> None:
    node = helper.make_node("RegexFullMatch", ["x"], ["y"])
    assert "came with opset 20, and the model asks for opset 17" in why_unsupported(node, 17)
    assert why_unsupported(node, 21).startswith("RegexFullMatch is not supported; replace it")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((4, 8)), "expected x: float32[4, 8], got x: float64[4, 8]; array.astype('float"),
        (np.zeros((3, 8), np.float32), "got x: float32[3, 8]; give an array of the shape expected"),
    ],
)
def test_a_wrong_array_is_refused_with_advice(
    array: np.ndarray, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", array)
    assert main(["run", str(saved(tmp_path)), "--input", f"x={tmp_path / 'x.npy'}"]) == 2
    assert message in capsys.readouterr().err


def test_check_of_a_missing_library_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "missing.so"]) == 2
    assert "there is no library missing.so; check the path" in capsys.readouterr().err
