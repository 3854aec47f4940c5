"""Tables on consoles that are too narrow for them."""

from __future__ import annotations

import pytest
from rich.console import Console
from rich.table import Table

from relay_passes.ir.decisions import Decision
from tvm_hybrid.explain.explanation import Explanation
from tvm_hybrid.explain.tables import FittingConsole


def test_a_table_without_room_becomes_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("model", "a long header", title="speed", caption="us")
    table.columns[1].no_wrap = True
    table.add_row("mlp", "7" * 40)
    table.add_row("", "8" * 50)
    FittingConsole(width=70).print(table)
    assert "\N{BOX DRAWINGS LIGHT VERTICAL}" in capsys.readouterr().out
    FittingConsole(width=60).print(table)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[:5] == ["speed", "", "model          mlp", f"a long header  {'7' * 40}", ""]
    assert "".join(lines[5:7]).replace(" ", "") == f"alongheader{'8' * 50}"


def test_an_explanation_is_a_list_on_a_narrow_console(capsys: pytest.CaptureFixture[str]) -> None:
    config = {"rows": 6, "vectors": 4, "m_block": 128, "k_block": 512, "threads_n": 2}
    reason = "the product and the two operators after it are one region, which a template builds"
    decision = Decision(
        node="lv", op="matmul + add + relu", taken=True, kernel="avx512_f32_6x64", config=config,
        source="default", reason=reason, origins=("/encoder/dense/MatMul (MatMul)", "relu (Relu)"),
    )  # fmt: skip
    found = Explanation([decision])
    found.print(Console(width=80))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1 of 1 nodes taken" and len(lines) < 15
    assert "taken          yes" in [line.rstrip() for line in lines]
    found.print(Console(width=200))
    assert "\N{BOX DRAWINGS LIGHT VERTICAL}" in capsys.readouterr().out
