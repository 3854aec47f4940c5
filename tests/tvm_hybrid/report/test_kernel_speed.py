"""The table of microkernels: what is in it, not how fast this machine is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from microkernels.errors import CompileError
from microkernels.isa import CAP_VARIABLE, host_isa
from microkernels.microkernel import Microkernel, all_microkernels, microkernel_named
from tvm_hybrid.cli import main
from tvm_hybrid.report import kernel_speed
from tvm_hybrid.report.kernel_speed import markdown_table, measure_kernels, types_of

SCALAR = [
    microkernel_named(name) for name in ("scalar_f32_4x4", "scalar_u8s8s32_4x4", "scalar_bf16_4x4")
]


def quick(kernels: list[Microkernel]) -> kernel_speed.KernelReport:
    return measure_kernels(kernels, rounds=1, seconds=0)


def test_every_kernel_has_a_share_of_the_peak_of_its_types() -> None:
    highest = [k for k in all_microkernels() if host_isa().includes(k.isa)][:1]
    report = quick([*SCALAR, *highest])
    assert [row.name for row in report.kernels] == [k.name for k in [*SCALAR, *highest]]
    assert set(report.peaks) == {types_of(kernel) for kernel in SCALAR}
    for row in report.kernels:
        assert row.gops > 0
        assert row.share == row.gops / report.peaks[row.types]
        assert 0 < row.share <= 1


def test_what_the_cap_forbids_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CAP_VARIABLE, "scalar")
    report = quick([*SCALAR, microkernel_named("avx512_f32_8x48")])
    assert report.left_out == ["avx512_f32_8x48"]
    assert "Not on this CPU: avx512_f32_8x48." in markdown_table(report)


def test_markdown_has_a_row_for_every_rung_and_types() -> None:
    lines = markdown_table(quick(SCALAR)).splitlines()
    rows = [line for line in lines if line.startswith("|") and "`scalar`" in line]
    assert len(rows) == len(SCALAR)
    assert all("4x4 " in row and row.count("|") == 5 for row in rows)


def test_a_kernel_that_computes_something_else_is_refused() -> None:
    right = SCALAR[0]
    wrong = dataclasses.replace(right, multiply_add=lambda c, a, b: c + a + b)
    with pytest.raises(CompileError, match="scalar_f32_4x4 computes something wrong"):
        quick([wrong])


def test_the_command_prints_and_writes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernel_speed, "all_microkernels", lambda: tuple(SCALAR))
    page = tmp_path / "kernels.md"
    options = ["kernels", "--repeat", "1", "--seconds", "0"]
    assert main([*options, "--markdown", str(page)]) == 0
    shown = capsys.readouterr().out
    assert all(kernel.name in shown for kernel in SCALAR) and "of peak" in shown
    assert page.read_text().startswith("# Microkernels\n")
    assert main([*options, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in report["kernels"]] == [kernel.name for kernel in SCALAR]
    assert main([*options, "--markdown", str(tmp_path / "no" / "folder.md")]) == 2
    assert "folder.md" in capsys.readouterr().err
