"""Merging and pruning keep lines byte by byte and report everything that they drop."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from microkernels.base.errors import RecordError
from tvm_hybrid.records.record import Record
from tvm_hybrid.records.record_rewrite import merge, prune, read_lines

from ..tuning.conftest import MakeRecord

LAYOUT = b'{"schema":1, "kind":"layout", "by hand":true}\n'
NEWER = b'{"schema":99,"what":"only the future knows"}\n'
FOREIGN = b'{"name":"package.json"}\n'
TORN = b'{"schema":1,"workl\n'


def write(path: Path, *lines: bytes | Record) -> Path:
    path.write_bytes(b"".join(x if isinstance(x, bytes) else x.to_line() for x in lines))
    return path


def test_merge_keeps_lines_and_their_order(tmp_path: Path, record: MakeRecord) -> None:
    # Written by hand: spaces stay, and the last line may lack its newline.
    spaced = record(2).to_line().replace(b":", b": ", 1)
    a = write(tmp_path / "a", record(1), TORN, spaced, LAYOUT)
    b = write(tmp_path / "b", NEWER, spaced, FOREIGN, LAYOUT, record(4).to_line()[:-1])
    done = merge([a, b], tmp_path / "out")
    expected = record(1).to_line() + spaced + LAYOUT + NEWER + record(4).to_line()
    assert (tmp_path / "out").read_bytes() == expected
    assert done.kept == 5 and +done.removed == {"repeated": 2, "unreadable": 2}
    torn, foreign = done.skipped
    assert torn.startswith(f"{a}:2: skipped, torn: ")
    assert foreign.startswith(f"{b}:3: skipped, foreign: ")


def test_merge_into_one_of_the_files(tmp_path: Path, record: MakeRecord) -> None:
    a, b = write(tmp_path / "a", record(1)), write(tmp_path / "b", record(2), record(1))
    with pytest.raises(RecordError, match="is there already"):
        merge([a], b)
    assert len(read_lines(b)) == 2
    link = tmp_path / "link"
    link.symlink_to(b)
    merge([a, b], link)
    assert link.is_symlink()
    assert b.read_bytes() == record(1).to_line() + record(2).to_line()
    with pytest.raises(RecordError, match="missing"):
        merge([a, tmp_path / "missing"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_prune_keeps_the_best_and_the_default(tmp_path: Path, record: MakeRecord) -> None:
    times = {8: 10.0, 16: 5.0, 32: 4.0, 64: 6.0, 4: 7.0, 2: 30.0}
    lines = [record(block, time, baseline_us=10.0) for block, time in times.items()]
    path = write(tmp_path / "r", *lines)
    os.chmod(path, 0o640)
    before = path.read_bytes()
    done = prune(path, 2, dry_run=True)
    assert path.read_bytes() == before
    assert prune(path, 2) == done
    assert done.kept == 3 and +done.removed == {"not among the best": 3}
    assert path.read_bytes() == b"".join(line.to_line() for line in lines[:3])
    assert path.stat().st_mode & 0o777 == 0o640
    inode = path.stat().st_ino
    assert not +prune(path, 2).removed and path.stat().st_ino == inode
    assert prune(path, 0).kept == 1
    assert path.read_bytes() == lines[0].to_line()


def test_prune_keeps_today_s_default_too(tmp_path: Path, record: MakeRecord) -> None:
    # 8 is the toy's formula, whatever default the other records were compared with.
    slow = record(8, 20.0, baseline_us=10.0)
    path = write(tmp_path / "r", slow, record(16, 5.0, baseline_us=10.0))
    assert prune(path, 1).kept == 2
    assert prune(path, 0).kept == 1 and path.read_bytes() == slow.to_line()


def test_prune_keeps_what_was_confirmed(tmp_path: Path, record: MakeRecord) -> None:
    def made(block: int, time: float, confirmed: bool | None) -> Record:
        return record(block, time, baseline_us=10.0, confirmed=confirmed)

    path = write(
        tmp_path / "r",
        made(8, 10.0, True),
        made(32, 1.0, None),  # searched, not confirmed
        made(16, 5.0, None),
        made(16, 6.0, True),
        made(32, 9.9, False),
        made(16, 5.5, None),  # without weight, but the newest
    )
    done = prune(path, 3)
    kept = [line.record for line in read_lines(path) if line.record]
    assert [(made.config["block"], made.confirmed) for made in kept] == [
        (8, True),
        (16, True),
        (16, None),
    ]
    assert +done.removed == {"measured again later": 2, "not among the best": 1}


@pytest.mark.parametrize("keep", [False, True])
def test_prune_and_failures(tmp_path: Path, record: MakeRecord, keep: bool) -> None:
    failed = record(32, status="timeout", times_us=[])
    path = write(tmp_path / "r", record(8, 3.0), record(32, 1.0), failed, record(16, 2.0))
    done = prune(path, 3, keep_failures=keep)
    assert +done.removed == {"measured again later": 1, **({} if keep else {"failed": 1})}
    assert (failed.to_line() in path.read_bytes()) is keep


@pytest.mark.parametrize(
    "other", [{"threads": 2}, {"isa": "avx512"}, {"machine": "elsewhere"}, {"workload": "another"}]
)
def test_prune_compares_like_with_like(
    tmp_path: Path, record: MakeRecord, other: dict[str, Any]
) -> None:
    path = write(tmp_path / "r", record(16, 2.0), record(32, 9.0, **other), record(64, 3.0))
    assert prune(path, 1).kept == 2


def test_prune_and_other_lines(tmp_path: Path, record: MakeRecord) -> None:
    former = record(32, 1.0, version=0)
    future = record(32, 1.0, version=9)
    unknown = record(64, 1.0, template="not ours")
    lines = (TORN, former, LAYOUT, record(16), NEWER, FOREIGN, future, unknown)
    path = write(tmp_path / "r", *lines)
    done = prune(path)
    assert path.read_bytes() == b"".join(
        (LAYOUT, record(16).to_line(), NEWER, future.to_line(), unknown.to_line())
    )
    assert +done.removed == {"former template version": 1, "unreadable": 2}
    assert [text.split(",")[0] for text in done.skipped] == [f"{path}:{n}: removed" for n in (1, 6)]


def test_files_that_are_not_there_or_not_ours(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no record file"):
        prune(tmp_path / "missing")
    with pytest.raises(RecordError, match="no record file"):
        prune(tmp_path)
    assert not list(tmp_path.iterdir())
    file = write(tmp_path / "file", b"")
    with pytest.raises(RecordError, match="cannot write"):
        merge([file], file / "out")
