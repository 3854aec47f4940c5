"""The table of microkernels: its content, not this machine's speed."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import tvm

from microkernels.base.errors import CompileError
from microkernels.isa import CAP_VARIABLE, host_isa
from microkernels.microkernel import Microkernel
from microkernels.registry import all_microkernels, microkernel_named
from tests.microkernels.isa_targets import target_of
from tests.microkernels.operands import stored
from tvm_hybrid.bench.bench_tables import kernel_speed_table
from tvm_hybrid.cli import main
from tvm_hybrid.report import kernel_speed
from tvm_hybrid.report.kernel_speed import kernel_page, measure_kernels, types_of

pytestmark = pytest.mark.turns

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
    assert "Not on this CPU: avx512_f32_8x48." in kernel_page(report)
    assert str(kernel_speed_table(report).caption) == "Not on this CPU: avx512_f32_8x48"


def test_tiles_are_measured_where_the_cpu_has_them() -> None:
    """Missing and emulated tiles are not measured: an emulator's speed is not the CPU's."""
    tiles = [kernel for kernel in all_microkernels() if kernel.by_tiles]
    report = quick([*tiles, *SCALAR])
    here = [kernel for kernel in tiles if host_isa().includes(kernel.isa)]
    assert [row.name for row in report.kernels] == [k.name for k in [*here, *SCALAR]]
    assert report.left_out == [kernel.name for kernel in tiles if kernel not in here]


@pytest.mark.isa("amx")
@pytest.mark.parametrize("reload_weight", [False, True])
def test_what_is_measured_of_tiles_is_their_product(reload_weight: bool) -> None:
    for name, block in itertools.product(("u8s8s32", "s8u8s32", "bf16"), ("32x32", "16x64")):
        kernel = microkernel_named(f"amx_{name}_{block}")
        a_type, b_type = stored(kernel.a_dtype), stored(kernel.b_dtype)
        one = 0x3F80 if name == "bf16" else 1
        program = kernel_speed.tile_program(kernel, a_type, b_type, 3, 32, reload_weight)
        a = np.full((kernel.mr, 32 * kernel.kr), one, a_type)
        b = np.full(32 * kernel.nr * kernel.kr, one, b_type)
        c = np.zeros((kernel.mr, kernel.nr), kernel.acc_dtype)
        tvm.compile(program, target=target_of("amx"))["tile"](a, b, c)
        assert (c == 3 * 32 * kernel.kr).all()


def test_markdown_has_a_row_for_every_isa_and_types() -> None:
    lines = kernel_page(quick(SCALAR)).splitlines()
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
