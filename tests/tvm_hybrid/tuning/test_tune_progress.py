"""What `tvm-hybrid tune` shows while it works: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import dataclasses
import io
from types import ModuleType

import pytest
from rich.console import Console

from tvm_hybrid.cli import tune as tune_progress
from tvm_hybrid.cli.tune import describe, duration, shown
from tvm_hybrid.tuning.tune_result import Stage, TaskInfo, Trial

Terminal = tuple[Console, io.StringIO]


@pytest.fixture
def task(toy: ModuleType) -> TaskInfo:
    return TaskInfo(
        number=0,
        region=toy.region(),
        weight=6,
        size=1234,
        known=3,
        tried=20,
        default_us=10.0,
        best=1.25,
        predicted_gain=0.031,
        stopped="",
    )


def trial(task: TaskInfo, stage: Stage = "search", done: int = 25, number: int = 0) -> Trial:
    """A step of a run over two regions."""
    other = dataclasses.replace(task, number=1, best=None, predicted_gain=None, weight=1)
    return Trial(stage, (task, other), number, None, done, 1000 - done, 125.0)


def test_one_line_says_it_all(task: TaskInfo) -> None:
    text = describe(trial(task))
    assert text.startswith(
        "trial 25 of 1,000, region 1 of 2, 20 of 1,234 configurations, best 1.250x of the default, "
        "predicted +3.1%, 2:05 left at most: toy_add("
    )
    assert describe(trial(task, "final")).startswith("confirming, region 1 of 2")
    unknown = dataclasses.replace(trial(task, number=1), trials_left=None, seconds_left=None)
    assert describe(unknown).startswith("trial 25, region 2 of 2, 20 of 1,234 configurations: toy")
    assert duration(3723.4) == "1:02:03" and duration(59.7) == "1:00"


def console(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> io.StringIO:
    """Replaces standard error."""
    written = io.StringIO()
    made = Console(file=written, force_terminal=terminal, width=250, color_system=None)
    monkeypatch.setattr(tune_progress, "error_console", lambda: made)
    return written


def test_lines_when_the_region_changes_or_something_better_is_found(
    task: TaskInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = console(monkeypatch, terminal=False)
    better = dataclasses.replace(task, best=1.5)
    with shown() as callback:
        callback(trial(task, "begin"))
        assert written.getvalue().splitlines() == [
            f"region 1: 6 x, 1,234 configurations, 3 known: {task.region.key}",
            f"region 2: 1 x, 1,234 configurations, 3 known: {task.region.key}",
        ]
        written.truncate(0)
        written.seek(0)
        callback(trial(task, done=1))
        callback(trial(task, done=2))
        assert written.getvalue() == ""
        callback(trial(better, done=3))
        assert "best 1.500x" in written.getvalue()
        callback(trial(better, done=4))
        callback(trial(better, done=5, number=1))
        callback(trial(better, "end", done=5))
    numbers = [line.split()[1] for line in written.getvalue().splitlines()]
    assert numbers == ["3", "4", "5"]


def test_a_line_now_and_then(task: TaskInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    written = console(monkeypatch, terminal=False)
    now = 0.0
    lines = tune_progress._Lines(tune_progress.error_console(), lambda: now)
    for done in range(30):
        now += 1.0
        lines(trial(task, done=done))
    assert len(written.getvalue().splitlines()) == 2


def test_bars_on_a_terminal(task: TaskInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    written = console(monkeypatch, terminal=True)
    with shown() as callback:
        callback(trial(task, "begin"))
        callback(trial(task))
        callback(trial(task, "final"))
    text = written.getvalue()
    assert "configurations" in text and "6 x" in text and "1,234" in text  # the table
    for part in ("trial 25 of 1,000", "2:05 left at most", "20 of 1,234", "best 1.250x"):
        assert part in text
    assert "predicted +3.1%" in text and "confirming" in text
