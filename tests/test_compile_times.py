"""Models compile within budgets, given as counts; also tests the tool that measures them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner

from tools.compile_times.__main__ import BUDGET_TARGET, main
from tools.compile_times.corpus import NAMES, RELATIVES, build, has_relative
from tools.compile_times.feeds import feeds_of
from tools.compile_times.graph import Model
from tools.compile_times.results import (
    COLD,
    COUNTS,
    FAST,
    Row,
    budgets,
    page,
    read_budgets,
    stages,
    summary,
)
from tools.compile_times.stage_clock import StageClock
from tools.compile_times.start import FIRST_RUN, MODULES
from tools.compile_times.starts import Start, start, written

BUDGETS = Path(__file__).with_name("compile_budgets.txt")
LIMIT = 400
"""CPU seconds of a counted start, after which something must be wrong."""
CHEAP = ("minilm", "squeezenet", "voice_activity", "atoms_dynamic")
"""Models that take a few seconds to compile."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in CHEAP else [pytest.mark.slow]) for name in NAMES],
)
def test_no_model_takes_more_than_its_budget(name: str, tmp_path: Path) -> None:
    allowed = read_budgets(BUDGETS.read_text())[name]
    found = start("counting", written(name, tmp_path / "model"), 1, LIMIT, target=BUDGET_TARGET)
    assert not found.fault
    beyond = {kind: (found.counts[kind], most) for kind, most in allowed.items()
              if found.counts[kind] > most}  # fmt: skip
    assert not beyond, f"`python -m tools.compile_times --budgets --models {name}` shows its counts"


def test_every_model_has_a_budget() -> None:
    allowed = read_budgets(BUDGETS.read_text())
    assert list(allowed) == list(NAMES)
    assert all(list(counts) == list(COUNTS) for counts in allowed.values())


@pytest.mark.parametrize("base", ["yolo", "notes", "voice_activity", "tagger", "atoms", "events"])
def test_both_forms_of_a_model_compute_the_same(base: str) -> None:
    static, dynamic = build(base), build(f"{base}_dynamic")
    assert not static.sizes and dynamic.sizes
    results = [_ran(model, feeds_of(dynamic)) for model in (static, dynamic)]
    for first, second in zip(*results, strict=True):
        # Nodes differ at most in their order, in shapes, and in constants that depend on shapes:
        # some hundred roundings of float32.
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-5)


def test_the_page_begins_with_medians() -> None:
    def took(cpu: float, wall: float) -> Start:
        return Start(stages={FIRST_RUN: [cpu, wall], MODULES: [9.0, 9.0]})

    rows = [
        Row("a", {COLD: took(2.0, 7.0), FAST: took(8.0, 0.5)}),
        Row("b", {COLD: took(4.0, 7.0)}),
    ]
    rows.append(Row("late", {COLD: Start(fault="it took too long")}))
    assert summary(rows)[1] == [
        ["first start", "3", "4"],
        ['first start with `start="fast"`, wall time', "0.5", "0.5"],
    ]
    static = {"command": "c", "cpu": "x", "threads": 1, "limit": 60, "OpenVINO": "1"}
    head = page(rows, static).partition("## By model")[0]
    assert "CPU seconds of 3 models:" in head and "| first start | 3 | 4 |" in head


def test_relatives_are_other_models() -> None:
    for name in ("yolo", "pitch", "notes_dynamic", "voice_activity", "events", "tagger", "atoms"):
        first = build(name).proto
        for relative in RELATIVES:
            assert (build(name, relative).proto != first) == has_relative(name, relative), name


def test_a_start_says_what_every_stage_takes(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    files = written("voice_activity", tmp_path / "model")
    found = start("tvm_hybrid", files, 1, LIMIT, tmp_path / "cache")
    assert not found.fault
    columns, [line] = stages([Row("model", {COLD: found})])
    assert dict(zip(columns, line, strict=True)).keys() >= {"front end", "1", "8", "machine code"}
    assert all(line), "no announcement was found for a stage or a part"
    assert found.peak_mb > 10
    total = sum(cpu for title, (cpu, _) in found.stages.items() if title != MODULES)
    assert found.seconds().cpu == pytest.approx(total)
    assert found.seconds(first_run=False).cpu < total - found.stages[FIRST_RUN][0] + 1e-9
    again = start("loading", files, 1, LIMIT, tmp_path / "cache")
    assert not again.fault and again.seconds().cpu < found.seconds().cpu / 4


def test_a_fast_start_ends_at_its_first_answer(tmp_path: Path) -> None:
    found = start("early", written("voice_activity", tmp_path / "model"), 1, LIMIT)
    assert not found.fault
    assert FIRST_RUN in found.stages and "machine code" not in found.stages


def test_a_start_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    found = start("tvm_hybrid", written("voice_activity", tmp_path / "model"), 1, 1)
    assert found.fault.startswith("not done after 1 CPU s, in ")


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    files = written("voice_activity", tmp_path / "model")
    files.model.write_bytes(b"nothing")
    found = start("onnxruntime", files, 1, LIMIT)
    assert found.fault.startswith("ended in 'rest of the session': ") and "model" in found.fault


def test_stages_and_parts_are_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "report"
    with path.open("w") as output:
        clock = StageClock(output, 0.0)
        clock.begin("outer")
        with clock.stage("inner"), clock.part("a"), clock.part("b"), clock.part("a"):
            sum(range(10**5))
        clock.end()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    ended = [line["stage"] for line in lines if "stage" in line]
    assert ended == ["outer", "inner", "outer"]
    [inner] = [line["cpu"] for line in lines if line.get("stage") == "inner"]
    parts = lines[-1]["parts"]
    assert 0 < parts["b"] < parts["a"] and sum(parts.values()) <= inner


def test_budgets_are_counts_with_slack() -> None:
    row = Row("yolo", {"counting": Start(counts=dict.fromkeys(COUNTS, 10))})
    lines = budgets([row, Row("not measured")])
    assert read_budgets("\n".join(lines)) == {"yolo": dict.fromkeys(COUNTS, 11)}


def test_results_are_shown_and_written(tmp_path: Path) -> None:
    done = Start({"Python modules": [1.0, 1.5], "machine code": [2.0, 3.0]}, {}, {"kernels": 7}, 99)
    slow = Start(fault="not done after 60 CPU s, in 'machine code'")
    rows = [Row("yolo", {COLD: done}), Row("pitch", {COLD: slow})]
    found = {
        "command": "c",
        "cpu": "znver9",
        "threads": 1,
        "limit": 60,
        "OpenVINO": "not installed",
    }
    found["models"] = {row.name: row.as_json() for row in rows}
    source, page = tmp_path / "found.json", tmp_path / "page.md"
    source.write_text(json.dumps(found))
    shown = CliRunner().invoke(main, ["--from", str(source), "--markdown", str(page)])
    assert shown.exit_code == 0, shown.output
    assert "pitch, cold: not done after 60 CPU s" in shown.output
    text = page.read_text()
    assert "| yolo | 2.0 | 3.0 |" in text and "| pitch | - | - |" in text
    assert "OpenVINO: not installed" in text


def test_an_unknown_model_is_refused() -> None:
    shown = CliRunner().invoke(main, ["--models", "yolo,nosuch"])
    assert shown.exit_code == 2 and "no nosuch; there are minilm, " in shown.output


def _ran(model: Model, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    providers = ["CPUExecutionProvider"]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    data = model.proto.SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=providers).run(None, feeds)
