"""A record survives its JSON line; anything else is refused with a reason."""

from __future__ import annotations

import json
import math
from types import ModuleType

import pytest

from microkernels.base.errors import RecordError
from tir_schedules.core.region import EpilogueOp
from tvm_hybrid.records.choice_record import LayoutRecord
from tvm_hybrid.records.record import SCHEMA, Record, UnreadableLine

from ..tuning.conftest import MakeRecord


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


def test_lines_of_another_kind_are_refused(record: MakeRecord) -> None:
    layout = LayoutRecord(graph="g", machine="znver4", isa="avx512", threads=1, labels={})
    assert LayoutRecord.from_line(layout.to_line()) == layout
    for kind, line in ((LayoutRecord, record(16).to_line()), (Record, layout.to_line())):
        with pytest.raises(UnreadableLine, match="foreign: JSON, but of another kind") as error:
            kind.from_line(line)
        assert error.value.why == "foreign"


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_constants_that_json_lacks(toy: ModuleType, record: MakeRecord, value: float) -> None:
    region = toy.region()
    steps = (EpilogueOp("constant", value=value), EpilogueOp("minimum", (0, 3)))
    inner = region.replace(epilogue=steps)
    whole = region.replace(parts=(inner, region))
    for bounded in (inner, whole):
        made = record(16, region=bounded, workload=bounded.key, error="NaN")
        again = Record.from_line(made.to_line())
        assert again.region.key == bounded.key == again.workload
        assert again.to_line() == made.to_line()
        json.loads(made.to_line(), parse_constant=lambda name: pytest.fail(name))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"schema":1,"workl', "torn"),
        (b"GIF89a", "torn"),
        (b"\xff\xfe\x00", "torn"),
        (b'{"name":"somebody else\'s"}', "foreign"),
        (b'{"schema":1}', "foreign"),
        (b'{"schema":1,"kind":"layout"}', "foreign"),
        (b'{"schema":1,"region":{"epilogue":[{"value":"NaN"}]}}', "foreign"),
        (b'{"schema":1,"region":"Infinity","error":"Infinity"}', "foreign"),
        (b"[[[[1]]]]", "foreign"),
        (b"[" * 100_000, "foreign"),
        (b'{"schema":2,"all":"new"}', "newer"),
    ],
)
def test_what_is_wrong_is_told_apart(line: bytes, why: str) -> None:
    with pytest.raises(UnreadableLine, match=f"^{why}: ") as raised:
        Record.from_line(line)
    assert raised.value.why == why


@pytest.mark.parametrize(
    "line",
    [b"", b"null", b"{}", b"[]", b"\xff\xfe\x00", b"GIF89a", b"[" * 100_000, b'{"schema": 1'],
)
def test_foreign_lines_are_refused(line: bytes) -> None:
    with pytest.raises(RecordError):
        Record.from_line(line)
