"""The joint stage inside a tuning run: who gets trials, and who may end it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from relay_passes.lower_module import count_regions
from relay_passes.pipeline_options import PipelineOptions
from tests.tvm_hybrid.tuning.test_joint_layout import convolved
from tir_schedules.core.region import Region
from tvm_hybrid import tuning
from tvm_hybrid.errors import ConfigError
from tvm_hybrid.records.record_store import RecordStore
from tvm_hybrid.targets.resolve import resolve_target
from tvm_hybrid.tuning import tune_model as module
from tvm_hybrid.tuning.tune_result import RegionResult, StopTuning, Trial, TuneResult
from tvm_hybrid.tuning.tuning_task import Plan


class Tunes:
    """Stands for `tune_regions`: reports events, and measures as often as allowed."""

    def __init__(self, interrupted: bool = False) -> None:
        self.plans: list[Plan] = []
        self.interrupted = interrupted

    def __call__(self, counted: Sequence[tuple[Region, int]], *arguments: Any) -> TuneResult:
        _, _, _, plan, callbacks = arguments
        assert len(counted) > 0
        self.plans.append(plan)
        rounds = plan.trials_per_region
        try:
            for stage in ("begin", "search", "end"):
                for callback in callbacks:
                    callback(Trial(stage, (), 0, None, 0, None, None))
        except StopTuning:
            rounds = 1
        found = [
            RegionResult(each, 1, 9, 1.0, 1.0, None, 1.0, rounds, rounds, 0, 0)
            for each, _ in counted
        ]
        return TuneResult(found, self.interrupted)


class Clock:
    """Stands for `KernelClock`: all kernels take equal times."""

    def __init__(self, *arguments: object) -> None:
        self.open = False

    def __enter__(self) -> Clock:
        self.open = True
        return self

    def __exit__(self, *exception: object) -> None:
        self.open = False

    def microseconds(self, kernel: object) -> float:
        assert self.open
        return 5.0


class NoMeasurer:
    """Must not be called, because `tune_regions` is replaced."""

    def measure(self, *arguments: object) -> Any:
        raise AssertionError


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "KernelClock", Clock)

    def joint(tunes: Tunes, plan: Plan, **settings: Any) -> Any:
        monkeypatch.setattr(module, "tune_regions", tunes)
        store = RecordStore(tmp_path / "r.jsonl", must_exist=False)
        options = PipelineOptions(target=resolve_target(None))
        return module.ModelTuning(
            convolved(), options, store, NoMeasurer(), plan, **settings
        ).joint_layouts()

    return joint


def test_it_takes_its_share(run: Any) -> None:
    seen: list[Trial] = []
    tunes = Tunes()
    result = run(tunes, Plan(trials=100, time_limit=1000.0), callbacks=[seen.append])
    assert sum(result.measured.values()) <= 40
    assert {trial.stage for trial in seen} == {"search"}
    for plan in tunes.plans:
        assert (plan.trials, plan.finals, plan.min_gain) == (None, False, 0.0)
        assert plan.time_limit is not None and plan.time_limit <= 200.0
    regions = count_regions(convolved(), PipelineOptions(target=resolve_target(None)))
    assert {region.key for region, _ in regions} <= set(result.measured)


def test_callbacks_and_control_c_end_it(run: Any) -> None:
    def stop(trial: Trial) -> None:
        raise StopTuning("enough")

    tunes = Tunes()
    assert run(tunes, Plan(), callbacks=[stop]) is None
    assert len(tunes.plans) == 1
    with pytest.raises(KeyboardInterrupt):
        run(Tunes(interrupted=True), Plan())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layouts": "all"}, "there are fixed, joint"),
        ({"layouts": "joint", "replay": "r.jsonl"}, "timed on this machine"),
        ({"layouts": "joint", "tracker": "here:9190", "key": "k"}, "timed on this machine"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tuning.tune("model.onnx", **settings)
