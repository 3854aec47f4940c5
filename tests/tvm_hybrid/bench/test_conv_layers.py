"""The table of convolutions: its contestants and layers, and what the page says; no times."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tvm_hybrid.bench import conv_layers, layer_models
from tvm_hybrid.bench.conv_layers import measure_layers
from tvm_hybrid.bench.layer_models import (
    DTYPES,
    FLOAT32,
    INT8,
    Layer,
    LayerReport,
    LayerTimes,
    best_ratio,
    layer_tables,
    markdown_page,
    mean_ratio,
)
from tvm_hybrid.bench.peers.peers import ONNX_RUNTIME, OPENVINO, OURS, PYTHON_VARIABLE
from tvm_hybrid.cli import main
from tvm_hybrid.report import kernel_speed

LAYER = Layer("S1", 8, 16, 16, 3, 2)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peaks from one tile, without OpenVINO."""
    monkeypatch.setattr(kernel_speed, "TILES_FOR_PEAK", 1)
    monkeypatch.setenv(PYTHON_VARIABLE, "/no/such/python")


def test_a_layer_end_to_end() -> None:
    report = measure_layers("small", [LAYER], [1], rounds=1, seconds=0.0)
    assert list(report.versions) == [OURS, ONNX_RUNTIME]
    assert list(report.left_out) == [OPENVINO]
    assert "not installed for /no/such/python" in report.left_out[OPENVINO]
    assert [(row.dtype, row.threads) for row in report.rows] == [(FLOAT32, 1), (INT8, 1)]
    for row in report.rows:
        assert set(row.whole_us) == set(row.kernel_us) == {OURS, ONNX_RUNTIME}
        assert all(time > 0 for time in (*row.whole_us.values(), *row.kernel_us.values()))
        assert row.kernel.startswith("conv2d ") and row.notes == [] and not row.wrong
        peak = report.peaks[row.dtype] * 1e3
        assert row.share == pytest.approx(LAYER.flops / row.kernel_us[OURS] / peak)
    assert "_f32_" in report.rows[0].kernel and "_u8s8s32_" in report.rows[1].kernel


def times(layer: Layer, dtype: str, ours: float, *others: float, threads: int = 1) -> LayerTimes:
    names = (OURS, ONNX_RUNTIME, OPENVINO)
    return LayerTimes(
        layer=layer,
        dtype=dtype,
        threads=threads,
        kernel="conv2d: tile",
        whole_us=dict(zip(names, (2 * ours, *others), strict=False)),
        kernel_us=dict(zip(names, (ours, *others), strict=False)),
        share=0.987,
    )


def report_of(*rows: LayerTimes, left_out: dict[str, str] | None = None) -> LayerReport:
    versions = {OURS: "0.1", ONNX_RUNTIME: "1.2", OPENVINO: "2026"}
    names = list(rows[0].kernel_us)
    return LayerReport(
        network="resnet18",
        cpu="znver4",
        versions={name: versions[name] for name in names},
        peaks=dict.fromkeys(DTYPES, 100.0),
        rows=list(rows),
        left_out=left_out or {},
    )


def test_ratios_are_to_the_best_of_the_others() -> None:
    assert best_ratio({OURS: 4.0, ONNX_RUNTIME: 6.0, OPENVINO: 5.0}) == 1.25
    assert best_ratio({OURS: 4.0}) is None
    assert mean_ratio([2.0, None, 0.5]) == pytest.approx(1.0)
    assert mean_ratio([None]) is None


def test_the_page() -> None:
    second = Layer("S2", 7, 512, 512, 3, 1)
    page = markdown_page(
        report_of(
            times(LAYER, FLOAT32, 50.0, 100.0, 75.0),
            times(second, FLOAT32, 2000.0, 1000.0, 1500.0),
            times(LAYER, INT8, 10.0, 12.0, 11.0),
            times(LAYER, INT8, 5.0, 12.0, 11.0, threads=2),
        )
    )
    lines = page.splitlines()
    assert lines[0] == "# ResNet-18's convolutions"
    headings = [line for line in lines if line.startswith("## ")]
    assert headings == ["## float32, 1 thread", "## int8, 1 thread", "## int8, 2 threads"]
    rows = [line for line in lines if line.startswith("| S")]
    assert rows[0] == (
        "| S1: 8x8x16 -> 16, 3x3 /2 | 50.0 | 99% | 100.0 | 75.0 | 1.50 | 100.0 | 100.0 | 75.0 "
        "| 0.75 | conv2d: tile |"
    )
    assert rows[1].startswith("| S2: 7x7x512 -> 512, 3x3 | 2000 | 99% | 1000 | 1500 | 0.50 |")
    means = [line for line in lines if line.startswith("| geometric mean")]
    # sqrt(1.5 * 0.5), and half of that for whole models.
    assert means[0].split(" | ")[5] == "0.87" and means[0].split(" | ")[9] == "0.43"
    widths = {line.count("|") for line in lines if line.startswith("|")}
    assert widths == {12}


def test_the_page_without_a_peer() -> None:
    left_out = {OPENVINO: "it is not installed"}
    report = report_of(times(LAYER, FLOAT32, 50.0, 100.0), left_out=left_out)
    page = markdown_page(report)
    assert "OpenVINO |" not in page
    assert "in turns with\nONNX Runtime 1.2. OpenVINO was not available." in page
    (table,) = layer_tables(report)
    assert table.caption == "OpenVINO is left out: it is not installed"


def test_a_layer_that_a_peer_cannot_run_has_a_gap() -> None:
    whole = report_of(times(LAYER, FLOAT32, 1.0, 2.0, 3.0), times(LAYER, FLOAT32, 1.0, 2.0))
    (table,) = layer_tables(whole)
    assert table.row_count == 3
    assert [cell for column in table.columns for cell in column.cells].count("-") == 2


def test_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(layer_models.NETWORKS, "small", (LAYER,))
    page = tmp_path / "layers.md"
    options = ["--threads", "1", "--repeat", "1", "--seconds", "0", "--peers", "ort"]
    command = ["bench", "--layers", "small", *options, "--markdown", str(page)]
    assert main(command) == 0
    assert "S1: 8x8x16" in capsys.readouterr().out
    assert page.read_text().startswith("# Convolutions of small\n")
    assert main([*command[:-1], str(tmp_path / "no" / "page.md")]) == 2
    told = capsys.readouterr().err
    assert "page.md" in told and "measuring" not in told


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--layers", "nothing"], "is not one of resnet18"),
        (["--layers", "resnet18", "--peers", "stock"], "'stock' measures no layers"),
        (["--layers", "resnet18", "--precision", "bf16"], "no other way to compile"),
        (["--layers", "resnet18", "model.onnx"], "leave MODEL"),
        (["--layers", "resnet18", "--predict"], "--predict runs nothing"),
        (["--markdown", "page.md", "model.onnx"], "--markdown writes the tables of --layers"),
    ],
)
def test_options_that_do_not_fit(
    options: list[str],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").touch()
    assert main(["bench", *options]) == 2
    assert why in " ".join(capsys.readouterr().err.split())


def test_json_keeps_everything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = report_of(times(LAYER, FLOAT32, 1.0, 2.0, 3.0))
    monkeypatch.setattr(conv_layers, "measure_layers", lambda *args, **options: report)
    assert main(["bench", "--layers", "resnet18", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["layer"]["name"] == "S1" and row["kernel_us"][OPENVINO] == 3.0


def test_wrong_results_of_ours_end_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = msgspec.structs.replace(times(LAYER, FLOAT32, 1.0, 2.0), wrong=True)
    report = report_of(times(LAYER, FLOAT32, 1.0, 2.0), wrong)
    monkeypatch.setattr(conv_layers, "measure_layers", lambda *args, **options: report)
    assert main(["bench", "--layers", "resnet18"]) == 1
