"""kill -9 of the tuner at random moments: no finished trial is lost, none is made twice."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config
from tvm_hybrid.records.record import Record
from tvm_hybrid.records.record_file import RecordFile
from tvm_hybrid.records.record_lookup import RecordLookup
from tvm_hybrid.records.record_store import RecordStore
from tvm_hybrid.tuning.measuring.measure import Candidates, Measurement
from tvm_hybrid.tuning.tune_regions import tune_regions
from tvm_hybrid.tuning.tune_result import Trial
from tvm_hybrid.tuning.tuning_task import Plan

from .forked import Child

KILLS = 100
REGIONS = 20
PLAN = Plan("grid", min_gain=0.0)


class Formula:
    """A measurer with computed times: large blocks are fast, 32 is the best."""

    def measure(self, wanted: Candidates) -> Iterator[tuple[Config, Measurement]]:
        for config in wanted.configs:
            count = wanted.effort.samples
            yield (
                config,
                Measurement(
                    status="ok",
                    times_us=[_time_us(config)] * count,
                    baseline_times_us=[_time_us(wanted.baseline)] * count
                    if wanted.baseline
                    else [],
                    baseline_us=_time_us(wanted.baseline) if wanted.baseline else None,
                ),
            )


def _time_us(config: Config) -> float:
    block = config.to_dict()["block"]
    return 2.5 if block == 64 else 64 / block


def _number(record: Record) -> int:
    """Region, configuration and confirmation, which identify a trial."""
    size, block = record.region.output.size, int(record.config["block"])
    return (size * 100 + block) * 2 + (record.confirmed is not None)


def test_tuners_that_are_killed(memory_folder: Path, toy: ModuleType, machine: Machine) -> None:
    regions = [toy.region(64 * number) for number in range(1, REGIONS + 1)]

    def tune(path: Path, acknowledge: Callable[[int], None]) -> None:
        def watch(trial: Trial) -> None:
            if trial.record is not None:
                acknowledge(_number(trial.record))

        store = RecordStore(path, must_exist=False)
        result = tune_regions(
            [(each, 1) for each in regions], machine, Formula(), store, PLAN, [watch]
        )
        assert not result.interrupted

    def trials(path: Path) -> Counter[int]:
        file = RecordFile(path)
        counts = Counter(_number(item.record) for item in file)
        # Linux may cut a write short when its process is killed. Such a line was never
        # acknowledged.
        assert all(": skipped, torn: " in message for message in file.damaged)
        return counts

    whole = memory_folder / "whole.jsonl"
    tune(whole, lambda number: None)
    assert set(trials(whole).values()) == {1} and len(trials(whole)) == 10 * REGIONS
    generator = random.Random(11)
    kills = 0
    while kills < KILLS:
        path, acknowledged = memory_folder / f"{kills}.jsonl", set[int]()
        running = True
        while running and kills < KILLS:
            child = Child(functools.partial(tune, path))
            running = child.kill(generator.uniform(0.0, 0.02)) != 0
            kills += running
            acknowledged |= set(child.acknowledged())
            assert set(trials(path)) >= acknowledged
        # A resumed run makes the missing trials and repeats none. Finals may be fewer: a candidate
        # that is slower than an already confirmed one needs none.
        tune(path, lambda number: None)
        made = trials(path)
        assert set(made.values()) == {1} and set(made) <= set(trials(whole))
        assert all(number % 2 for number in set(trials(whole)) - set(made))
        lookup = RecordLookup(RecordStore(path))
        for region in regions:
            config, _ = lookup(region, machine) or (None, "")
            assert config == toy.ToyConfig(block=32)
