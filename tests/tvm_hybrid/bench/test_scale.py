"""Predicted times by threads: complete, consistent, and labelled as predictions."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tests.tvm_hybrid.onnx_models import saved
from tests.tvm_hybrid.small_models import mlp_module
from tvm_hybrid.bench.scale import (
    LABEL,
    RegionTime,
    ScaleReport,
    ScaleRun,
    scale_model,
    slower_regions,
)
from tvm_hybrid.cli import main
from tvm_hybrid.demo.models import mlp_model
from tvm_hybrid.options import CompileOptions

pytestmark = pytest.mark.turns


@pytest.fixture(scope="module")
def report() -> ScaleReport:
    return scale_model(mlp_model("MLP_1", 128), (2, 8), CompileOptions(target="spr", records=[]))


def test_regions_add_up_to_the_model(report: ScaleReport) -> None:
    assert [run.threads for run in report.runs] == [1, 2, 8]
    for run in report.runs:
        assert sum(region.predicted_us for region in run.regions) == pytest.approx(run.predicted_us)
        for region in run.regions:
            assert sum(region.parts.values()) == pytest.approx(region.predicted_us)
            assert region.limit == "compute" or region.limit in region.parts
            assert 1 <= region.busy_threads <= run.threads


def test_efficiency_begins_at_one_and_does_not_pass_it(report: ScaleReport) -> None:
    assert report.runs[0].efficiency == 1.0
    assert all(0 < run.efficiency <= 1.0 for run in report.runs)
    assert report.runs[1].predicted_us < report.runs[0].predicted_us


def test_another_machine_gives_another_time() -> None:
    times = {
        target: scale_model(mlp_module(64), (1,), CompileOptions(target=target, records=[]))
        .runs[0]
        .predicted_us
        for target in ("haswell", "spr")
    }
    assert times["haswell"] > times["spr"] > 0


def run_of(threads: int, *regions: tuple[str, str, float]) -> ScaleRun:
    made = [
        RegionTime(
            node=node,
            op=op,
            function="f",
            kernel="k",
            predicted_us=time,
            limit="forks",
            parts={"forks": time},
            busy_threads=1,
        )
        for node, op, time in regions
    ]
    return ScaleRun(threads=threads, predicted_us=1.0, efficiency=1.0, regions=made)


def test_regions_that_are_slower_than_with_half_of_the_threads() -> None:
    two = run_of(2, ("a", "matmul", 10.0), ("b", "matmul", 10.0), ("c", "matmul", 10.0))
    four = run_of(4, ("a", "matmul", 11.0), ("b", "matmul", 6.0), ("c", "chain", 20.0))
    eight = run_of(8, ("a", "matmul", 5.0), ("b", "matmul", 6.05), ("c", "chain", 19.0))
    (found,) = slower_regions([two, four, eight])
    assert found.startswith("a (matmul): 11.0 us on 4 threads, 10.0 on 2")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(saved(tmp_path, mlp_model("MLP_1", 16)))
    command = ["scale", model, "--target", "spr", "--threads", "1,4", "--no-records"]
    assert main([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["label"] == LABEL and answer["cpu"] == "sapphirerapids"
    found = msgspec.convert(answer, ScaleReport)
    assert [run.threads for run in found.runs] == [1, 4]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert LABEL in shown and "efficiency" in shown and "limit, 4 threads" in shown


@pytest.mark.parametrize("threads", ["0", "1,x", "", "2,-1"])
def test_wrong_numbers_of_threads(threads: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "m.onnx", "--threads", threads]) == 2
    assert "numbers of threads" in " ".join(capsys.readouterr().err.split())


def test_measured_times_stand_beside_predicted_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(saved(tmp_path, mlp_model("MLP_1", 16)))
    assert main(["scale", model, "--threads", "1", "--measure", "--json"]) == 0
    (run,) = msgspec.convert(json.loads(capsys.readouterr().out), ScaleReport).runs
    assert run.measured_us is not None and run.measured_us > 0
    assert {region.function for region in run.regions} <= run.measured.keys()
    assert main(["scale", model, "--threads", "1", "--measure"]) == 0
    assert "measured us" in capsys.readouterr().out
    assert main(["scale", model, "--measure", "--target", "spr"]) == 2
    assert "excludes --target" in capsys.readouterr().err
