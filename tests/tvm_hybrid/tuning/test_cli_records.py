"""`tvm-hybrid records`, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tvm_hybrid.cli import main
from tvm_hybrid.records.record_file import RecordFile, append_line

from .conftest import MakeRecord


def run(*arguments: object) -> int:
    return main(["records", *map(str, arguments)])


@pytest.fixture
def path(tmp_path: Path, record: MakeRecord) -> Path:
    """A default, one 1.25 times as fast, a slower one, a failure and a torn line."""
    file = RecordFile(tmp_path / "r.jsonl")
    for block, time in ((8, 10.0), (16, 8.0), (4, 20.0)):
        file.append(record(block, time, baseline_us=10.0))
    file.append(record(32, status="timeout", times_us=[], error="too slow"))
    with file.path.open("ab") as writer:
        writer.write(b'{"schema":1,"wor')
    return file.path


def test_list(path: Path, capsys: pytest.CaptureFixture[str], record: MakeRecord) -> None:
    RecordFile(path).append(record(8, 1.0, threads=2))
    append_line(path, b'{"schema":1,"kind":"layout"}\n')
    assert run("list", path) == 0
    output = capsys.readouterr().out
    assert (
        "5 records of 2 regions, 1 of kind layout" in output
        and "1 timeout" in output
        and "1.250" in output
    )
    assert run("list", path, "--json") == 0
    one, two = json.loads(capsys.readouterr().out)
    assert (one["ok"], one["failed"], one["speedup"]) == (3, {"timeout": 1}, 1.25)
    assert (two["threads"], two["ok"], two["speedup"]) == (2, 1, None)


def test_show(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", path) == 0
    output = capsys.readouterr().out
    assert "4 records" in output and "timeout" in output and "1.250" in output
    assert run("show", path, "toy_add", "--json") == 0
    assert [made["config"]["block"] for made in json.loads(capsys.readouterr().out)] == [
        8,
        16,
        4,
        32,
    ]
    assert run("show", path, "matmul") == 0
    assert "0 records" in capsys.readouterr().out


def test_best_is_what_is_chosen(
    path: Path, capsys: pytest.CaptureFixture[str], record: MakeRecord
) -> None:
    def chosen() -> dict[str, object]:
        assert run("best", path, "--json") == 0
        (row,) = json.loads(capsys.readouterr().out)
        return row

    assert chosen()["config"] == {"block": 16, "mode": "right"}
    RecordFile(path).append(record(8, 10.0, baseline_us=10.0, confirmed=True))
    assert (chosen()["config"], chosen()["confirmed"]) == ({"block": 8, "mode": "right"}, True)


def test_prune(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = path.read_bytes()
    assert run("prune", path, "--best", 1, "--dry-run") == 0
    output = capsys.readouterr().out
    assert f"{path}:5: removed, torn: " in output
    assert f"2 lines in {path}; would be removed: " in output
    assert path.read_bytes() == before
    assert run("prune", path, "-k", 1, "--json") == 0
    done = json.loads(capsys.readouterr().out)
    assert done["kept"] == 2
    assert done["removed"] == {"not among the best": 1, "failed": 1, "unreadable": 1}
    assert run("prune", path) == 0
    assert f"2 lines in {path}; removed: none" in capsys.readouterr().out


def test_merge(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    assert run("merge", path, path, "-o", out) == 0
    output = capsys.readouterr().out
    assert f"{path}:5: skipped, torn: " in output
    assert f"4 lines in {out}; removed: 4 repeated, 2 unreadable" in output
    assert run("merge", path, "-o", out) == 2
    assert "is there already" in capsys.readouterr().err
    assert run("check", out) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "missing.jsonl"], "missing.jsonl"),
        (["prune", "missing.jsonl"], "missing.jsonl"),
        (["prune", "missing.jsonl", "--best", "-1"], "best"),
        (["merge", "missing.jsonl", "-o", "out.jsonl"], "missing.jsonl"),
        (["merge", "missing.jsonl"], "output"),
        (["merge", "-o", "out.jsonl"], "FILES"),
    ],
)
def test_wrong_usage(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert "Error: " in error and message in error
    assert not (tmp_path / "out.jsonl").exists()


def test_records_or_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.onnx").touch()
    model = str(tmp_path / "model.onnx")
    assert main(["explain", model, "--records", "r.jsonl", "--no-records"]) == 2
    assert "--no-records exclude each other" in capsys.readouterr().err
