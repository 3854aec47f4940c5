"""Lookup: the best record that fits, never one that cannot be built."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from microkernels.base.errors import RecordError
from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tvm_hybrid.records.record import Record
from tvm_hybrid.records.record_file import RecordFile
from tvm_hybrid.records.record_lookup import RecordLookup
from tvm_hybrid.records.record_paths import default_record_paths
from tvm_hybrid.records.record_store import RecordStore

from ..tuning.conftest import MakeRecord


def store_of(folder: Path, *records: Record, name: str = "r.jsonl") -> RecordStore:
    file = RecordFile(folder / name)
    for record in records:
        file.append(record)
    return RecordStore(file.path)


def test_the_fastest(tmp_path: Path, toy: ModuleType, machine: Machine, record: MakeRecord) -> None:
    store = store_of(tmp_path, record(1, 9.0), record(16, 2.0), record(4, 5.0))
    found = RecordLookup(store)(toy.region(), machine)
    assert found == (toy.ToyConfig(block=16), f"record {tmp_path}/r.jsonl:2")
    assert RecordLookup(store)(toy.region(128), machine) is None


def test_quotients_count_more_than_times(
    tmp_path: Path, toy: ModuleType, machine: Machine, record: MakeRecord
) -> None:
    # The second record was measured while the machine was twice as fast.
    store = store_of(tmp_path, record(16, 2.0, baseline_us=4.0), record(4, 1.5, baseline_us=2.0))
    found = RecordLookup(store)(toy.region(), machine)
    assert found is not None and found[0] == toy.ToyConfig(block=16)


@pytest.mark.parametrize("baseline_us", [None, 4.0])
def test_equals_are_told_apart_whatever_their_order(
    tmp_path: Path, toy: ModuleType, machine: Machine, record: MakeRecord, baseline_us: float | None
) -> None:
    found = set()
    for name, blocks in {"up": (1, 4, 16), "down": (16, 4, 1)}.items():
        equals = [record(block, 2.0, baseline_us=baseline_us) for block in blocks]
        known = RecordLookup(store_of(tmp_path, *equals, name=name))(toy.region(), machine)
        assert known is not None
        found.add(known[0])
    assert len(found) == 1


def test_the_newest_measurement_of_a_configuration_counts(
    tmp_path: Path, toy: ModuleType, machine: Machine, record: MakeRecord
) -> None:
    store = store_of(
        tmp_path,
        record(16, 1.0),
        record(4, 2.0),
        record(2, 1.5),
        record(16, 3.0),
        record(2, status="wrong_result", times_us=[]),
    )
    found = RecordLookup(store)(toy.region(), machine)
    assert found == (toy.ToyConfig(block=4), f"record {tmp_path}/r.jsonl:2")


@pytest.mark.parametrize(
    "change",
    [
        {"status": "timeout", "times_us": []},
        {"times_us": []},
        {"version": 7},
        {"isa": "avx512"},
        {"threads": 2},
        {"template": "matmul"},
    ],
)
def test_records_that_do_not_fit(
    tmp_path: Path, toy: ModuleType, machine: Machine, record: MakeRecord, change: dict[str, object]
) -> None:
    store = store_of(tmp_path, record(16, **{"time_us": 0.5, **change}), record(4, 9.0))
    found = RecordLookup(store)(toy.region(), machine)
    assert found is not None and found[0] == toy.ToyConfig(block=4)


def test_another_machine_only_for_want_of_better(
    tmp_path: Path, toy: ModuleType, machine: Machine, record: MakeRecord
) -> None:
    store = store_of(tmp_path, record(16, 0.1, machine="elsewhere"))
    found = RecordLookup(store)(toy.region(), machine)
    assert found is not None
    assert found[1] == f"record {tmp_path}/r.jsonl:1 (measured on elsewhere)"
    store.append(record(4, 9.0))
    found = RecordLookup(store)(toy.region(), machine)
    assert found == (toy.ToyConfig(block=4), f"record {tmp_path}/r.jsonl:2")
    assert RecordLookup(store)(toy.region(), Machine("here", isa_named("avx512"))) is None
    assert RecordLookup(store)(toy.region(), dataclasses.replace(machine, threads=2)) is None


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"block": 3}, "does not divide"),
        ({"block": 0}, "does not divide"),
        ({"block": "large"}, "block"),
        ({"block": 16, "colour": "red"}, "colour"),
        ({}, "block"),
        ({"block": 16, "mode": "raise"}, "RuntimeError: this candidate cannot be built"),
    ],
)
def test_a_configuration_that_cannot_be_built(
    tmp_path: Path,
    toy: ModuleType,
    machine: Machine,
    record: MakeRecord,
    caplog: pytest.LogCaptureFixture,
    config: dict[str, object],
    reason: str,
) -> None:
    store = store_of(tmp_path, record(1, 0.1, config=config), record(4, 9.0))
    with caplog.at_level(logging.WARNING, "tvm_hybrid"):
        found = RecordLookup(store)(toy.region(), machine)
    assert found is not None and found[0] == toy.ToyConfig(block=4)
    assert f"{tmp_path}/r.jsonl:1: this record is not used" in caplog.text
    assert reason in caplog.text


def test_several_files_and_growth(
    tmp_path: Path, toy: ModuleType, machine: Machine, record: MakeRecord
) -> None:
    store_of(tmp_path, record(16, 2.0), name="a.jsonl")
    store_of(tmp_path, record(4, 1.0), name="b.jsonl")
    store = RecordStore([tmp_path / "a.jsonl", str(tmp_path / "b.jsonl")])
    found = RecordLookup(store)(toy.region(), machine)
    assert found == (toy.ToyConfig(block=4), f"record {tmp_path}/b.jsonl:1")
    RecordFile(tmp_path / "b.jsonl").append(record(32, 0.5))
    found = RecordLookup(store)(toy.region(), machine)
    assert found == (toy.ToyConfig(block=32), f"record {tmp_path}/b.jsonl:2")
    store.append(record(64, 0.1))
    found = RecordLookup(store)(toy.region(), machine)
    assert found == (toy.ToyConfig(block=64), f"record {tmp_path}/a.jsonl:2")


def test_many_lookups_read_the_file_once(
    tmp_path: Path,
    toy: ModuleType,
    machine: Machine,
    record: MakeRecord,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = store_of(tmp_path, *(record(block) for block in (1, 2, 4, 8)))
    RecordLookup(store)(toy.region(), machine)
    monkeypatch.setattr(Record, "from_line", None)
    builds: list[object] = []
    monkeypatch.setattr(
        msgspec.json, "decode", lambda *arguments, **keywords: builds.append(arguments)
    )
    for _ in range(100):
        assert RecordLookup(store)(toy.region(), machine) is not None
    assert not builds


def test_files_of_the_environment(
    tmp_path: Path, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_of(tmp_path, record(16))
    names = [str(tmp_path / "r.jsonl"), str(tmp_path / "missing.jsonl"), ""]
    monkeypatch.setenv("TVM_HYBRID_RECORDS", os.pathsep.join(names))
    assert default_record_paths() == [tmp_path / "r.jsonl"]
    assert len(list(RecordStore())) == 1
    monkeypatch.delenv("TVM_HYBRID_RECORDS")
    assert list(RecordStore()) == []


def test_a_missing_file_is_an_error_unless_it_is_to_be_written(
    tmp_path: Path, record: MakeRecord
) -> None:
    with pytest.raises(RecordError, match=r"typo\.jsonl"):
        RecordStore(tmp_path / "typo.jsonl")
    with pytest.raises(RecordError, match=tmp_path.name):
        RecordStore(tmp_path, must_exist=False)
    store = RecordStore(tmp_path / "new.jsonl", must_exist=False)
    store.append(record(16))
    assert len(list(store)) == 1
    with pytest.raises(RecordError, match="no file"):
        RecordStore([]).append(record(16))
