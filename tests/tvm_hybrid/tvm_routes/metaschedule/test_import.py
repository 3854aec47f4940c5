"""Databases read back: our own unchanged, foreign ones as traces, damaged ones in part."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord
from tvm.target import Target

from microkernels.base.errors import RecordError
from microkernels.base.tvm_compat.metaschedule_database import RECORDS, WORKLOADS
from tir_schedules.core.region import EpilogueOp, Region
from tvm_hybrid.records.record import Record
from tvm_hybrid.records.record_lookup import RecordLookup
from tvm_hybrid.records.record_store import RecordStore
from tvm_hybrid.tvm_routes.metaschedule import export_records, import_records, traces_of
from tvm_hybrid.tvm_routes.metaschedule.exchange import note_of
from tvm_hybrid.tvm_routes.metaschedule.workload import region_of, workload_of

from .regions import batch_matmul, conv2d, host_machine, matmul, record_of

TARGET = {"kind": "llvm", "mcpu": "znver4", "num-cores": 2}
RECORD = record_of(batch_matmul(1, 8, 8, 16))
NASTY = 'a "quoted" \\ word,\ttab, ärger, \U0001f600'


def stored(path: Path, *records: Record) -> RecordStore:
    """A store with a new file."""
    store = RecordStore(path, must_exist=False)
    for record in records:
        store.append(record)
    return store


def foreign_database(folder: Path, region: Region, seconds: list[float], **target: object) -> Path:
    """A database with a trace that TVM made: loops split, on threads and vectors."""
    folder.mkdir(exist_ok=True)
    database = JSONDatabase(work_dir=str(folder))
    program = workload_of(region)
    schedule = Schedule(program)
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        outer, *_, inner = schedule.get_loops(block)[: 3 if region.op == "matmul" else 4]
        schedule.parallel(outer)
        schedule.vectorize(schedule.split(inner, [None, 16])[-1])
    record = TuningRecord(
        schedule.trace,
        database.commit_workload(program),
        seconds,
        Target({**TARGET, **target}),
        ArgInfo.from_prim_func(program["main"]),
    )
    database.commit_tuning_record(record)
    return folder


def test_our_own_records_come_back_as_they_were(tmp_path: Path) -> None:
    machine = host_machine()
    records = [
        record_of(matmul(32, 64, 96), machine, error=NASTY, confirmed=True, predicted=1.25),
        record_of(matmul(32, 64, 96, ("uint8", "int8")), machine),
        record_of(matmul(32, 64, 96, ("bfloat16", "bfloat16")), machine),
        record_of(batch_matmul(2, 16, 32, 32), machine, baseline_us=None),
        record_of(conv2d(14, 16, 32), machine, times_us=[1 / 3, 2 / 7]),
    ]
    store = stored(tmp_path / "first.jsonl", *records)
    assert len(export_records(store, tmp_path / "database").taken) == len(records)
    back = stored(tmp_path / "second.jsonl")
    result = import_records(tmp_path / "database", back)
    assert (result.left_out, result.foreign) == ([], 0)
    assert [located.record for located in back] == records
    again = import_records(tmp_path / "database", back)
    assert (again.taken, again.known) == ([], len(records))


@settings(deadline=None, max_examples=50)
@given(st.text(st.characters(codec="utf-8")))
def test_notes_are_ascii_and_the_same_record(text: str) -> None:
    record = msgspec.structs.replace(RECORD, error=text)
    note = note_of(record)
    assert note.isascii() and "\n" not in note
    assert Record.from_line(note.encode()) == record


def test_times_that_metaschedule_measured_anew_are_its_own(tmp_path: Path) -> None:
    record = record_of(batch_matmul(2, 16, 32, 32), confirmed=True)
    export_records(stored(tmp_path / "r.jsonl", record), tmp_path / "database")
    path = tmp_path / "database" / RECORDS
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for fields in lines:
        fields[1][1] = [5e-6, 7e-6]
    path.write_text("".join(json.dumps(fields) + "\n" for fields in lines))
    back = stored(tmp_path / "back.jsonl")
    import_records(tmp_path / "database", back)
    (located,) = back
    assert located.record.times_us == pytest.approx([5.0, 7.0])
    assert (located.record.baseline_us, located.record.confirmed) == (None, None)
    assert located.record.config == record.config


def test_a_foreign_trace_is_kept_but_never_chosen(tmp_path: Path) -> None:
    region = matmul(32, 64, 96)
    folder = foreign_database(tmp_path / "foreign", region, [2e-6, 3e-6, 4e-6])
    store = stored(tmp_path / "records.jsonl", record_of(region, host_machine(2)))
    result = import_records(folder, store)
    assert (result.taken, result.foreign, result.left_out) == ([region.key], 1, [])
    ((trace, place),) = traces_of(store)
    assert place.endswith("records.jsonl:2")
    assert (trace.region, trace.machine, trace.threads) == (region, "znver4", 2)
    assert trace.median_us == pytest.approx(3.0)
    # Lookup still returns the template's configuration, although the trace was faster.
    found = RecordLookup(store)(region, host_machine(2))
    assert found is not None and found[0].to_dict() == next(iter(store)).record.config
    assert import_records(folder, store).known == 1


def test_a_foreign_trace_is_written_back(tmp_path: Path) -> None:
    folder = foreign_database(tmp_path / "foreign", matmul(32, 64, 96), [2e-6, 4e-6])
    store = stored(tmp_path / "records.jsonl")
    import_records(folder, store)
    result = export_records(store, tmp_path / "again")
    assert (len(result.taken), result.left_out) == (1, [])
    first, second = (JSONDatabase(work_dir=str(path)) for path in (folder, tmp_path / "again"))
    (one,), (other,) = first.get_all_tuning_records(), second.get_all_tuning_records()
    assert str(one.trace) == str(other.trace)
    assert [float(t) for t in other.run_secs] == pytest.approx([2e-6, 4e-6])
    assert export_records(store, folder).known == 1  # its source


def test_a_trace_that_could_not_be_run_has_no_times(tmp_path: Path) -> None:
    folder = foreign_database(tmp_path / "foreign", matmul(32, 64, 96), [1e10])
    store = stored(tmp_path / "records.jsonl")
    import_records(folder, store)
    ((trace, _),) = traces_of(store)
    assert trace.times_us == []


def test_programs_and_targets_that_are_not_ours_are_named(tmp_path: Path) -> None:
    odd = matmul(32, 64, 96).replace(
        epilogue=(EpilogueOp("add", (0, 1)), EpilogueOp("gelu_tanh", (2,)))
    )
    folder = foreign_database(tmp_path / "foreign", odd, [2e-6])
    foreign_database(folder, matmul(16, 64, 96), [2e-6], mcpu="apple-m1", mtriple="aarch64")
    store = stored(tmp_path / "records.jsonl")
    result = import_records(folder, store)
    (first, why_program), (second, why_target) = result.left_out
    assert first.endswith(f"{RECORDS}:1") and "no region of ours" in why_program
    assert second.endswith(f"{RECORDS}:2") and "target" in why_target
    assert result.taken == []
    # The program is recognised if the model's regions are given.
    assert import_records(folder, store, [odd]).taken == [odd.key]


@pytest.mark.parametrize(
    "region",
    [
        matmul(32, 64, 96),
        matmul(32, 64, 96, ("uint8", "int8")),
        matmul(32, 64, 96, ("bfloat16", "bfloat16")),
        batch_matmul(2, 16, 32, 32),
        conv2d(14, 16, 32),
        conv2d(14, 16, 32, 2),
        conv2d(15, 16, 32, 2),
        *(
            matmul(32, 64, 96).replace(epilogue=(EpilogueOp("add", (0, 1)), *steps))
            for steps in (
                (EpilogueOp("gelu", (2,)),),
                (EpilogueOp("silu", (2,)),),
                (
                    EpilogueOp("tanh", (2,)),
                    EpilogueOp("constant", (), 0.25),
                    EpilogueOp("multiply", (3, 4)),
                ),
                (EpilogueOp("sigmoid", (2,)), EpilogueOp("multiply", (3, 1))),
            )
        ),
    ],
    ids=lambda region: region.key,
)
def test_programs_are_recognised(region: Region) -> None:
    assert region_of(workload_of(region)) == region


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """Both files of a database with an exported and a foreign record."""
    folder = tmp_path_factory.mktemp("whole")
    store = stored(folder / "r.jsonl", record_of(batch_matmul(2, 16, 32, 32)))
    export_records(store, folder / "database")
    foreign_database(folder / "database", matmul(8, 16, 32), [2e-6])
    database = folder / "database"
    return (database / WORKLOADS).read_bytes(), (database / RECORDS).read_bytes()


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_damage_is_survived_and_named(
    whole: tuple[bytes, bytes], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    for name, text in zip((WORKLOADS, RECORDS), whole, strict=True):
        start = data.draw(st.integers(0, len(text)), label=name)
        stop = data.draw(st.integers(start, len(text)), label=name)
        filling = data.draw(st.sampled_from([b"", b"\x00", b"\xff", b"[", b"]", b"0", b"\n"]))
        (folder / name).write_bytes(text[:start] + filling + text[stop:])
    store = stored(folder / "records.jsonl")
    result = import_records(folder, store)
    own, foreign = batch_matmul(2, 16, 32, 32), matmul(8, 16, 32)
    assert set(result.taken) <= {own.key, foreign.key}
    # Both forms hold the record; if one has a changed letter, it counts as another record.
    regions = [located.record.region for located in store]
    assert len(regions) <= 2 and all(region == own for region in regions)
    assert own.key in result.taken or not regions
    # A trace without its note that still parses after a cut counts as foreign.
    assert len(result.taken) == len(regions) + result.foreign
    assert all(place.startswith(str(folder)) and why for place, why in result.left_out)


def test_torn_lines_are_named_and_the_rest_is_taken(
    whole: tuple[bytes, bytes], tmp_path: Path
) -> None:
    workloads, records = whole
    (tmp_path / WORKLOADS).write_bytes(workloads)
    (tmp_path / RECORDS).write_bytes(records[:-40] + b"\n[3,[]]\n" + records)
    store = stored(tmp_path / "records.jsonl")
    result = import_records(tmp_path, store)
    assert len(result.taken) == 2
    reasons = [why for _, why in result.left_out]
    assert len(reasons) == 2
    assert any("not a whole line of JSON" in why for why in reasons)
    assert any("not a tuning record" in why for why in reasons)


def test_a_program_that_is_another_ones_is_named(
    whole: tuple[bytes, bytes], tmp_path: Path
) -> None:
    workloads, records = whole
    (tmp_path / WORKLOADS).write_bytes(b"\n" + workloads)  # shifts all workload numbers by one
    (tmp_path / RECORDS).write_bytes(records.splitlines()[-1])
    ((_, why),) = import_records(tmp_path, stored(tmp_path / "records.jsonl")).left_out
    assert "its arguments are not those of" in why


def test_a_note_that_is_no_record_is_named(tmp_path: Path) -> None:
    record = record_of(batch_matmul(2, 16, 32, 32))
    export_records(stored(tmp_path / "r.jsonl", record), tmp_path / "database")
    path = tmp_path / "database" / RECORDS
    path.write_text(path.read_text().splitlines()[0].replace("workload", "wrkload"))
    store = stored(tmp_path / "back.jsonl")
    ((place, why),) = import_records(tmp_path / "database", store).left_out
    assert place.endswith(f"{RECORDS}:1") and "workload" in why


def test_a_folder_without_a_database(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot read"):
        import_records(tmp_path, stored(tmp_path / "records.jsonl"))


def test_a_line_of_another_shape_is_no_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(msgspec.json.encode({"schema": 1, "kind": "metaschedule"}) + b"\n")
    assert list(traces_of(RecordStore(path))) == []
    assert "records.jsonl:1: this metaschedule line is not used" in caplog.text
