"""Nothing appended is lost; damage costs the damaged line and is reported."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from microkernels.base.errors import RecordError
from tvm_hybrid.records import record_file
from tvm_hybrid.records.record import Record
from tvm_hybrid.records.record_file import RecordFile, lock_of, replace_lines
from tvm_hybrid.records.record_store import RecordStore

from ..tuning.conftest import MakeRecord


def configs(file: RecordFile) -> list[object]:
    return [located.record.config["block"] for located in file]


def filled(path: Path, record: MakeRecord, blocks: tuple[int, ...] = (1, 2, 4)) -> RecordFile:
    file = RecordFile(path)
    for block in blocks:
        file.append(record(block))
    return file


def test_appends_and_reads_back(tmp_path: Path, record: MakeRecord) -> None:
    path = tmp_path / "new folder" / "r.jsonl"
    file = filled(path, record)
    assert configs(file) == [1, 2, 4]
    assert [located.place for located in file] == [f"{path}:{n}" for n in (1, 2, 3)]
    assert configs(RecordFile(path)) == [1, 2, 4]


def test_a_file_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert list(RecordFile(tmp_path / "none.jsonl")) == []


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_truncated_anywhere(tmp_path: Path, record: MakeRecord, data: st.DataObject) -> None:
    lines = [record(block).to_line() for block in (1, 2, 4)]
    text = b"".join(lines)
    cut = data.draw(st.integers(0, len(text)))
    path = tmp_path / "torn.jsonl"
    path.write_bytes(text[:cut])
    # A record is complete even if its newline is missing.
    ends = [sum(map(len, lines[: i + 1])) - 1 for i in range(3)]
    whole = [block for block, end in zip((1, 2, 4), ends, strict=True) if cut >= end]
    file = RecordFile(path)
    assert configs(file) == whole
    file.append(record(32))
    assert configs(file) == [*whole, 32]
    assert configs(RecordFile(path)) == [*whole, 32]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(junk=st.binary(max_size=80), place=st.integers(0, 3))
def test_foreign_lines_anywhere(
    tmp_path: Path, record: MakeRecord, junk: bytes, place: int
) -> None:
    lines = [record(block).to_line() for block in (1, 2, 4)]
    lines.insert(place, junk + b"\n")
    path = tmp_path / "foreign.jsonl"
    path.write_bytes(b"".join(lines))
    assert configs(RecordFile(path)) == [1, 2, 4]


def test_flipped_bits(tmp_path: Path, record: MakeRecord) -> None:
    """A bit flip costs only its line, or two lines if it hits the newline between them."""
    generator = random.Random(3)
    data = b"".join(record(block).to_line() for block in (1, 2, 4))
    path = tmp_path / "r.jsonl"
    for _ in range(100):
        place, bit = generator.randrange(len(data)), generator.randrange(8)
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
        store = RecordStore(path)
        assert len(list(store)) >= (1 if data[place] == 10 else 2)
        for key in store.by_workload():
            assert store.of_workload(key)


def test_damage_is_said_once_with_its_place(
    tmp_path: Path, record: MakeRecord, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(record(1).to_line() + b"{torn\n\n" + record(2).to_line())
    with caplog.at_level(logging.WARNING, "tvm_hybrid"):
        file = RecordFile(path)
        assert configs(file) == [1, 2]
        file.append(record(4))
        assert configs(file) == [1, 2, 4]
    assert [text.split(": ")[0] for text in caplog.messages] == [f"{path}:2"]
    assert [located.place.rpartition(":")[2] for located in file] == ["1", "4", "5"]


def test_only_what_was_added_is_read_again(
    tmp_path: Path, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = filled(tmp_path / "r.jsonl", record)
    read: list[bytes] = []
    decode = Record.from_line

    def counting(line: bytes) -> Record:
        read.append(line)
        return decode(line)

    monkeypatch.setattr(Record, "from_line", counting)
    assert len(file.refresh()) == 3
    assert len(read) == 3
    assert len(file.refresh()) == 3
    RecordFile(file.path).append(record(8))
    assert len(file.refresh()) == 4
    assert len(read) == 4


def test_a_line_seen_while_it_is_written_is_read_again_when_it_is_whole(
    tmp_path: Path, record: MakeRecord
) -> None:
    path = tmp_path / "r.jsonl"
    line = record(2).to_line()
    path.write_bytes(record(1).to_line() + line[:40])
    file = RecordFile(path)
    assert configs(file) == [1]
    for end in (len(line) - 1, len(line)):
        path.write_bytes(record(1).to_line() + line[:end])
        assert configs(file) == [1, 2]
    file.append(record(4))
    assert configs(file) == [1, 2, 4]


def test_a_file_that_was_replaced_or_removed(tmp_path: Path, record: MakeRecord) -> None:
    file = filled(tmp_path / "r.jsonl", record)
    assert configs(file) == [1, 2, 4]
    other = filled(tmp_path / "other.jsonl", record, (16, 32, 64, 8))
    os.replace(other.path, file.path)
    assert configs(file) == [16, 32, 64, 8]
    same_size = file.path.read_bytes().replace(b'"block":8', b'"block":1')
    file.path.write_bytes(same_size)
    os.utime(file.path, ns=(1, 1))
    assert configs(file) == [16, 32, 64, 1]
    file.path.unlink()
    assert configs(file) == []


def test_a_file_that_cannot_be_written_or_read(tmp_path: Path, record: MakeRecord) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"file/r\.jsonl"):
        RecordFile(tmp_path / "file" / "r.jsonl").append(record(1))
    with pytest.raises(RecordError, match="cannot read"):
        RecordFile(tmp_path).refresh()


def test_lines_of_other_kinds_are_kept_apart(
    tmp_path: Path, record: MakeRecord, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "r.jsonl"
    layout = b'{"schema":1,"kind":"layout","choice":["NCHW"]}'
    path.write_bytes(record(1).to_line() + layout + b"\n" + record(2).to_line() + layout)
    file = RecordFile(path)
    assert configs(file) == [1, 2]
    (first, last) = file.others["layout"]
    assert first.text == layout and first.place == f"{path}:2"
    file.append(record(4))
    assert configs(file) == [1, 2, 4]
    assert [line.place for line in file.others["layout"]] == [f"{path}:2", last.place]
    assert not file.damaged and not caplog.messages


def test_each_kind_of_damage_has_its_word(
    tmp_path: Path, record: MakeRecord, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "r.jsonl"
    torn = record(4).to_line()[:-20] + b"\n"
    path.write_bytes(torn + b'{"a":1}\n' + b'{"schema":99}\n' + record(2).to_line())
    assert configs(RecordFile(path)) == [2]
    for line, why in enumerate(("torn", "foreign", "newer"), 1):
        assert caplog.messages[line - 1].startswith(f"{path}:{line}: skipped, {why}: ")


def test_a_line_that_is_being_written_is_no_damage(
    tmp_path: Path, record: MakeRecord, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "r.jsonl"
    line = record(2).to_line()
    path.write_bytes(record(1).to_line() + line[:40])
    file = RecordFile(path)
    with lock_of(path):
        assert configs(file) == [1]
        assert not caplog.messages
        with path.open("ab") as writer:
            writer.write(line[40:])
    assert configs(file) == [1, 2]
    assert not caplog.messages


def test_a_new_file_with_the_number_of_an_old_one(tmp_path: Path, record: MakeRecord) -> None:
    """A rewritten file may reuse the inode of an earlier file, and be longer."""
    file = filled(tmp_path / "r.jsonl", record)
    assert configs(file) == [1, 2, 4]
    with lock_of(file.path):
        replace_lines(file.path, [record(block).to_line()[:-1] for block in (64, 32, 16, 8, 4, 2)])
    status = os.stat(file.path)
    file._identity = (status.st_dev, status.st_ino)
    assert configs(file) == [64, 32, 16, 8, 4, 2]


def test_one_lock_whatever_the_file_is_called(tmp_path: Path, record: MakeRecord) -> None:
    path, link = tmp_path / "r.jsonl", tmp_path / "link.jsonl"
    RecordFile(path).append(record(1))
    link.symlink_to(path)
    assert lock_of(link).lock_file == lock_of(path).lock_file
    with lock_of(link):
        replace_lines(link, [record(8).to_line()[:-1]])
    assert link.is_symlink() and configs(RecordFile(path)) == [8]


def test_threads_of_one_process(tmp_path: Path, record: MakeRecord) -> None:
    file = RecordFile(tmp_path / "r.jsonl")

    def work(first: int) -> None:
        for number in range(first, first + 10):
            file.append(record(number))
            assert number in configs(file)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, (100, 200, 300, 400)))
    expected = [first + number for first in (100, 200, 300, 400) for number in range(10)]
    assert sorted(map(str, configs(file))) == list(map(str, expected))
    assert configs(RecordFile(file.path)) == configs(file) and not file.damaged


def test_a_full_disk_leaves_no_torn_line(
    tmp_path: Path, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = filled(tmp_path / "r.jsonl", record, (1,))
    before = file.path.read_bytes()
    write = os.write
    left = [30]

    def full(descriptor: int, data: bytes) -> int:
        if not left:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[: left.pop()])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RecordError, match="No space left"):
        file.append(record(2))
    assert file.path.read_bytes() == before


def test_a_lock_that_is_never_released(
    tmp_path: Path, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.jsonl"
    monkeypatch.setattr(record_file, "LOCK_SECONDS", 0.05)
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, f"{path}.lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    with pytest.raises(RecordError, match="another process has held"):
        RecordFile(path).append(record(1))
    holder.communicate(timeout=60)
    RecordFile(path).append(record(1))
    assert configs(RecordFile(path)) == [1]


_HOLDER = """
import sys
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""
