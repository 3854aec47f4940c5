"""Concurrent writers and killed writers lose nothing that was acknowledged."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tvm_hybrid.records.record import Record
from tvm_hybrid.records.record_file import RecordFile
from tvm_hybrid.records.record_rewrite import prune

from ..tuning.conftest import MakeRecord
from ..tuning.forked import SLOWEST, Child, system_write

pytestmark = pytest.mark.turns

KILLS = 100


def _write_in_pieces(descriptor: int, data: bytes) -> int:
    """Writes at most 50 bytes, like a nearly full disk: a kill may fall between two writes."""
    return system_write(descriptor, data[:50])


def numbered(record: Record, number: int) -> Record:
    return msgspec.structs.replace(record, config={"block": number})


def numbers(file: RecordFile) -> list[int]:
    return [int(str(located.record.config["block"])) for located in file]


@pytest.mark.parametrize("writers", [2, 4])
def test_writers_at_once(memory_folder: Path, record: MakeRecord, writers: int) -> None:
    file, made = RecordFile(memory_folder / "r.jsonl"), record(1, error="x" * 3000)

    def work(first: int) -> Callable[[Callable[[int], None]], None]:
        def write(_acknowledge: Callable[[int], None]) -> None:
            for number in range(first, first + 200):
                file.append(numbered(made, number))

        return write

    children = [Child(work(200 * number)) for number in range(writers)]
    assert [child.wait() for child in children] == [0] * writers
    assert sorted(numbers(file)) == list(range(200 * writers))
    assert not file.damaged


@pytest.mark.parametrize("pieces", [False, True])
def test_writers_that_are_killed(
    memory_folder: Path, record: MakeRecord, monkeypatch: pytest.MonkeyPatch, pieces: bool
) -> None:
    """Each writer continues after the previous one; only the record being written may be torn."""
    file, made = RecordFile(memory_folder / "r.jsonl"), record(1, error="x" * 1000)
    generator = random.Random(3)
    if pieces:
        monkeypatch.setattr(os, "write", _write_in_pieces)
    acknowledged: list[int] = []
    for kill in range(KILLS // 2):

        def write(acknowledge: Callable[[int], None], first: int = 1_000 * kill) -> None:
            for number in range(first, first + 1_000):
                file.append(numbered(made, number))
                acknowledge(number)

        child = Child(write)
        assert child.kill(generator.uniform(0.0, 0.01)) == -signal.SIGKILL
        acknowledged += child.acknowledged()
        there = numbers(file)
        # A record that was written but not acknowledged may exist, too: one for each writer.
        assert set(there) >= set(acknowledged)
        assert len(there) == len(set(there)) <= len(acknowledged) + kill + 1
        assert len(file.damaged) <= kill + 1
    assert len(acknowledged) >= KILLS // 2
    assert all(": skipped, torn: " in text for text in file.damaged)
    file.append(numbered(made, -1))
    assert numbers(RecordFile(file.path))[-1] == -1


def test_rewriters_that_are_killed(memory_folder: Path, record: MakeRecord) -> None:
    """The file is the old or the new one, never a mixture."""
    file = RecordFile(memory_folder / "r.jsonl")
    generator = random.Random(5)

    def rewrite(acknowledge: Callable[[int], None]) -> None:
        for number in range(1_000):
            file.append(record(8, 2.0))  # measured again: replaces the earlier one
            prune(file.path)
            acknowledge(number)

    for block in (16, 32, 64):
        file.append(record(block, 1.0))
    for _ in range(KILLS // 4):
        child = Child(rewrite)
        assert child.kill(generator.uniform(0.0, 0.02)) == -signal.SIGKILL
        child.acknowledged()
        assert {16, 32, 64} <= set(numbers(file)) <= {8, 16, 32, 64}
        assert len(numbers(file)) <= 5
        assert not file.damaged


def test_appending_while_others_rewrite(memory_folder: Path, record: MakeRecord) -> None:
    """A writer that waited for the lock writes to the file that now has the name."""
    file, made = RecordFile(memory_folder / "r.jsonl"), record(1)

    def append(first: int) -> Callable[[Callable[[int], None]], None]:
        def work(_acknowledge: Callable[[int], None]) -> None:
            for number in range(first, first + 60):
                for _ in range(2):
                    file.append(numbered(made, number))

        return work

    def rewrite(acknowledge: Callable[[int], None]) -> None:
        deadline = time.monotonic() + SLOWEST
        while time.monotonic() < deadline:
            done = prune(file.path, best=1_000)
            if done.removed:
                acknowledge(done.removed.total())
            if done.kept == 120 and not done.removed.total():
                return

    file.append(numbered(made, 0))
    rewriter = Child(rewrite)
    writers = [Child(append(first)) for first in (0, 60)]
    assert [child.wait() for child in (*writers, rewriter)] == [0, 0, 0]
    assert sum(rewriter.acknowledged()) > 0
    prune(file.path, best=1_000)
    assert sorted(numbers(file)) == list(range(120))
    assert not file.damaged
