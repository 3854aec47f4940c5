"""Many writers at once, and writers that are killed: nothing that was acknowledged is lost."""

from __future__ import annotations

import os
import random
import select
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tvm_hybrid.tuning.record import Record
from tvm_hybrid.tuning.record_file import RecordFile
from tvm_hybrid.tuning.record_rewrite import prune

from .conftest import MakeRecord

KILLS = 100
SLOWEST = 120.0
"""Seconds after which a test that hangs fails."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory if possible: a killed process loses nothing there either, and flushing is fast."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


class Child:
    """A forked process that does one thing and acknowledges what it finished through a pipe.

    It does without TVM's threads, which it lacks.
    """

    def __init__(self, work: Callable[[Callable[[int], None]], None]) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(reading)
                work(lambda number: _write_all(writing, f"{number}\n".encode()))
                code = 0
            finally:
                os._exit(code)
        os.close(writing)
        self._pipe = os.fdopen(reading, "rb")

    def acknowledged(self) -> list[int]:
        """All of them, as soon as the process has ended."""
        with self._pipe as pipe:
            # The last line may be torn, too.
            return [int(line) for line in pipe.read().split(b"\n")[:-1]]

    def wait(self) -> int:
        """Its exit code, or the negative number of the signal that ended it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self, after: float) -> None:
        """Kills it so many seconds after it has finished something."""
        assert select.select([self._pipe], [], [], SLOWEST)[0]
        time.sleep(after)
        os.kill(self.pid, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL


def _write_all(descriptor: int, data: bytes) -> None:
    assert _system_write(descriptor, data) == len(data)  # less than what a pipe takes at once


_system_write = os.write


def _write_in_pieces(descriptor: int, data: bytes) -> int:
    """As a disk that is nearly full, or a network: a kill may fall between two pieces."""
    return _system_write(descriptor, data[:50])


def numbered(record: Record, number: int) -> Record:
    return msgspec.structs.replace(record, config={"block": number})


def numbers(file: RecordFile) -> list[int]:
    return [int(str(located.record.config["block"])) for located in file]


@pytest.mark.parametrize("writers", [2, 4])
def test_writers_at_once(folder: Path, record: MakeRecord, writers: int) -> None:
    file, made = RecordFile(folder / "r.jsonl"), record(1, error="x" * 3000)

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
    folder: Path, record: MakeRecord, monkeypatch: pytest.MonkeyPatch, pieces: bool
) -> None:
    """Each continues what the one before left; only what it was writing may be torn."""
    file, made = RecordFile(folder / "r.jsonl"), record(1, error="x" * 1000)
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
        child.kill(generator.uniform(0.0, 0.01))
        acknowledged += child.acknowledged()
        there = numbers(file)
        # What was written, but not acknowledged any more, may be there besides: one of each.
        assert set(there) >= set(acknowledged)
        assert len(there) == len(set(there)) <= len(acknowledged) + kill + 1
        assert len(file.damaged) <= kill + 1
    assert len(acknowledged) >= KILLS // 2
    assert all(": skipped, torn: " in text for text in file.damaged)
    file.append(numbered(made, -1))
    assert numbers(RecordFile(file.path))[-1] == -1


def test_rewriters_that_are_killed(folder: Path, record: MakeRecord) -> None:
    """The file is the old one or the new one, never half of either."""
    file = RecordFile(folder / "r.jsonl")
    generator = random.Random(5)

    def rewrite(acknowledge: Callable[[int], None]) -> None:
        for number in range(1_000):
            file.append(record(8, 2.0))  # measured again: the one before goes
            prune(file.path)
            acknowledge(number)

    for block in (16, 32, 64):
        file.append(record(block, 1.0))
    for _ in range(KILLS // 4):
        child = Child(rewrite)
        child.kill(generator.uniform(0.0, 0.02))
        child.acknowledged()
        assert {16, 32, 64} <= set(numbers(file)) <= {8, 16, 32, 64}
        assert len(numbers(file)) <= 5
        assert not file.damaged


def test_appending_while_others_rewrite(folder: Path, record: MakeRecord) -> None:
    """Who waited for the lock writes to the file that has the name now."""
    file, made = RecordFile(folder / "r.jsonl"), record(1)

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
    writers = [Child(append(first)) for first in (0, 60)]
    rewriter = Child(rewrite)
    assert [child.wait() for child in (*writers, rewriter)] == [0, 0, 0]
    assert sum(1 for count in rewriter.acknowledged() if count) > 1
    prune(file.path, best=1_000)
    assert sorted(numbers(file)) == list(range(120))
    assert not file.damaged
