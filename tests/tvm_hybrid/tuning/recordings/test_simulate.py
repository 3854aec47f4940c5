"""Simulation: recordings are read as measured, and searches replay them."""

from __future__ import annotations

import logging
import math
import random
import statistics
from pathlib import Path

import msgspec
import numpy as np
import pytest

from microkernels.base.errors import ConfigError, RecordError
from tvm_hybrid.records.record import Record
from tvm_hybrid.records.record_file import read_records
from tvm_hybrid.tuning.recordings import simulate as simulation
from tvm_hybrid.tuning.recordings.simulate import (
    Recording,
    load_recordings,
    random_median,
    shipped_recordings,
    simulate,
    trials_to_reach,
)
from tvm_hybrid.tuning.search.strategies import STRATEGIES

from ..synthetic import load_recording, product, synthetic_records, write_recording


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return synthetic_records(product())


@pytest.fixture
def recording(records: list[Record], tmp_path: Path) -> Recording:
    return load_recording(write_recording(tmp_path / "product.jsonl.xz", records))


def test_a_recording_is_the_space_with_its_scores(
    recording: Recording, records: list[Record]
) -> None:
    assert recording.name == "product"
    assert recording.region == product() and recording.template.name == "matmul"
    assert recording.machine.name == "here" and recording.machine.isa.name == "avx2"
    assert len(recording.space) == len(records) > 30
    assert recording.scores[0] == 1.0
    assert recording.best == pytest.approx(1.25)
    assert recording.near(0.98) == 1
    for index, record in enumerate(records):
        assert recording.space.configs[index].to_dict() == record.config
        assert recording.records[index] == record
    assert recording.scores[1] == 0.0 and recording.times_us[1] == math.inf
    # The default's time of 125 us over each configuration's time.
    np.testing.assert_allclose(recording.scores[2:], 125 / recording.times_us[2:], rtol=1e-12)


def test_plain_and_compressed_files_are_the_same(
    recording: Recording, records: list[Record], tmp_path: Path
) -> None:
    plain = load_recording(write_recording(tmp_path / "plain.jsonl", records))
    assert plain.records == recording.records
    np.testing.assert_array_equal(plain.scores, recording.scores)


def test_the_order_of_lines_and_older_measurements_do_not_matter(
    recording: Recording, records: list[Record], tmp_path: Path
) -> None:
    mixed = random.Random(1).sample(records, len(records))
    old = msgspec.structs.replace(records[5], times_us=[1e9])
    again = load_recording(write_recording(tmp_path / "mixed.jsonl", [old, *mixed]))
    assert again.space.configs[0] == recording.space.configs[0]
    assert dict(zip(again.space.configs, again.scores, strict=True)) == dict(
        zip(recording.space.configs, recording.scores, strict=True)
    )


def test_a_new_heuristic_is_judged_by_the_same_recording(
    recording: Recording, records: list[Record], tmp_path: Path
) -> None:
    """Scores are multiples of the present default, although another one was recorded."""
    other = [
        msgspec.structs.replace(record, baseline_us=250.0) if record.times_us else record
        for record in records
    ]
    again = load_recording(write_recording(tmp_path / "other.jsonl", other))
    np.testing.assert_allclose(again.scores, recording.scores, rtol=1e-12)


def test_a_default_that_is_not_recorded(
    records: list[Record], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first one that was measured against itself stands in, with a warning."""
    baseline = records[7]
    rest = [
        msgspec.structs.replace(record, baseline_us=baseline.median_us)
        for record in (baseline, *records[2:7], *records[8:])
    ]
    with caplog.at_level(logging.WARNING, logger="tvm_hybrid"):
        recording = load_recording(write_recording(tmp_path / "rest.jsonl", rest))
    assert "default configuration is not recorded" in caplog.text
    assert recording.space.configs[0].to_dict() == baseline.config
    assert recording.scores[0] == 1.0


def test_several_regions_in_a_file(records: list[Record], tmp_path: Path) -> None:
    other = synthetic_records(product(rows=8))
    path = write_recording(tmp_path / "two.jsonl", [*records, *other])
    both = load_recordings(path)
    assert [recording.region for recording in both] == [product(), product(rows=8)]
    assert both[0].name == f"two: {product().key}"


def test_recordings_of_the_package(
    records: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "SHIPPED", tmp_path)
    write_recording(tmp_path / "first.jsonl.xz", records)
    assert shipped_recordings() == ["first"]
    assert load_recording("first").name == "first"
    with pytest.raises(RecordError, match=r"no file second; the recordings .* are first"):
        load_recording("second")


def test_what_is_no_recording_is_refused(
    records: list[Record], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(changed: list[Record], why: str) -> None:
        with pytest.raises(RecordError, match=why):
            load_recording(write_recording(tmp_path / "bad.jsonl", changed))

    renamed = {**records[3].config, "no_such_field": 1}
    refused(
        [*records, msgspec.structs.replace(records[3], config=renamed)],
        "bad.jsonl: recorded for another version: .*no_such_field",
    )
    unknown = msgspec.structs.replace(records[0], region=product().replace(op="nothing"))
    refused([unknown], "no template builds 'nothing'")
    refused([records[2], msgspec.structs.replace(records[3], baseline_us=None)], "in turns|default")
    failed = msgspec.structs.replace(records[0], status="timeout", times_us=[], error="too long")
    refused([failed, *records[1:]], "the default failed: too long")
    refused([], "holds no records")
    torn = tmp_path / "torn.jsonl.xz"
    torn.write_bytes(b"\xfd7zXZ\x00 and so on")
    with pytest.raises(RecordError, match=r"torn\.jsonl\.xz"):
        load_recording(torn)
    with pytest.raises(RecordError, match=r"no record file .*missing\.jsonl"):
        read_records(tmp_path / "missing.jsonl")


def test_another_version_of_the_template_is_told(
    records: list[Record], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = [msgspec.structs.replace(record, version=0) for record in records]
    with caplog.at_level(logging.WARNING, logger="tvm_hybrid"):
        load_recording(write_recording(tmp_path / "old.jsonl", old))
    assert "measured with version 0 of the template matmul" in caplog.text


def test_damaged_lines_are_skipped_by_name(
    records: list[Record], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import lzma

    path = tmp_path / "damaged.jsonl.xz"
    path.write_bytes(lzma.compress(records[0].to_line() + b"{ no\n" + records[2].to_line()))
    with caplog.at_level(logging.WARNING, logger="tvm_hybrid"):
        found = read_records(path)
    assert [item.record for item in found] == [records[0], records[2]]
    assert [item.place for item in found] == [f"{path}:1", f"{path}:3"]
    assert f"{path}:2: skipped" in caplog.text


@pytest.mark.sampled
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_search_of_the_whole_space_finds_the_optimum(name: str, recording: Recording) -> None:
    trace = simulate(name, recording, seed=1)
    assert sorted(trace.order) == list(range(len(recording.space)))
    assert trace.best[-1] == 1.0
    assert (np.diff(trace.best) >= 0).all()
    place = trials_to_reach(trace, 1.0)
    assert place is not None
    assert recording.scores[trace.order[place - 1]] == recording.best
    assert all(recording.scores[index] < recording.best for index in trace.order[: place - 1])


def test_a_search_ends_when_it_should(recording: Recording) -> None:
    assert len(simulate("random", recording, trials=11, batch=4).order) == 11
    trace = simulate("random", recording, batch=4, until=0.5)
    reached = trials_to_reach(trace, 0.5)
    assert reached is not None
    assert len(trace.order) - 4 < reached <= len(trace.order)
    assert trials_to_reach(trace, 1.1) is None
    with pytest.raises(ConfigError, match="at least 1: 0, 8"):
        simulate("random", recording, trials=0)
    with pytest.raises(ConfigError, match="no search strategy 'magic'"):
        simulate("magic", recording)


@pytest.mark.parametrize(("size", "near"), [(1, 1), (7, 1), (50, 3), (200, 10), (30, 29)])
def test_the_median_of_random_search_is_exact(size: int, near: int) -> None:
    """The median of 2001 draws lies within the true 45% and 55% quantiles.

    The median of 2001 draws is off by more than 5% of probability once in 100000 times.
    """
    generator = random.Random(1)
    draws = [min(generator.sample(range(1, size + 1), near)) for _ in range(2001)]

    def at_most(trials: int) -> float:
        return 1 - math.comb(size - near, trials) / math.comb(size, trials)

    median = random_median(size, near)
    assert at_most(median) >= 0.5 - 1e-9 and at_most(median - 1) < 0.5
    drawn = int(statistics.median(draws))
    assert at_most(drawn) > 0.45 and at_most(drawn - 1) < 0.55


def test_nothing_to_find() -> None:
    with pytest.raises(ConfigError, match="0 of 5"):
        random_median(5, 0)
