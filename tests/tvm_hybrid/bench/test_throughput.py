"""Throughput under several callers: who takes part and what it reports, never the speed."""

from __future__ import annotations

import csv
import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tvm_hybrid import InferenceSession
from tvm_hybrid import compile as compile_model
from tvm_hybrid.bench import bench as bench_module
from tvm_hybrid.bench.bench import ThroughputReport, measure_throughput
from tvm_hybrid.bench.bench_tables import bench_csv, throughput_table
from tvm_hybrid.bench.compare import Tolerance
from tvm_hybrid.bench.peers.contestants import LoadTurn, load_turn, total_rate
from tvm_hybrid.bench.peers.peers import ONNX_RUNTIME, OPENVINO, OURS
from tvm_hybrid.errors import SessionClosedError

from ..onnx_models import saved


def test_callers_call_at_once_each_with_its_own_clock() -> None:
    together = threading.Barrier(3)
    turn = load_turn(lambda: together.wait(60), 3, 0.0)
    assert len(turn.times) == 3 and turn.rate > 0


def test_the_rate_is_the_sum_of_the_callers_rates() -> None:
    ticks = iter([0.0, 0.5, 1.0, 2.0])
    turn = load_turn(lambda: None, 1, 1.5, lambda: next(ticks))
    assert turn == LoadTurn([0.5, 0.5, 1.0], 1.5) and turn.seconds == 2.0
    assert total_rate([turn, LoadTurn([1.0], 0.5)]) == pytest.approx(4 / 4.0)


def test_what_a_call_raises_ends_all_callers() -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        load_turn(fail, 4, 60.0)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ThroughputReport:
    """A report of two peers, one of which is not installed."""
    path = saved(tmp_path_factory.mktemp("throughput"))
    executable = compile_model(path, num_threads=1)
    sessions = {count: InferenceSession(executable, streams=count) for count in (1, 2)}
    return measure_throughput(
        sessions,
        path,
        {"x": np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)},
        threads=2,
        tolerance=Tolerance(1e-5),
        rounds=2,
        seconds=0.001,
        openvino_python="/no/such/python",
    )


def test_every_number_of_streams_has_a_row_for_each(report: ThroughputReport) -> None:
    names = [OURS, ONNX_RUNTIME, OPENVINO]
    assert [(row.name, row.streams) for row in report.rows] == [
        (name, streams) for streams in (1, 2) for name in names
    ]
    for row in report.rows:
        assert row.callers == row.streams and row.threads == 1
        if row.name == OPENVINO:
            assert "cannot start /no/such/python" in row.note and row.ratio is None
            continue
        assert row.agrees and not row.note and row.timing is not None
        assert row.timing.runs >= 2 * row.callers
        assert row.requests_per_second and row.ratio and row.max_rel is not None
    ours, theirs = report.rows[0], report.rows[1]
    assert ours.requests_per_second and theirs.requests_per_second
    assert theirs.ratio == pytest.approx(ours.requests_per_second / theirs.requests_per_second)
    best = [
        max(row.requests_per_second or 0 for row in report.rows if row.name == name)
        for name in (OURS, ONNX_RUNTIME)
    ]
    assert report.best_ratio == pytest.approx(best[0] / best[1]) and not report.wrong


def text_of(report: ThroughputReport, width: int) -> str:
    text = io.StringIO()
    Console(width=width, file=text).print(throughput_table(report, "a title"))
    return text.getvalue()


def test_tables_fit_terminals(report: ThroughputReport) -> None:
    wide, narrow = text_of(report, 125), text_of(report, 60)
    for text in (wide, narrow, text_of(report, 124)):
        assert "a title" in text and "requests/s" in text and "2 x 1T" in text
        assert "cannot start" in " ".join(text.split()) and "…" not in text
    assert all(len(line) <= 60 for line in narrow.splitlines())
    assert "most requests/s of ours over the most of any peer" in " ".join(narrow.split())


def test_every_row_is_a_line_of_the_csv(report: ThroughputReport) -> None:
    lines = list(csv.DictReader(io.StringIO(bench_csv(report))))
    assert [line["name"] for line in lines] == [row.name for row in report.rows]
    first: dict[str, Any] = lines[0]
    assert report.rows[0].timing is not None
    assert float(first["p99_us"]) == report.rows[0].timing.p99_us
    assert (first["model"], first["threads"], first["streams"]) == ("model", "1", "1")
    assert lines[2]["median_us"] == "" and "cannot start" in lines[2]["note"]


@pytest.mark.parametrize("best", [1, 2])
def test_the_best_number_of_streams_is_chosen(
    best: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path)
    executable = compile_model(path, num_threads=1)
    sessions = {count: InferenceSession(executable, streams=count) for count in (1, 2)}
    measured = bench_module._rates
    asked: list[float] = []

    def rates(contestants: Any, seconds: float) -> dict[int, float]:
        asked.append(seconds)
        found = measured(contestants, 0.0)
        assert list(found) == [1, 2] and min(found.values()) > 0
        return {count: 9.0 if count == best else 4.0 for count in found}

    monkeypatch.setattr(bench_module, "_rates", rates)
    steps: list[str] = []
    found = measure_throughput(
        sessions,
        path,
        {"x": np.ones((4, 8), np.float32)},
        threads=2,
        tolerance=Tolerance(1e-5),
        choose=True,
        peers=["ort"],
        rounds=1,
        seconds=0.01,
        progress=steps.append,
    )
    assert [(row.name, row.streams) for row in found.rows] == [(OURS, best), (ONNX_RUNTIME, best)]
    assert asked == [0.01] and found.tried == {best: 9.0, 3 - best: 4.0}
    assert steps[0] == "trying 1, 2 streams" and f"chosen: {best} stream" in steps[1]
    said = f"chosen: {best} stream{'s' * (best > 1)}; requests/s: 1: "
    assert said in " ".join(text_of(found, 100).split())
    with pytest.raises(SessionClosedError):
        sessions[3 - best].run(None, {"x": np.ones((4, 8), np.float32)})


def test_wrong_results_of_ours_are_noticed(tmp_path: Path) -> None:
    class Wrong:
        def __init__(self, executable: Any) -> None:
            self.executable = executable

        def run(self, names: None, feeds: Any) -> list[np.ndarray]:
            return [np.zeros((4, 5), np.float32)]

    path = saved(tmp_path)
    executable = compile_model(path, num_threads=1)
    wrong: Any = {1: Wrong(executable)}
    feeds = {"x": np.ones((4, 8), np.float32)}
    found = measure_throughput(
        wrong, path, feeds, threads=1, tolerance=Tolerance(1e-5), peers=[], rounds=1, seconds=0.0
    )
    (row,) = found.wrong
    assert row.note.startswith("differs by 1.0e+00 of the largest value")
    assert found.best_ratio is None
