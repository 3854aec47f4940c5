"""Tuning layouts and loops versus loops alone: both start empty and get equal budgets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relay_passes.lower_module import count_regions
from relay_passes.pipeline_options import PipelineOptions
from tests.tvm_hybrid.tuning.test_joint_layout import convolved, write_first
from tvm_hybrid.bench import compare_layouts as module
from tvm_hybrid.cli import main
from tvm_hybrid.errors import RecordError
from tvm_hybrid.frontend.model_input import ImportedModel
from tvm_hybrid.options import CompileOptions
from tvm_hybrid.targets.resolve import resolve_target
from tvm_hybrid.tuning.joint_layout import JointResult
from tvm_hybrid.tuning.measuring.model_race import Program, Race
from tvm_hybrid.tuning.measuring.sampling import Effort
from tvm_hybrid.tuning.tune_result import TuneResult


class Tunes:
    """Stands for `tune`: with layouts it records that all operators are faster channels first."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def __call__(self, model: Any, options: CompileOptions, **settings: Any) -> TuneResult:
        self.calls.append(settings)
        if settings["layouts"] == "fixed":
            return TuneResult()
        write_first(settings["records"], PipelineOptions(target=resolve_target(None)))
        return TuneResult(layouts=JointResult(1, chosen=True, measured={"another": 7}))


@pytest.fixture
def tunes(monkeypatch: pytest.MonkeyPatch) -> Tunes:
    """Replaces tuning and the race of compiled models."""

    def race(one: Program, other: Program, effort: Effort) -> Race:
        regions = [[r.op for r, _ in count_regions(*each)] for each in (one, other)]
        assert "batch_matmul" in regions[0]
        assert "batch_matmul" not in regions[1]
        return Race([8.0, 8.0, 9.0] * 5, [10.0, 12.0, 9.0] * 5, True)

    tunes = Tunes()
    monkeypatch.setattr(module, "tune", tunes)
    monkeypatch.setattr(module, "race", race)
    monkeypatch.setattr(module, "import_model", lambda *_: ImportedModel(convolved(), [], []))
    return tunes


def test_both_get_as_much_and_are_run_in_turns(tmp_path: Path, tunes: Tunes) -> None:
    found = module.compare_layouts(
        "model", tmp_path, CompileOptions(num_threads=1), trials=50, seed=3
    )
    one, two = tunes.calls
    assert (one.pop("layouts"), two.pop("layouts")) == ("fixed", "joint")
    assert one.pop("records") != two.pop("records")
    assert one == two and one["trials"] == 50
    assert found.speedup == 1.25
    assert found.chance == pytest.approx(0.302, abs=1e-3)  # 10 of 15 pairs, two-sided
    assert (found.loops_trials, found.joint_trials) == (0, 7)
    assert "1.250x" in str(found)
    with pytest.raises(RecordError, match=r"joint.jsonl exists"):
        module.compare_layouts("model", tmp_path, CompileOptions(), trials=50)


def test_from_the_command_line(
    tmp_path: Path, tunes: Tunes, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.onnx").touch()
    arguments = [
        "layouts",
        str(tmp_path / "model.onnx"),
        "--trials",
        "9",
        "--threads",
        "1",
        "--json",
    ]
    assert main([*arguments, "--folder", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["loops_us"], result["joint_us"], result["speedup"]) == (10.0, 8.0, 1.25)
    assert result["layouts"]["chosen"] is True
    assert tunes.calls[0]["trials"] == 9
    assert main([*arguments, "--folder", str(tmp_path)]) == 2
    assert "begins without records" in capsys.readouterr().err
