"""`tvm-hybrid bench`: duration of measurements, throughput, and result files."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import click
import pytest

from tests.tvm_hybrid.onnx_models import saved
from tvm_hybrid.cli import main
from tvm_hybrid.cli.base import console
from tvm_hybrid.cli.bench import Turns, doubled_up_to


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(tmp_path)


def test_results_are_a_file_of_comma_separated_values(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "r.csv"
    options = ["--peers", "ort", "--threads", "1", "--duration", "0.01", "--warmup", "0"]
    assert main(["bench", str(model), "--csv", str(table), *options]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("p50 us", "p95 us", "p99 us", "requests/s"))
    with table.open() as file:
        lines = list(csv.DictReader(file))
    assert [line["name"] for line in lines] == ["tvm_hybrid", "ONNX Runtime"]
    assert all(float(line["p95_us"]) <= float(line["p99_us"]) for line in lines)


def test_throughput(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "r.csv"
    options = ["--peers", "ort", "--threads", "2", "--seconds", "0.01", "--repeat", "1", "--json"]
    arguments = ["bench", str(model), "--streams", "2,3", "--callers", "5", *options]
    assert main([*arguments, "--csv", str(table)]) == 0
    report = json.loads(capsys.readouterr().out)
    found = [
        (row["name"], row["streams"], row["threads"], row["callers"]) for row in report["rows"]
    ]
    assert found == [
        ("tvm_hybrid", 2, 1, 5),
        ("ONNX Runtime", 2, 1, 5),
        ("tvm_hybrid", 3, 1, 5),
        ("ONNX Runtime", 3, 1, 5),
    ]
    assert report["threads"] == 2 and report["best_ratio"] > 0
    assert all(row["agrees"] and row["timing"]["runs"] >= 5 for row in report["rows"])
    assert len(table.read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--callers", "2"], "--callers are those of --streams"),
        (["--streams", "0"], "not a list of numbers from 1 up"),
        (["--streams", "1", "--variants"], "leave --predict, --layers, --variants out"),
        (["--streams", "1", "--peers", "stock"], "'stock' has no streams"),
        (["--streams", "1", "--threads", "all"], "neither a place nor a library"),
        (["--duration", "1", "--repeat", "2"], "exclude each other"),
        (["--duration", "1", "--seconds", "0"], "take some --seconds"),
        (["--csv", "/no/such/folder/r.csv"], "/no/such/folder"),
        (["--predict", "--csv", "r.csv"], "--csv writes results of a MODEL"),
    ],
)
def test_what_does_not_go_together_is_refused(
    model: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(model), *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("turns", "rounds", "length"),
    [
        (Turns(None, None, None, 0.1), 10, 0.1),
        (Turns(3, 0.5, None, 0.1), 3, 0.5),
        (Turns(None, None, 1.0, 0.1), 10, 0.1),
        (Turns(None, 0.4, 1.0, 0.1), 3, 0.4),
        (Turns(None, None, 0.01, 0.1), 1, 0.01),
    ],
)
def test_how_long_is_measured(turns: Turns, rounds: int, length: float) -> None:
    assert (turns.rounds(10, 0.1), turns.length(0.1)) == (rounds, length)


@pytest.mark.parametrize(
    ("threads", "streams"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 3)),
        (4, (1, 2, 4)),
        (6, (1, 2, 4, 6)),
        (9, (1, 2, 4, 8, 9)),
    ],
)
def test_numbers_of_streams_to_try(threads: int, streams: tuple[int, ...]) -> None:
    assert doubled_up_to(threads) == streams


def test_layers_have_their_own_turns() -> None:
    assert Turns(2, 0.5, None, 0.1).of_layers() == (2, 0.5)
    with pytest.raises(click.UsageError, match="--repeat and --seconds"):
        Turns(None, None, 1.0, 0.1).of_layers()


def test_a_terminal_has_a_bar_and_a_file_has_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown() -> Any:
        with console.turns_bar("measuring") as (step, turned):
            step("judging")
            turned(1, 2)
        return capsys.readouterr().err

    assert shown() == "measuring\njudging\n"
    terminal = console.Console(stderr=True, force_terminal=True, width=80)
    monkeypatch.setattr(console, "error_console", lambda: terminal)
    text = shown()
    assert "━" in text and "judging" in text
