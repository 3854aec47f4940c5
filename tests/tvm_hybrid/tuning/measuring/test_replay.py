"""Replay: a measurer that reads results from a file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from microkernels.base.errors import RecordError
from tir_schedules.core.template import template_for
from tvm_hybrid.records.record import Record
from tvm_hybrid.tuning.measuring.measure import Candidates, Effort, Replay

from ..synthetic import MACHINE, product, synthetic_records, write_recording

MATMUL = template_for("matmul")


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return synthetic_records(product())


@pytest.mark.parametrize("name", ["plain.jsonl", "compressed.jsonl.xz"])
def test_answers_are_what_was_measured(name: str, records: list[Record], tmp_path: Path) -> None:
    replay = Replay(write_recording(tmp_path / name, records), MACHINE)
    configs = list(replay.space(product(), MATMUL))
    assert [config.to_dict() for config in configs] == [record.config for record in records]
    measured = list(
        replay.measure(Candidates(product(), MATMUL, configs[:5], configs[0], Effort()))
    )
    assert [config for config, _ in measured] == configs[:5]
    for (_, measurement), record in zip(measured, records, strict=False):
        assert measurement.status == record.status
        assert measurement.times_us == record.times_us
        assert measurement.baseline_us == record.baseline_us
        assert measurement.error == record.error
    assert measured[1][1].status == "wrong_result"


def test_only_what_fits_is_known(records: list[Record], tmp_path: Path) -> None:
    """Records of other machines, threads, versions or regions are ignored."""
    changes: list[dict[str, object]] = [
        {"machine": "elsewhere"},
        {"threads": 2},
        {"version": MATMUL.version + 1},
        {"isa": "avx512"},
        {"workload": "other"},
    ]
    others = [msgspec.structs.replace(records[2], times_us=[9.0], **change) for change in changes]
    replay = Replay(write_recording(tmp_path / "some.jsonl", [*records[:3], *others]), MACHINE)
    configs = list(replay.space(product(), MATMUL))
    assert len(configs) == 3
    answers = dict(replay.measure(Candidates(product(), MATMUL, configs, None, Effort())))
    assert answers[configs[2]].times_us == records[2].times_us
    assert replay.knows(product(), MATMUL)
    assert not replay.knows(product(rows=8), MATMUL)
    two = dataclasses.replace(MACHINE, threads=2)
    other = Replay(replay.path, two)
    assert list(other.space(product(), MATMUL)) == [configs[2]]


def test_the_newest_measurement_counts(records: list[Record], tmp_path: Path) -> None:
    newer = msgspec.structs.replace(records[2], times_us=[1.0])
    replay = Replay(write_recording(tmp_path / "twice.jsonl", [*records[:4], newer]), MACHINE)
    configs = list(replay.space(product(), MATMUL))
    assert len(configs) == 4
    answers = dict(replay.measure(Candidates(product(), MATMUL, configs, None, Effort())))
    assert min(answers.values(), key=lambda item: min(item.times_us, default=99)).times_us == [1.0]


def test_what_was_never_measured_is_refused(records: list[Record], tmp_path: Path) -> None:
    path = write_recording(tmp_path / "few.jsonl", records[:3])
    config = MATMUL.config_type.from_dict(records[9].config)
    with pytest.raises(RecordError, match=r"few\.jsonl: nothing is recorded of"):
        list(Replay(path, MACHINE).measure(Candidates(product(), MATMUL, [config], None, Effort())))
    with pytest.raises(RecordError, match="there is no record file"):
        Replay(tmp_path / "missing.jsonl", MACHINE)
