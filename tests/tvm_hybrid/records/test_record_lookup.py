"""The lookup order of records: the user's, the package's, those of similar regions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from microkernels.machines.machine import Machine
from relay_passes.ir.decisions import Decision
from tests.tvm_hybrid.tuning.conftest import MakeRecord
from tvm_hybrid.errors import RecordError
from tvm_hybrid.explain.explanation import Explanation
from tvm_hybrid.records import record_lookup
from tvm_hybrid.records.record import Record
from tvm_hybrid.records.record_file import Located, RecordFile
from tvm_hybrid.records.record_lookup import RecordLookup, lookup_of
from tvm_hybrid.records.record_store import RecordStore, trusted

pytestmark = pytest.mark.usefixtures("factor_of_two")

Write = Callable[..., Record]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of this package's records during the test."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    monkeypatch.setattr(record_lookup, "FOLDER", folder)
    monkeypatch.delenv("TVM_HYBRID_RECORDS", raising=False)
    return folder


@pytest.fixture
def write(toy: ModuleType, record: MakeRecord) -> Write:
    """`write(path, size, block, **changes)` writes a record confirmed to be 1.5 times as fast."""

    def append(path: Path, size: int, block: int, **changes: Any) -> Record:
        region = toy.region(size)
        fields = {"baseline_us": 3.0, "confirmed": True, "workload": region.key, **changes}
        made = record(block, 2.0, **{"region": region, **fields})
        RecordFile(path).append(made)
        return made

    return append


def test_the_order(
    tmp_path: Path, folder: Path, toy: ModuleType, machine: Machine, write: Write
) -> None:
    own, ours = tmp_path / "r.jsonl", folder / f"{machine.name}.jsonl"
    region, other = toy.region(64), toy.region(96).key
    own.write_text("")

    def found() -> tuple[str, object] | None:
        record_lookup._store.cache_clear()
        lookup = lookup_of(own)
        assert lookup is not None
        chosen = lookup(region, machine)
        if chosen is None:
            assert not lookup.uses
            return None
        assert isinstance(chosen[0], toy.ToyConfig)
        (use,) = lookup.uses.values()
        assert use.workload == region.key
        assert f"{use.file}:{use.line}" in chosen[1]
        return chosen[1], (use.how, use.shipped, chosen[0].block, use.measured)

    assert found() is None
    write(ours, 96, 32)
    near = f"{other}, sizes within a factor of 1.50"
    text = f"borrowed from shipped record here.jsonl:1, {near}"
    assert found() == (text, ("borrowed", True, 32, other))
    write(own, 96, 16)
    text = f"borrowed from record {own}:1, {near}"
    assert found() == (text, ("borrowed", False, 16, other))
    write(own, 64, 1, machine="elsewhere")
    text = f"record {own}:2 (measured on elsewhere)"
    assert found() == (text, ("other machine", False, 1, region.key))
    write(ours, 64, 2)
    assert found() == ("shipped record here.jsonl:2", ("exact", True, 2, region.key))
    write(own, 64, 4)
    assert found() == (f"record {own}:3", ("exact", False, 4, region.key))


def test_no_records_at_all(
    tmp_path: Path,
    folder: Path,
    toy: ModuleType,
    machine: Machine,
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(folder / f"{machine.name}.jsonl", 64, 16)
    unnamed = lookup_of(None)
    assert unnamed is not None and unnamed(toy.region(64), machine) is not None
    assert unnamed(toy.region(64), Machine("elsewhere", machine.isa)) is None
    assert lookup_of([]) is None and lookup_of(()) is None
    monkeypatch.setenv("TVM_HYBRID_RECORDS", "none")
    assert lookup_of(None) is None
    write(tmp_path / "r.jsonl", 64, 4)
    named = lookup_of([tmp_path / "r.jsonl"])
    assert named is not None
    assert named(toy.region(64), machine) == (
        toy.ToyConfig(block=4),
        f"record {tmp_path}/r.jsonl:1",
    )
    with pytest.raises(RecordError, match=r"typo\.jsonl"):
        lookup_of(tmp_path / "typo.jsonl")


def test_the_package_s_file_is_read_once(
    folder: Path, toy: ModuleType, machine: Machine, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / f"{machine.name}.jsonl", 64, 16)
    for _ in range(3):
        lookup = lookup_of(None)
        assert lookup is not None and lookup(toy.region(64), machine) is not None
        monkeypatch.setattr(Record, "from_line", None)


def test_a_use_names_the_line_s_content(
    tmp_path: Path, folder: Path, toy: ModuleType, machine: Machine, write: Write
) -> None:
    path = tmp_path / "r.jsonl"
    write(path, 64, 16)
    lookup = RecordLookup(RecordStore(path))
    lookup(toy.region(64), machine)
    line = path.read_bytes()
    assert lookup.uses[toy.region(64).key].sha256 == hashlib.sha256(line).hexdigest()


@pytest.mark.parametrize("shipping", [False, True])
def test_a_former_default_makes_way_for_today_s(
    tmp_path: Path, folder: Path, toy: ModuleType, machine: Machine, write: Write, shipping: bool
) -> None:
    """The search confirmed the former default as best; since then the default has changed."""
    path = folder / f"{machine.name}.jsonl" if shipping else tmp_path / "r.jsonl"
    (tmp_path / "r.jsonl").write_text("")
    write(path, 64, 2, baseline_us=2.0)
    write(path, 64, 32, baseline_us=2.5, confirmed=False)
    write(path, 96, 16)
    lookup = lookup_of(tmp_path / "r.jsonl")
    assert lookup is not None
    config, source = lookup(toy.region(64), machine) or (None, "")
    assert config == toy.TOY.default_config(toy.region(64), machine)
    assert source.startswith("default; ") and "knows nothing faster" in source
    assert not lookup.uses


def test_only_what_is_confirmed_is_trusted(toy: ModuleType, record: MakeRecord) -> None:
    def blocks(*records: Record) -> list[object]:
        file = [Located(made, "") for made in records]
        return [item.record.config["block"] for item in trusted(file)]

    searched = [record(block, time, baseline_us=10.0) for block, time in ((16, 5.0), (32, 4.0))]
    default = record(8, 10.0, baseline_us=10.0, confirmed=True)
    assert blocks(*searched) == [32, 16]
    assert blocks(*searched, record(64, 11.0, baseline_us=10.0)) == [32, 16]
    assert blocks(record(64, 11.0, baseline_us=10.0)) == []
    assert blocks(record(64, 11.0)) == [64]
    assert blocks(*searched, default) == [8]
    finals = [
        record(16, 6.0, baseline_us=10.0, confirmed=True),
        record(32, 9.9, baseline_us=10.0, confirmed=False),
    ]
    assert blocks(*searched, default, *finals) == [16, 8]
    # A later short measurement revokes nothing; a failure does.
    again = record(16, 9.0, baseline_us=10.0)
    assert blocks(*searched, default, *finals, again) == [16, 8]
    failed = record(16, status="wrong_result", times_us=[])
    assert blocks(*searched, default, *finals, failed) == [8]


def test_explain_counts_where_configurations_come_from() -> None:
    sources = ["default", "record a:1", "shipped record b:2", "borrowed from record a:3, x"]
    decisions = [Decision(node="n", op="o", taken=True, source=source) for source in sources]
    text = Explanation(decisions).summary()
    assert "4 of 4 nodes taken, 2 of them with a tuned configuration, 1 with" in text
