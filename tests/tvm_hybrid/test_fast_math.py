"""compile(fast_math=...): which convolutions use Winograd, through every interface."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_hybrid
from relay_passes.ir.functions import REGION
from relay_passes.pipeline_options import FAST_MATH_LEVELS
from tests.onnx_builder import OnnxBuilder
from tests.relay_passes.graphs import constant, module
from tests.tvm_hybrid.onnx_models import saved
from tvm_hybrid.cli import main
from tvm_hybrid.errors import ArtifactError, CompileError
from tvm_hybrid.executable.executable import Executable

pytestmark = pytest.mark.turns

SHAPE = (1, 10, 10, 32)


def convolution() -> tvm.IRModule:
    """One 3x3 convolution of 32 channels."""

    def body(x: relax.Expr) -> relax.Expr:
        weight = constant(3, 3, 32, 32)
        return relax.op.nn.conv2d(x, weight, 1, 1, data_layout="NHWC", kernel_layout="HWIO")

    return module(body, (SHAPE, "float32"))


def by_winograd(executable: Executable) -> bool:
    return any("winograd" in decision.op for decision in executable.explain())


def test_levels_differ_in_the_kernel_and_hardly_in_results() -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    results, found = {}, {}
    for level in FAST_MATH_LEVELS:
        executable = tvm_hybrid.compile(convolution(), fast_math=level, num_threads=1)
        assert executable.manifest.fast_math == level
        results[level] = executable.run(x)[0].numpy()
        found[level] = by_winograd(executable)
    assert found == {"off": False, "default": True, "on": True}
    np.testing.assert_array_equal(results["default"], results["on"])
    # The documented tolerance, relative to the root mean square of the results.
    error = np.abs(results["default"] - results["off"]).max()
    assert 0 < error < 5e-5 * np.sqrt((results["off"] ** 2).mean())


def test_unknown_levels_are_refused(tmp_path: Path) -> None:
    partition = tvm_hybrid.partition_for_tvm_hybrid
    for call in (
        lambda: tvm_hybrid.compile(convolution(), fast_math="fast"),
        lambda: tvm_hybrid.tune(convolution(), fast_math="", records=tmp_path / "none.jsonl"),
        lambda: partition(convolution(), fast_math="fast"),
    ):
        with pytest.raises(CompileError, match="unknown fast_math level"):
            call()


def test_partitioning_takes_it() -> None:
    for level in ("off", "default"):
        mod = tvm_hybrid.partition_for_tvm_hybrid(convolution(), fast_math=level, num_threads=1)
        texts = [str(f.attrs[REGION]) for f in mod.functions.values() if REGION in (f.attrs or {})]
        assert ["conv2d_winograd" in text for text in texts] == [level != "off"]


def model(tmp_path: Path) -> str:
    builder = OnnxBuilder()
    x = builder.input("x", (1, 32, 10, 10))
    weight = np.random.default_rng(1).standard_normal((32, 32, 3, 3)).astype(np.float32)
    y = builder.node("Conv", x, builder.constant(weight), pads=[1, 1, 1, 1])
    builder.output(y, (1, 32, 10, 10))
    return str(saved(tmp_path, builder.model()))


def test_commands_and_sessions_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path, options = model(tmp_path), ["--fast-math", "off", "--threads", "1"]
    assert main(["explain", path, "--json", *options]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert not any("winograd" in decision["op"] for decision in shown)
    assert main(["verify", path, "--threads", "1", "--fast-math", "on"]) == 0
    assert main(["compile", path, "-o", "m.so", *options]) == 0
    assert "fast_math: off" in capsys.readouterr().out
    assert tvm_hybrid.load("m.so").manifest.fast_math == "off"
    with pytest.raises(ArtifactError, match="compiled already"):
        tvm_hybrid.InferenceSession("m.so", fast_math="on")
    assert main(["run", path, "--fast-math", "all"]) == 2
    assert "'all'" in capsys.readouterr().err
    session = tvm_hybrid.InferenceSession(path, fast_math="off", num_threads=1)
    assert session.executable.manifest.fast_math == "off"


def test_a_level_is_tuned_by_itself(tmp_path: Path) -> None:
    records = tmp_path / "r.jsonl"
    tvm_hybrid.tune(convolution(), fast_math="on", trials=1, num_threads=1, records=records)
    sources = {}
    for level in ("on", "off"):
        executable = tvm_hybrid.compile(
            convolution(), fast_math=level, num_threads=1, records=records
        )
        sources[level] = [decision.source == "default" for decision in executable.explain()]
    assert sources == {"on": [False], "off": [True]}
