"""compile(fusion=...): equal results by other kernels, through every interface."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import tvm

import tvm_hybrid
from relay_passes.ir.functions import REGION
from relay_passes.pipeline_options import FUSION_LEVELS
from tests.onnx_builder import OnnxBuilder
from tests.relay_passes.graphs import module
from tests.relay_passes.test_fusion_levels import CASES, Case
from tests.tvm_hybrid.onnx_models import saved
from tests.tvm_hybrid.small_models import mlp_module
from tir_schedules.core.region import Region
from tvm_hybrid.cli import main
from tvm_hybrid.errors import ArtifactError, CompileError
from tvm_hybrid.executable.executable import Executable

pytestmark = pytest.mark.turns

F32 = np.float32


def kernels(executable: Executable) -> list[str]:
    """Counts what the kernels that a run calls compute."""
    return [decision.op for decision in executable.explain() if decision.function]


def called(executable: Executable, arrays: list[np.ndarray]) -> int:
    """Counts calls of our own and of generic kernels in a run."""
    return sum(row.calls for row in executable.profile(arrays, repeat=1).rows if row.kernel)


@pytest.mark.sampled
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_levels_differ_in_kernels_and_not_in_results(case: Case) -> None:
    mod = module(case.body, *case.inputs)
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape).astype(F32) for shape, _ in case.inputs]
    if case.inputs[0][1] == "bfloat16":
        arrays = [array.astype(ml_dtypes.bfloat16) for array in arrays]
    found, results = {}, {}
    for level in FUSION_LEVELS:
        executable = tvm_hybrid.compile(mod, precision=case.precision, fusion=level, num_threads=1)
        assert executable.manifest.fusion == level
        (result,) = executable.run(*arrays)
        results[level] = result.numpy().astype(np.float64)
        found[level] = len(kernels(executable))
        assert called(executable, arrays) == found[level]
    assert found["coarse"] <= found["fine"] < found["none"]
    for level in ("coarse", "fine"):
        np.testing.assert_allclose(results[level], results["none"], rtol=0, atol=case.atol)


def self_attention() -> onnx.ModelProto:
    """x[1, 8, 32] -> softmax(x x^T / 4) x, relu of a product with a constant."""
    g = OnnxBuilder()
    x = g.input("x", (1, 8, 32))
    scores = g.node("MatMul", x, g.node("Transpose", x, perm=[0, 2, 1]))
    weights = g.node("Softmax", g.node("Div", scores, g.constant(4.0, F32)), axis=-1)
    weight = g.constant(np.random.default_rng(0).standard_normal((32, 16)), F32)
    g.output(g.node("Relu", g.node("MatMul", g.node("MatMul", weights, x), weight)), (1, 8, 16))
    return g.model()


OPTIONS = ["--threads", "1", "--repeat", "1", "--seconds", "0"]


def test_bench_shows_three_variants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "bench",
        str(saved(tmp_path, self_attention())),
        "--variants",
        "--peers",
        "",
        *OPTIONS,
    ]
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    names = ["tvm_hybrid", "tvm_hybrid (fine)", "tvm_hybrid (none)"]
    assert [row["name"] for row in report["rows"]] == names
    assert all(row["timing"]["runs"] == 1 and row["agrees"] for row in report["rows"])
    coarse, fine, none = (row["kernels"] for row in report["rows"])
    assert coarse[0].startswith("attention") and coarse[1:] == ["matmul + relu"]
    assert fine == ["batch_matmul + divide", "softmax", "batch_matmul", "matmul + relu"]
    assert [op for op in none if "matmul" in op] == ["batch_matmul", "batch_matmul", "matmul"]
    assert len(none) == 6
    assert main(arguments) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in (*names, "kernels", "ratio"))


def test_bench_of_one_level(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", str(saved(tmp_path)), "--fusion", "none"]
    assert main([*arguments, "--peers", "", *OPTIONS]) == 0
    shown = capsys.readouterr().out
    assert "our fusion: none" in shown and "kernels" not in shown
    assert main([*arguments, "--variants"]) == 2
    assert "leave --fusion out" in capsys.readouterr().err


def test_commands_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--fusion", "none", "--threads", "1"]
    path = str(saved(tmp_path))
    assert main(["explain", path, "--json", *options]) == 0
    operators = [decision["op"] for decision in json.loads(capsys.readouterr().out)]
    assert "matmul + relu" not in operators and len(operators) == 3
    assert main(["verify", path, *options]) == 0
    assert main(["compile", path, "-o", "m.so", *options]) == 0
    assert "fusion: none" in capsys.readouterr().out
    assert tvm_hybrid.load("m.so").manifest.fusion == "none"
    with pytest.raises(ArtifactError, match="compiled already: fusion cannot be given"):
        tvm_hybrid.InferenceSession("m.so", fusion="none")
    assert main(["run", path, "--fusion", "all"]) == 2
    assert "'all'" in capsys.readouterr().err


def test_a_level_is_tuned_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, path = str(saved(tmp_path)), str(tmp_path / "r.jsonl")
    arguments = ["--records", path, "--threads", "1", "--fusion", "none"]
    assert main(["tune", model, "--trials-per-region", "1", *arguments]) == 0
    capsys.readouterr()
    sources = {}
    for level in ("none", "fine"):
        explained = tvm_hybrid.compile(model, fusion=level, records=path, num_threads=1).explain()
        sources[level] = [decision.source == "default" for decision in explained.taken]
    # "fine" has one of its two regions: the second product, without fused operators.
    assert sources == {"none": [False, False], "fine": [True, False]}


def test_a_session_takes_it(tmp_path: Path) -> None:
    path = saved(tmp_path)
    session = tvm_hybrid.InferenceSession(path, fusion="none", num_threads=1)
    assert len(session.explain()) == 3
    with pytest.raises(CompileError, match="unknown fusion level 'all'"):
        tvm_hybrid.InferenceSession(path, fusion="all")
    with pytest.raises(CompileError, match="unknown fusion level ''"):
        tvm_hybrid.tune(path, fusion="", records=tmp_path / "none.jsonl")


def regions(mod: tvm.IRModule) -> list[Region]:
    found = [f.attrs[REGION] for f in mod.functions.values() if f.attrs and REGION in f.attrs]
    return [Region.from_json(str(text)) for text in found]


def test_partitioning_takes_precision_and_fusion() -> None:
    partition = tvm_hybrid.partition_for_tvm_hybrid
    (fused,) = regions(partition(mlp_module(3), precision="bf16"))
    assert fused.inputs[1].dtype == "bfloat16" and fused.epilogue
    alone = [r for r in regions(partition(mlp_module(3), fusion="none")) if r.op == "matmul"]
    assert alone and not any(region.epilogue for region in alone)
    with pytest.raises(CompileError, match="unknown fusion level 'all'"):
        partition(mlp_module(3), fusion="all")
    with pytest.raises(CompileError, match="unknown precision 'f8'"):
        partition(mlp_module(3), precision="f8")
