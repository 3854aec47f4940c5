"""Ctrl-C at awkward moments: while a record is written, and inside a destructor."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from microkernels.machines.machine import Machine
from tvm_hybrid.records.record import Record
from tvm_hybrid.records.record_store import RecordStore
from tvm_hybrid.tuning.tune_regions import Interruption, tune_regions

from .pretended import ALL, Pretended


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


class InterruptedWriting(RecordStore):
    """Ctrl-C arrives while the third record is being written."""

    def append(self, record: Record) -> None:
        if len(list(self)) == 2:
            press_ctrl_c()
        super().append(record)


def test_a_finished_measurement_is_written_first(
    tmp_path: Path, toy: ModuleType, machine: Machine
) -> None:
    store = InterruptedWriting(tmp_path / "r.jsonl", must_exist=False)
    pretended = Pretended()
    result = tune_regions([(toy.region(), 1)], machine, pretended, store, ALL)
    assert result.interrupted
    assert len(pretended.blocks) == len(list(store)) == result.regions[0].trials == 3


def test_a_destructor_does_not_swallow_it(
    tmp_path: Path, toy: ModuleType, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Swallows:
        def __del__(self) -> None:
            press_ctrl_c()

    def time_us(block: int, final: bool) -> float:
        if block == 2:
            Swallows()
        return 1.0

    store = RecordStore(tmp_path / "r.jsonl", must_exist=False)
    pretended = Pretended(time_us)
    swallowed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: swallowed.append(found.exc_type))
    result = tune_regions([(toy.region(), 1)], machine, pretended, store, ALL)
    assert swallowed == [KeyboardInterrupt]
    assert result.interrupted and pretended.blocks == [8, 16, 2]
    assert len(list(store)) == 3


def test_the_handler_is_put_back_and_others_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interruption():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with Interruption() as interruption:
            os.kill(os.getpid(), signal.SIGINT)
        assert seen == [signal.SIGINT] and not interruption.requested
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_it_does_nothing() -> None:
    done: list[bool] = []

    def enter() -> None:
        with Interruption() as interruption, interruption.at_once():
            done.append(interruption.requested)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert done == [False]
