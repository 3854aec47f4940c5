"""A record survives its line of JSON; what is not a record is refused with a reason."""

from __future__ import annotations

import json
import math

import pytest

from microkernels.errors import RecordError
from tvm_hybrid.tuning.record import SCHEMA, Record

from .conftest import MakeRecord


def test_round_trip(record: MakeRecord) -> None:
    made = record(16, 2.5, baseline_us=5.0, error="ünïcode\nand a newline")
    line = made.to_line()
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert Record.from_line(line) == made
    assert made.workload == made.region.key and made.date and made.tvm


def test_median_and_relative(record: MakeRecord) -> None:
    made = record(16, baseline_us=4.0, times_us=[1.0, 100.0, 2.0])
    assert made.median_us == 2.0
    assert made.relative == 0.5
    failed = record(16, status="timeout", times_us=[])
    assert math.isinf(failed.median_us) and failed.relative is None


def test_by_hand_only_what_identifies_it_is_needed(record: MakeRecord) -> None:
    fields = json.loads(record(16).to_line())
    for name in ("times_us", "baseline_us", "error", "date", "tvm", "schema"):
        del fields[name]
    with pytest.raises(RecordError, match="schema"):
        Record.from_line(json.dumps(fields).encode())
    assert Record.from_line(json.dumps({**fields, "schema": 1}).encode()).times_us == []


def test_fields_of_a_later_minor_version_are_ignored(record: MakeRecord) -> None:
    fields = {**json.loads(record(16).to_line()), "weather": "fine"}
    assert Record.from_line(json.dumps(fields).encode()) == record(16, date=fields["date"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": SCHEMA + 1}, "update tvm_hybrid"),
        ({"status": "splendid"}, "status"),
        ({"times_us": "fast"}, "times_us"),
        ({"config": [1, 2]}, "config"),
        ({"region": {}}, "region"),
        ({"threads": None}, "threads"),
    ],
)
def test_wrong_fields_are_named(
    record: MakeRecord, change: dict[str, object], message: str
) -> None:
    fields = {**json.loads(record(16).to_line()), **change}
    with pytest.raises(RecordError, match=message):
        Record.from_line(json.dumps(fields).encode())


@pytest.mark.parametrize(
    "line",
    [b"", b"null", b"{}", b"[]", b"\xff\xfe\x00", b"GIF89a", b"[" * 100_000, b'{"schema": 1'],
)
def test_foreign_lines_are_refused(line: bytes) -> None:
    with pytest.raises(RecordError):
        Record.from_line(line)
