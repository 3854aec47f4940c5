"""What strategies may learn from: records of other regions, by the user and the package."""

from __future__ import annotations

import dataclasses
import lzma
from pathlib import Path

import pytest

from microkernels.machines.machine import Machine
from tvm_hybrid.records.record import Record
from tvm_hybrid.records.record_store import RecordStore
from tvm_hybrid.tuning.recordings import simulate
from tvm_hybrid.tuning.recordings.simulate import earlier_records, recorded_on

from ..conftest import MakeRecord


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replaces the package's recordings."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    monkeypatch.setattr(simulate, "SHIPPED", folder)
    recorded_on.cache_clear()
    monkeypatch.setattr(simulate, "recorded_on", simulate.recorded_on.__wrapped__)
    return folder


def write(path: Path, records: list[Record]) -> None:
    with lzma.open(path, "wb") as file:
        file.writelines(record.to_line() for record in records)


def test_records_of_others_on_this_machine(
    tmp_path: Path, package: Path, machine: Machine, record: MakeRecord
) -> None:
    store = RecordStore(tmp_path / "r.jsonl", must_exist=False)
    own, other, second = record(8), record(16, workload="other"), record(32, workload="other")
    foreign = [
        record(8, workload="other", **change)
        for change in ({"threads": 2}, {"machine": "elsewhere"}, {"isa": "avx512"})
    ]
    for made in (own, other, *foreign):
        store.append(made)
    recorded = [record(4, workload="recorded"), own, *foreign]
    write(package / "one.jsonl.xz", recorded)
    (package / "torn.jsonl.xz").write_bytes(b"not compressed")
    store.append(second)
    assert earlier_records(store, machine, own.workload) == [other, second, recorded[0]]
    two = dataclasses.replace(machine, threads=2)
    assert earlier_records(store, two, own.workload) == [foreign[0]] * 2
