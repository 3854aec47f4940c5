"""The command line: its output and its exit codes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import ml_dtypes
import numpy as np
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.onnx_models import reference, saved, two_layers
from tvm_hybrid.cli import main
from tvm_hybrid.cli.base.console import print_json
from tvm_hybrid.cli.group import COMMANDS, cli

pytestmark = pytest.mark.turns

ROOT = Path(__file__).resolve().parents[3]
X = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(tmp_path)


@pytest.fixture
def x_file(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", X)
    return tmp_path / "x.npy"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n  {name} " in listed for name in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tvm-hybrid, version {tvm_hybrid.__version__}\n"


def test_commands_are_imported_when_they_are_used() -> None:
    code = (
        "import sys; from tvm_hybrid.cli import main; main(['run', '--help']);"
        "found = {n for n in sys.modules if n.startswith('tvm_hybrid.cli.')};"
        "sys.exit(len({'tvm_hybrid.cli.bench', 'tvm_hybrid.cli.tune'} & found))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode
        == 0
    )


def test_run_computes_what_the_model_means(
    model: Path, x_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "y.npz"
    assert main(["run", str(model), "--input", f"x={x_file}", "--output", str(output)]) == 0
    shown = capsys.readouterr()
    assert "y: float32[4, 5]" in shown.out
    assert "random" not in shown.err
    with np.load(output) as arrays:
        # Two f32 sums of 8 and 16 products: the error is far below 1e-5 of values around 10.
        assert np.allclose(arrays["y"], reference(X), rtol=1e-5, atol=1e-5)


def test_run_says_that_it_made_up_inputs(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(model), "--json", "--seed", "1"]) == 0
    shown = capsys.readouterr()
    assert "random values for input x" in shown.err
    answer = json.loads(shown.out)
    assert answer["random_inputs"] == ["x"]
    assert np.allclose(answer["outputs"]["y"]["values"], reference(X), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(shutil.which("g++") is None, reason="exporting needs g++")
def test_compile_then_run_explain_and_refuse(
    model: Path, x_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = tmp_path / "m.so"
    assert main(["compile", str(model), "-o", str(library), "--json", "--threads", "1"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["library"] == str(library) and facts["bytes"] == library.stat().st_size
    assert facts["threads"] == 1 and 0 < facts["taken"] <= facts["nodes"]
    assert main(["run", str(library), "--input", f"x={x_file}", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert np.allclose(answer["outputs"]["y"]["values"], reference(X), rtol=1e-5, atol=1e-5)
    assert main(["explain", str(library), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["taken"]
    assert main(["run", str(library), "--threads", "2"]) == 2
    assert "compiled already" in capsys.readouterr().err
    assert main(["compile", str(library), "-o", str(tmp_path / "n.so")]) == 2
    assert "compiled already" in capsys.readouterr().err


def test_explain_shows_kernel_and_reason(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(model), "--threads", "1"]) == 0
    table = capsys.readouterr().out
    assert "matmul + relu" in table and "default" in table
    assert main(["explain", str(model), "--json"]) == 0
    decisions = json.loads(capsys.readouterr().out)
    assert decisions == json.loads(tvm_hybrid.compile(model).explain().to_json())


def test_a_named_machine_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = saved(tmp_path, two_layers(512))

    def configs(*options: str) -> list[str]:
        assert main(["explain", str(model), "--target", "zen4", "--json", *options]) == 0
        return [row["config"] for row in json.loads(capsys.readouterr().out)]

    path = tmp_path / "mine.json"
    fork = '{"value": 1e6, "kind": "guess", "source": "a test"}'
    numbers = f'{{"fork_us": {fork}}}'
    path.write_text(f'{{"title": "a test", "inherits": "znver4", "numbers": {numbers}}}')
    threads = ["--threads", "2"]
    assert configs(*threads) != configs(*threads, "--machine", str(path))
    path.write_text("{}")
    assert main(["explain", str(model), "--machine", str(path)]) == 2
    assert f"{path} is no description of a machine" in capsys.readouterr().err


def test_dump_ir_writes_the_passes(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "ir"
    assert main(["explain", str(model), "--dump-ir", str(folder)]) == 0
    assert len([path for path in folder.iterdir() if path.stat().st_size]) > 5


def test_shapes_and_dims(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(saved(tmp_path, two_layers("rows")))
    for option in (["--dim", "rows=3"], ["--shape", "x=3x8"]):
        assert main(["run", path, "--json", *option]) == 0
        assert json.loads(capsys.readouterr().out)["outputs"]["y"]["shape"] == [3, 5]
    assert main(["run", path, "--json"]) == 0
    shown = capsys.readouterr()
    assert "sizes that are not given are 1: rows; set them by --dim" in shown.err
    assert json.loads(shown.out)["outputs"]["y"]["shape"] == [1, 5]


def test_sizes_may_stay_dynamic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, library = str(saved(tmp_path, two_layers("rows"))), str(tmp_path / "dynamic.so")
    assert main(["compile", path, "-o", library, "--keep-dynamic"]) == 0
    for rows in (3, 4):
        np.save(tmp_path / "x.npy", np.zeros((rows, 8), np.float32))
        given = ["--input", f"x={tmp_path / 'x.npy'}"]
        capsys.readouterr()
        assert main(["run", library, "--json", *given]) == 0
        assert json.loads(capsys.readouterr().out)["outputs"]["y"]["shape"] == [rows, 5]
    assert main(["verify", path, "--keep-dynamic", *given]) == 0
    capsys.readouterr()
    assert main(["verify", path, "--keep-open", *given]) == 0
    assert "--keep-open is now --keep-dynamic" in capsys.readouterr().err
    assert main(["bench", path, "--keep-dynamic", "--peers", "ort", "--repeat", "1", *given]) == 0
    for refused in (["scale", path], ["bench", path, "--predict"]):
        assert main([*refused, "--keep-dynamic"]) == 2
        assert "static sizes" in capsys.readouterr().err


def test_values_of_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = OnnxBuilder()
    x, axes = graph.input("x", (3, 4)), graph.input("axes", (1,), np.int64)
    graph.output(graph.node("ReduceSum", x, axes, keepdims=0), (None,))
    path, file = str(saved(tmp_path, graph.model())), tmp_path / "axes.npy"
    np.save(file, np.array([1]))
    for option in (["--value", "axes=[1]"], ["--input", f"axes={file}"]):
        assert main(["run", path, "--json", *option]) == 0
        (output,) = json.loads(capsys.readouterr().out)["outputs"].values()
        assert output["shape"] == [3]
        assert main(["verify", path, *option]) == 0
        capsys.readouterr()
    assert main(["explain", path, "--value", "axes=[0]"]) == 0
    assert "made for axes=[0]" in capsys.readouterr().out
    library = str(tmp_path / "sum.so")
    assert main(["compile", path, "-o", library, "--value", "axes=[0]"]) == 0
    assert main(["run", library]) == 0
    capsys.readouterr()
    for arguments, message in (
        (["run", path], "for example --value 'axes=[1]'"),
        (["run", path, "--value", "axes=x"], "'axes=x' is not NAME=VALUE"),
        (["run", path, "--value", "k=1"], "--value names 'k'"),
        (["run", library, "--input", f"axes={file}"], "made for axes=[0], not for axes=[1]"),
    ):
        assert main(arguments) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_verify_passes(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(model)]) == 0
    assert "pass" in capsys.readouterr().out
    assert main(["verify", str(model), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] and report["first_difference"] is None
    assert report["outputs"][0]["ours"]["max_rel"] <= report["tolerance"] == 1e-5


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_verify_of_narrow_floats(
    dtype: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their tolerance is much larger than that of float32."""
    g = OnnxBuilder()
    weight = np.random.default_rng(0).standard_normal((256, 16))
    g.output(
        g.node("MatMul", g.input("x", (8, 256), dtype), g.constant(weight, dtype)), (8, 16), dtype
    )
    path = str(saved(tmp_path, g.model()))
    assert main(["verify", path, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    found = report["outputs"][0]["ours"]["max_rel"]
    assert found <= report["tolerance"] and 1e-5 < report["tolerance"] < 0.1


def test_verify_of_a_float16_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Convolutions, a mean, a product and a softmax pass; another network's results fail."""
    g, random, dtype = OnnxBuilder(), np.random.default_rng(0), np.float16
    x, channels = g.input("x", (1, 3, 10, 10), dtype), 3
    for count in (16, 32):
        weight = random.standard_normal((count, channels, 3, 3)) / (9 * channels) ** 0.5
        bias = g.constant(random.standard_normal(count) / 10, dtype)
        x = g.node("Relu", g.node("Conv", x, g.constant(weight, dtype), bias, pads=[1] * 4))
        channels = count
    x = g.node("Flatten", g.node("GlobalAveragePool", x))
    x = g.node("MatMul", x, g.constant(random.standard_normal((channels, 10)), dtype))
    g.output(g.node("Softmax", x), (1, 10), dtype)
    path = str(saved(tmp_path, g.model()))
    assert main(["verify", path, "--json", "--threads", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    # We sum in float32: results are nearer than float16 sums have to be.
    found = report["outputs"][0]["ours"]["max_rel"]
    assert found <= 4 * 2**-11 * 8**0.5 <= report["tolerance"] < 0.5
    right = tvm_hybrid.InferenceSession.run
    monkeypatch.setattr(
        tvm_hybrid.InferenceSession, "run", lambda *given: [1 - each for each in right(*given)]
    )
    assert main(["verify", path, "--threads", "1"]) == 1


def test_verify_names_the_first_difference(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = tvm_hybrid.InferenceSession.run

    def negative(self: Any, *arguments: Any) -> list[np.ndarray]:
        """Wrong once the second product is part of the model."""
        results = right(self, *arguments)
        return [-result if result.shape == (4, 5) else result for result in results]

    monkeypatch.setattr(tvm_hybrid.InferenceSession, "run", negative)
    assert main(["verify", str(model)]) == 1
    shown = capsys.readouterr().out
    assert "FAIL" in shown
    chain = "compiled as mlp_chain (matmul + relu, matmul)"
    assert f"the first node that differs is MatMul 'second', {chain}" in shown
    assert main(["verify", str(model), "--json"]) == 1
    first = json.loads(capsys.readouterr().out)["first_difference"]
    assert first["node"] == "second" and len(first["regions"]) == 1


def test_verify_with_a_tolerance_that_nothing_meets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(saved(tmp_path)), "--tolerance", "-1"]) == 2
    assert "--tolerance" in capsys.readouterr().err


def test_bench(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--repeat", "1", "--seconds", "0", "--threads", "1", "--peers", "ort"]
    assert main(["bench", str(model), "--json", *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in report["rows"]] == ["tvm_hybrid", "ONNX Runtime"]
    assert report["threads"] == 1 and report["flops"] == 2 * 4 * (8 * 16 + 16 * 5)
    assert all(row["timing"]["runs"] == 1 and row["agrees"] for row in report["rows"])
    assert main(["bench", str(model), *options]) == 0
    assert "GFLOP/s" in capsys.readouterr().out
    monkeypatch.setattr(tvm_hybrid.InferenceSession, "run", lambda *_: [np.zeros((4, 5), "f4")])
    assert main(["bench", str(model), *options]) == 1
    assert "differs by 1.0e+00 of the largest" in " ".join(capsys.readouterr().out.split())
    assert main(["bench", str(model), "--peers", "nobody"]) == 2
    assert "'nobody'" in capsys.readouterr().err


def test_doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TVM_HYBRID_ISA", "avx2")
    assert main(["doctor", "--json"]) == 0
    facts = {fact["name"]: fact for fact in json.loads(capsys.readouterr().out)}
    assert facts["apache-tvm"]["value"].startswith("0.27")
    assert facts["code is made for"]["value"] in ("avx2", "scalar")
    assert facts["cap (TVM_HYBRID_ISA)"]["value"] == "avx2"
    assert main(["doctor"]) == 0
    assert "TVM_HYBRID_CACHE_DIR" in capsys.readouterr().out
    monkeypatch.setenv("TVM_HYBRID_ISA", "sse9")
    assert main(["doctor"]) == 1
    assert "unknown ISA" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "No such command 'nosuch'"),
        (["run"], "Missing argument 'MODEL'"),
        (["run", "missing.onnx"], "missing.onnx"),
        (["run", "text.onnx"], "text.onnx"),
        (["run", "model.onnx", "--shape", "x"], "x=1x128"),
        (["run", "model.onnx", "--shape", "x=1xtwo"], "x=1x128"),
        (["run", "model.onnx", "--dim", "rows=-1"], "batch=8"),
        (["run", "model.onnx", "--threads", "0"], "--threads"),
        (["run", "model.onnx", "--target", "pentium9"], "pentium9"),
        (["run", "model.onnx", "--target", "{1}"], "JSON"),
        (["run", "model.onnx", "--precision", "f8"], "f8"),
        (["run", "model.onnx", "--records", "missing.jsonl"], "missing.jsonl"),
        (["run", "model.onnx", "--input", "x=missing.npy"], "missing.npy"),
        (["run", "model.onnx", "--input", "z=z.npy"], "no input 'z'"),
        (["run", "model.onnx", "--input", "x=z.npy"], "'x'"),
        (["run", "model.onnx", "--output", "no/such/folder.npz"], "no/such/folder.npz"),
        (["compile", "model.onnx"], "--output"),
        (["compile", "model.onnx", "-o", "no/such/m.so"], "no/such/m.so"),
        (["verify", "text.onnx"], "text.onnx"),
        (["bench", "text.onnx"], "text.onnx"),
    ],
)
def test_bad_usage_is_one_clear_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path)
    (tmp_path / "text.onnx").write_text("this is not a model")
    np.save(tmp_path / "z.npy", np.zeros((2, 2), np.float32))
    assert main(arguments) == 2
    shown = capsys.readouterr()
    (line,) = [line for line in shown.err.splitlines() if line.startswith("Error: ")]
    assert message in line
    assert "Traceback" not in shown.err


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "missing.onnx", "--debug"]) == 2
    error = capsys.readouterr().err
    assert "Traceback" in error and "\nError: " in error


def test_json_has_no_infinities(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"far": float("inf"), "path": Path("a"), "list": (1, 2)})
    assert json.loads(capsys.readouterr().out) == {"far": None, "path": "a", "list": [1, 2]}


def test_brackets_in_messages_are_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "[red]missing[1, 128].onnx"]) == 2
    assert "[red]missing[1, 128].onnx" in capsys.readouterr().err


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        command = cli.get_command(click.Context(cli), name)
        assert command is not None and command.help
        options = [item for item in command.params if isinstance(item, click.Option)]
        assert all(option.help for option in options)
        assert "Usage: tvm-hybrid" in capsys.readouterr().out


def test_threads_have_a_place(
    model: Path, x_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cpu = min(os.sched_getaffinity(0))
    place = ["--threads", f"{cpu}-{cpu}", "--weights", "interleave"]
    library = tmp_path / "m.so"
    assert main(["compile", str(model), "-o", str(library), "--json", *place]) == 0
    assert json.loads(capsys.readouterr().out)["threads"] == 1
    for what in (model, library):
        assert main(["run", str(what), "--input", f"x={x_file}", "--json", *place]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert np.allclose(answer["outputs"]["y"]["values"], reference(X), rtol=1e-5, atol=1e-5)
        assert main(["run", str(what), "--threads", "socket:99"]) == 2
        assert "no socket:99" in capsys.readouterr().err
    assert main(["explain", str(model), "--threads", "0"]) == 2
    assert "0 is not in the range x>=1" in capsys.readouterr().err
    assert main(["bench", "--predict", *place]) == 2
    assert "--predict runs nothing" in capsys.readouterr().err
