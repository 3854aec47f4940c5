"""Callbacks: what they receive, and how they end a run."""

from __future__ import annotations

from types import ModuleType

import pytest

from microkernels.machines.machine import Machine
from tvm_hybrid.records.record_store import RecordStore
from tvm_hybrid.tuning.tune_regions import tune_regions
from tvm_hybrid.tuning.tune_result import StopTuning, Trial
from tvm_hybrid.tuning.tuning_task import Plan

from .pretended import ALL, Pretended


def test_callbacks(toy: ModuleType, machine: Machine, store: RecordStore) -> None:
    seen: list[Trial] = []
    plan = Plan("grid", trials=4, min_gain=0.0)
    regions = [(toy.region(), 3), (toy.region(16), 1)]
    tune_regions(regions, machine, Pretended(), store, plan, [seen.append])
    begin, *steps, end = seen
    assert (begin.stage, begin.record, begin.trials_done, begin.trials_left) == (
        "begin",
        None,
        0,
        4,
    )
    assert [(task.weight, task.size, task.known) for task in begin.tasks] == [(3, 7, 0), (1, 5, 0)]
    assert begin.best is None and begin.seconds_left is None
    search = [trial for trial in steps if trial.stage == "search"]
    assert [(trial.trials_done, trial.trials_left) for trial in search] == [
        (1, 3),
        (2, 2),
        (3, 1),
        (4, 0),
    ]
    assert [trial.number for trial in search] == [0, 1, 0, 0]
    assert search[0].best == 1.0 and search[0].task.default_us == 8.0
    assert [trial.record.config["block"] for trial in search if trial.record] == [8, 8, 16, 2]
    assert all(trial.seconds_left is not None for trial in search)
    assert (end.stage, end.record, end.trials_left) == ("end", None, 0)


def test_a_callback_stops_the_run_in_order(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    def enough(trial: Trial) -> None:
        if trial.stage == "search" and (trial.best or 0) >= 2:
            raise StopTuning("twice is enough")

    pretended = Pretended()
    result = tune_regions([(toy.region(), 1)], machine, pretended, store, ALL, [enough])
    assert pretended.blocks == [8, 16] and pretended.finals == [16]
    assert result.reason == "twice is enough" and not result.interrupted
    assert result.regions[0].speedup == 2.0

    def at_once(trial: Trial) -> None:
        raise StopTuning

    result = tune_regions([(toy.region(16), 1)], machine, pretended, store, ALL, [at_once])
    assert result.reason == "a callback stopped it" and result.regions == []

    def broken(trial: Trial) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        tune_regions([(toy.region(16), 1)], machine, pretended, store, ALL, [broken])
