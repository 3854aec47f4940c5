"""The study of searches: its counts, its ratios and its output."""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from microkernels.base.errors import ConfigError, RecordError
from tests.tvm_hybrid.tuning.synthetic import product, synthetic_records, write_recording
from tvm_hybrid.cli import main
from tvm_hybrid.tuning.recordings import simulate as simulation
from tvm_hybrid.tuning.recordings.simulate import Trace, load_recordings, simulate
from tvm_hybrid.tuning.study.search_study import (
    RegionStudy,
    SearchStudy,
    band,
    history_for,
    plot_study,
    search_json,
    search_page,
    study_searches,
)
from tvm_hybrid.tuning.study.tune_plot import save_figure

pytestmark = pytest.mark.turns

PLAIN = ("random", "evolutionary")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two recordings with 264 and 256 configurations."""
    folder = tmp_path_factory.mktemp("recordings")
    return [
        write_recording(folder / f"rows{rows}.jsonl.xz", synthetic_records(product(rows=rows)))
        for rows in (16, 8)
    ]


@pytest.fixture(scope="module")
def study(files: list[Path]) -> SearchStudy:
    return study_searches(files, PLAIN, seeds=4)


def test_what_is_counted(study: SearchStudy, files: list[Path]) -> None:
    assert [row.name for row in study.rows] == ["rows16", "rows8"]
    row = study.rows[0]
    recording = load_recordings(files[0])[0]
    assert (row.workload, row.configurations) == (product().key, len(recording.space))
    assert (row.near, row.default_us, row.optimum_us) == (1, 125.0, 100.0)
    assert row.default_ratio == pytest.approx(1.25)
    assert row.random_exact == -(-row.configurations // 2)  # one of n: half of them, rounded up
    for name in PLAIN:
        for seed in range(4):
            trace = simulate(name, recording, seed=seed, until=0.98)
            assert row.traces[name][seed].order == trace.order
            best = int(np.argmax(recording.scores))
            assert row.trials[name][seed] == trace.order.index(best) + 1
    assert row.median("random") == statistics.median(row.trials["random"])


def test_processes_find_the_same(study: SearchStudy, files: list[Path]) -> None:
    seen: list[str] = []
    parallel = study_searches(files, PLAIN, seeds=4, jobs=2, progress=seen.append)
    assert [row.trials for row in parallel.rows] == [row.trials for row in study.rows]
    assert [row.name for row in parallel.rows] == [row.name for row in study.rows]
    assert [text.split(":")[0] for text in seen] == ["1 of 2", "2 of 2"]


def test_history_is_of_other_workloads(files: list[Path], tmp_path: Path) -> None:
    again = write_recording(tmp_path / "again.jsonl", synthetic_records(product(rows=16)))
    recordings = [item for path in (*files, again) for item in load_recordings(path)]
    assert {record.workload for record in history_for(recordings, 0)} == {product(rows=8).key}
    assert len(history_for(recordings, 1)) == 2 * len(recordings[0].space)


def _row(name: str, default_ratio: float, **trials: list[int]) -> RegionStudy:
    return RegionStudy(name, name, "here", 100, 2, 1.0, 1.0, default_ratio, 34, trials, {})


def test_quotients_and_bars() -> None:
    rows = (
        _row("a", 1.02, random=[40, 50, 60], model=[10, 20, 5], transfer=[5, 4, 6]),
        _row("b", 1.04, random=[16, 16, 16], model=[4, 4, 5], transfer=[1, 2, 3]),
    )
    study = SearchStudy(0.98, 3, 8, ("random", "model", "transfer"), rows)
    assert rows[0].quotient("random", "model") == 5.0
    assert study.mean_quotient("random", "model") == pytest.approx(20**0.5)
    assert study.mean_quotient("model", "transfer") == pytest.approx(2.0)
    assert study.pairs() == [
        ("random", "model"),
        ("exact", "model"),
        ("model", "transfer"),
        ("exact", "transfer"),
    ]
    assert rows[0].quotient("exact", "model") == 3.4  # 34 from its distribution
    assert [bar.holds for bar in study.bars()] == [True] * 6

    slow = _row("c", 1.3, random=[10], model=[35], transfer=[35])
    missed = list(dataclasses.replace(study, rows=(slow,)).bars())
    assert [bar.holds for bar in missed] == [False] * 6
    assert missed[0].value == pytest.approx(10 / 35)
    assert "98% of the optimum" in missed[0].text
    plain = SearchStudy(0.98, 3, 8, ("random",), rows)
    assert plain.pairs() == [] and [bar.holds for bar in plain.bars()] == [True]


def test_curves_are_held_at_their_ends() -> None:
    traces = [
        Trace((0, 1), np.array([0.5, 1.0])),
        Trace((0, 1, 2, 3), np.array([0.1, 0.2, 0.3, 0.9])),
        Trace((0,), np.array([0.99])),
    ]
    low, middle, high = band(traces)
    np.testing.assert_allclose(middle, [0.5, 0.99, 0.99, 0.99])
    np.testing.assert_allclose(low, [0.3, 0.595, 0.645, 0.945])
    assert (high >= middle).all() and (middle >= low).all()


def test_plot_page_and_json(study: SearchStudy, tmp_path: Path) -> None:
    plot_study(study, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    plot_study(study, tmp_path / "plot.svg")
    assert b"<svg" in (tmp_path / "plot.svg").read_bytes()
    with pytest.raises(ConfigError, match=r"cannot write the plot .*plot\.nothing"):
        plot_study(study, tmp_path / "plot.nothing")
    with pytest.raises(ConfigError, match="cannot write the plot"):
        save_figure(_Broken(), tmp_path / "plot.png")

    page = search_page(study)
    row = study.rows[0]
    assert f"| rows16 | {row.configurations} | 0.4% | 1.250 | {row.random_exact} |" in page
    assert f"{study.mean_quotient(*PLAIN):.2f} |" in page
    assert "| no |" in page  # 1.25 is more than 1.05
    found = json.loads(json.dumps(search_json(study)))
    assert found["regions"][1]["trials"] == study.rows[1].trials
    (curve, *_), (trace, *_) = (
        found["regions"][1]["curves"]["random"],
        study.rows[1].traces["random"],
    )
    np.testing.assert_allclose(curve, trace.best, atol=5e-5)
    assert found["quotients"]["random/evolutionary"] == study.mean_quotient(*PLAIN)


class _Broken:
    def savefig(self, path: Path, dpi: int) -> None:
        raise OSError(f"{path}: no space left, at {dpi}")


def test_bad_wishes_are_refused(files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no search strategy 'magic'; .* random, grid, transfer"):
        study_searches(files, ["magic"])
    wishes: list[dict[str, Any]] = [{"seeds": 0}, {"share": 0.0}, {"share": 1.1}, {"batch": 0}]
    for wish in (*wishes, {"jobs": 0}):
        with pytest.raises(ConfigError, match="at least 1"):
            study_searches(files, PLAIN, **wish)
    with pytest.raises(ConfigError, match="a recording and a strategy"):
        study_searches([], PLAIN)
    with pytest.raises(RecordError, match="no file"):
        study_searches([tmp_path / "missing"], PLAIN)


def run(*arguments: object) -> int:
    return main(["simulate", *map(str, arguments)])


def test_the_command(files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = [files[0], "--strategy", "random", "--strategy", "grid", "--seeds", 2, "--jobs", 1]
    plot, page = tmp_path / "plot.png", tmp_path / "page.md"
    assert run(*common, "--plot", plot, "--markdown", page) == 0
    shown = capsys.readouterr().out
    assert "rows16" in shown and "random / grid" in shown and "1.25" in shown
    assert plot.stat().st_size > 1000
    assert "rows16" in page.read_text() and "](plot.png)" in page.read_text()
    assert "Measured on here (avx2), threads: 1." in page.read_text()
    assert run(*common, "--json", "--check") == 1  # a bar is missed: 1.25
    assert json.loads(capsys.readouterr().out)["seeds"] == 2
    assert run(*common, "--share", 1.5) == 2
    assert run(*common, "--plot", tmp_path / "none" / "plot.png") == 2
    assert run("--strategy", "magic", files[0]) == 2
    assert "no search strategy 'magic'" in capsys.readouterr().err


def test_the_command_takes_what_the_package_holds(
    files: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(simulation, "SHIPPED", files[0].parent)
    assert run("--strategy", "grid", "--jobs", 1, "--json") == 0
    regions = json.loads(capsys.readouterr().out)["regions"]
    assert [region["name"] for region in regions] == ["rows16", "rows8"]
    assert run("--strategy", "grid", "rows8", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["regions"]) == 1
    monkeypatch.setattr(simulation, "SHIPPED", tmp_path)
    assert run() == 2
    assert "holds no recordings" in capsys.readouterr().err
