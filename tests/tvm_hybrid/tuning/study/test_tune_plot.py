"""The plot of a tuning run: what it shows of records, and that it can be drawn."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from microkernels.base.errors import ConfigError
from tests.tvm_hybrid.tuning.synthetic import product, synthetic_records
from tir_schedules.core.region import Tensor
from tvm_hybrid.records.record import Record
from tvm_hybrid.report import kernel_speed
from tvm_hybrid.report.kernel_speed import Roof, measure_roof
from tvm_hybrid.tuning.study.tune_plot import operand_type, plot_tuning, region_runs, roof_of

pytestmark = pytest.mark.turns

ROOF = Roof(threads=1, peaks={"float32": 100.0}, bandwidth=10.0)


@pytest.fixture(scope="module")
def records() -> list[Record]:
    small, large = (synthetic_records(product(rows=rows))[:6] for rows in (16, 64))
    return [record for pair in zip(small, large, strict=True) for record in pair]


def test_runs_are_regions_in_order(records: list[Record]) -> None:
    first, second = region_runs(records)
    assert (first.region, second.region) == (product(), product(rows=64))
    assert len(first.speeds) == len(second.speeds) == 6
    assert first.speeds[0] == 1.0 and first.speeds[1] == 0.0  # the second failed
    assert first.gops[1] == 0.0
    expected = 2 * 16 * 64 * 64 / records[0].median_us / 1e3
    assert first.gops[0] == pytest.approx(expected)
    # x, weight and result of 16 x 64 x 64 in float32.
    assert first.intensity == pytest.approx(2 * 16 * 64 * 64 / (4 * (1024 + 4096 + 1024)))
    assert np.isnan(first.predicted).all()
    assert first.label.startswith("matmul(float32[16x64]") and len(first.label) <= 46


def test_records_without_a_baseline_are_compared_by_their_times(records: list[Record]) -> None:
    alone = [msgspec.structs.replace(record, baseline_us=None) for record in records[::2]]
    (run,) = region_runs(alone)
    assert run.speeds[2] == pytest.approx(records[0].median_us / records[4].median_us)
    assert run.speeds[1] == 0.0
    failed = [record for record in records[::2] if not record.times_us]
    (nothing,) = region_runs(failed)
    assert (nothing.speeds == 0).all()


def test_a_final_is_no_further_trial(records: list[Record]) -> None:
    """The later measurement counts, with the prediction for the first one."""
    first = msgspec.structs.replace(records[4], predicted=1.5)
    final = msgspec.structs.replace(records[4], times_us=[50.0], confirmed=True)
    (run,) = region_runs([records[0], first, records[6], final])
    assert run.speeds[1] == pytest.approx(2.5) and len(run.speeds) == 3
    assert run.predicted[1] == 1.5 and np.isnan(run.predicted[[0, 2]]).all()


def test_threads_are_apart_and_unknown_regions_left_out(records: list[Record]) -> None:
    two = msgspec.structs.replace(records[0], threads=2)
    odd = msgspec.structs.replace(records[0], region=product().replace(op="nothing"))
    runs = region_runs([records[0], two, odd])
    assert [run.label.rpartition(", ")[2] for run in runs] == ["threads: 1", "threads: 2"]


def test_types_of_peaks() -> None:
    region = product()
    assert operand_type(region) == "float32"
    weights = {"int8": "uint8", "bfloat16": "bfloat16"}
    for dtype, peak in weights.items():
        mixed = region.replace(inputs=(region.inputs[0], Tensor((64, 64), dtype, True)))
        assert operand_type(mixed) == peak


@pytest.mark.parametrize("predicted", [None, 1.1])
def test_plots_are_drawn(predicted: float | None, records: list[Record], tmp_path: Path) -> None:
    told = [msgspec.structs.replace(record, predicted=predicted) for record in records]
    plot_tuning(told, tmp_path / "run.png", ROOF if predicted else None)
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_to_plot_is_refused(records: list[Record], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no records to plot"):
        plot_tuning([], tmp_path / "none.png")
    with pytest.raises(ConfigError, match="cannot write the plot"):
        plot_tuning(records, tmp_path / "missing" / "run.png")


def test_the_roof_is_the_lower_limit() -> None:
    assert ROOF.limit("float32", 1.0) == 10.0
    assert ROOF.limit("float32", 50.0) == 100.0
    assert ROOF.limit("uint8", 50.0) == 500.0  # not measured: limited by the bandwidth


def test_the_roof_of_this_machine(records: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    assert roof_of(records) is None  # measured on "here"
    assert roof_of([]) is None
    monkeypatch.setattr(kernel_speed, "TILES_FOR_PEAK", 1)
    monkeypatch.setattr(kernel_speed, "LEAST_COPY", 1 << 20)
    monkeypatch.setattr(kernel_speed, "LARGEST_COPY", 1 << 20)
    found = measure_roof(["float32", "float32", "no such type"], 2)
    assert list(found.peaks) == ["float32"] and found.threads == 2
    assert 0 < found.bandwidth < math.inf and 0 < found.peaks["float32"] < math.inf
