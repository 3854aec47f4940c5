"""The search: default first, every result on disk at once, resumable, interruptible."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from types import ModuleType

import pytest

from microkernels.base.errors import CompileError
from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config
from tvm_hybrid.records.record_lookup import RecordLookup
from tvm_hybrid.records.record_store import RecordStore
from tvm_hybrid.tuning.measuring.measure import Effort, Measurement, Replay
from tvm_hybrid.tuning.search.strategies import GridSearch, SearchStrategy, SearchTask
from tvm_hybrid.tuning.tune_regions import tune_regions
from tvm_hybrid.tuning.tuning_task import Plan

from .conftest import MakeRecord
from .pretended import ALL, GRID, Pretended


def test_default_first_then_the_space_then_the_best_again(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    pretended = Pretended()
    result = tune_regions([(toy.region(), 1)], machine, pretended, store, ALL)
    assert pretended.blocks == GRID
    assert pretended.finals == [64, 32, 16] and pretended.batches == [1, 6, 3]
    default = toy.ToyConfig(block=8)
    assert pretended.baselines == [None, *[default] * 9]
    (region,) = result.regions
    assert region.best == {"block": 64, "mode": "right"}
    assert (region.default_us, region.best_us, region.speedup) == (8.0, 1.0, 8.0)
    assert (region.trials, region.tried, region.known, region.failures) == (10, 7, 0, 0)
    assert result.reason == region.stopped == "every configuration was tried"
    assert not result.interrupted and "8.000x" in str(result)
    found = RecordLookup(store)(toy.region(), machine)
    assert found is not None and found[0] == toy.ToyConfig(block=64)


def test_what_the_file_holds_is_not_measured_again(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    regions = [(toy.region(), 1), (toy.region(16), 1)]
    few = dataclasses.replace(ALL, trials=6)
    first = Pretended()
    tune_regions(regions, machine, first, store, few)
    assert len(first.blocks) == 6
    again = Pretended()
    result = tune_regions(regions, machine, again, store, few)
    assert again.blocks == again.finals == []
    assert sum(region.known for region in result.regions) == 6
    assert result.regions[0].best is not None and result.regions[0].trials == 0
    assert result.reason == "all 6 trials are made"
    other_threads = Pretended()
    two = dataclasses.replace(machine, threads=2)
    tune_regions([(toy.region(), 1)], two, other_threads, store, few)
    assert other_threads.blocks[0] == 8
    anew = Pretended()
    tune_regions(regions, machine, anew, store, dataclasses.replace(few, resume=False))
    assert anew.blocks == first.blocks


@pytest.mark.sampled
@pytest.mark.parametrize("strategy", ["grid", "random", "evolutionary", "model"])
@pytest.mark.parametrize("interrupt_at", [1, 2, 5, 7, 11])
def test_an_interrupted_run_is_continued(
    strategy: str, interrupt_at: int, toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    regions, plan = [(toy.region(), 1), (toy.region(16), 1)], Plan(strategy, min_gain=0.0)
    whole = Pretended()
    elsewhere = RecordStore(store.files[0].path.with_name("whole.jsonl"), must_exist=False)
    expected = tune_regions(regions, machine, whole, elsewhere, plan)
    first = Pretended()
    first.interrupt_at = interrupt_at
    result = tune_regions(regions, machine, first, store, plan)
    assert result.interrupted and result.reason == "interrupted"
    assert len(list(store)) == interrupt_at
    rest = Pretended()
    final = tune_regions(regions, machine, rest, store, plan)
    assert sorted(first.blocks + rest.blocks) == sorted(whole.blocks)
    assert sorted(first.finals + rest.finals) == sorted(whole.finals)
    assert [region.best for region in final.regions] == [r.best for r in expected.regions]
    assert [region.speedup for region in final.regions] == [r.speedup for r in expected.regions]


def test_trials_go_where_the_model_gains(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    regions = [(toy.region(), 1), (toy.region(128), 50)]
    pretended = Pretended()
    plan = Plan("grid", trials=6, batch=2, finals=False)
    result = tune_regions(regions, machine, pretended, store, plan)
    rare, often = result.regions
    assert (rare.tried, often.tried) == (1, 5)
    assert (rare.weight, often.weight) == (1, 50)
    assert result.default_us == 51 * 8.0
    assert result.best_us == 8.0 + 50 * 8.0 / often.speedup


def test_a_run_ends_early_when_little_is_expected(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    """All configurations are equally fast: after two batches of two no gain is expected."""
    pretended = Pretended(lambda block, final: 8.0)
    plan = Plan("grid", batch=2, min_gain=0.02)
    result = tune_regions([(toy.region(), 1)], machine, pretended, store, plan)
    assert len(pretended.blocks) == 5 < 7
    assert result.reason == "the model is expected to gain less than 2.0%"
    assert result.regions[0].stopped == result.reason


def test_the_time_limit_leaves_room_for_finals(
    toy: ModuleType, machine: Machine, store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def time_us(block: int, final: bool) -> float:
        nonlocal now
        now += 2.0 if final else 1.0
        return 64 / block

    monkeypatch.setattr("tvm_hybrid.tuning.tune_regions.time.monotonic", lambda: now)
    monkeypatch.setattr("tvm_hybrid.tuning.tune_regions._FINAL_COST", 3.0)
    plan = Plan("grid", batch=1, min_gain=0.0, time_limit=9.5)
    pretended = Pretended(time_us)
    result = tune_regions([(toy.region(), 1)], machine, pretended, store, plan)
    assert result.reason == "9.5 s are over"
    # A final is assumed to cost three trials: 6 s for the two leaders after 4 s.
    assert pretended.blocks == [8, 16, 2, 64]
    assert pretended.finals == [64, 16] and now == 8.0
    short = RecordStore(store.files[0].path.with_name("short.jsonl"), must_exist=False)
    plan = dataclasses.replace(plan, batch=8, time_limit=3.0)
    result = tune_regions([(toy.region(), 1)], machine, hasty := Pretended(time_us), short, plan)
    assert hasty.blocks == [8, 16] and hasty.finals == [16]
    assert result.reason == "3 s are over"


def test_failures_are_recorded_and_not_tried_again(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    pretended = Pretended(lambda block, final: -1 if block > 8 else 64 / block)
    result = tune_regions([(toy.region(), 1)], machine, pretended, store, ALL)
    assert result.regions[0].failures == 3
    assert result.regions[0].best == {"block": 8, "mode": "right"}
    assert result.regions[0].speedup == 1.0
    statuses = [located.record.status for located in store if located.record.config["block"] == 64]
    assert statuses == ["runtime_error"]
    again = Pretended()
    tune_regions([(toy.region(), 1)], machine, again, store, ALL)
    assert again.blocks == []


def test_a_default_that_fails(toy: ModuleType, machine: Machine, store: RecordStore) -> None:
    pretended = Pretended(lambda block, final: -1 if block == 8 else 64 / block)
    result = tune_regions([(toy.region(), 1)], machine, pretended, store, ALL)
    assert set(pretended.baselines) == {None}
    assert result.regions[0].default_us is None
    assert result.regions[0].best == {"block": 64, "mode": "right"}
    assert "failed -> 1.00 us" in str(result)
    found = RecordLookup(store)(toy.region(), machine)
    assert found is not None and found[0] == toy.ToyConfig(block=64)
    everything_fails = Pretended(lambda block, final: -1)
    result = tune_regions([(toy.region(16), 1)], machine, everything_fails, store, ALL)
    assert result.regions[0].best is None and result.regions[0].failures == 5


def test_a_region_that_cannot_be_measured_is_left_out(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    class Refuses(Pretended):
        def one(self, config: Config, baseline: Config | None, effort: Effort) -> Measurement:
            if self.batches[-1] == 1 and len(self.batches) == 1:
                raise CompileError("no arguments for this region")
            return super().one(config, baseline, effort)

    regions = [(toy.region(16), 1), (toy.region(), 1)]
    result = tune_regions(regions, machine, Refuses(), store, ALL)
    (found,) = result.regions
    assert found.region == regions[1][0] and found.speedup == 8.0
    assert "cannot be measured: no arguments for this region" in result.reason
    with pytest.raises(CompileError, match="no arguments"):
        tune_regions(regions[:1], machine, Refuses(), store, ALL)


def test_records_of_other_regions_are_history(
    toy: ModuleType, machine: Machine, store: RecordStore, record: MakeRecord
) -> None:
    for changes in ({"threads": 2}, {"machine": "elsewhere"}, {"isa": "avx512"}):
        store.append(record(16, 1.0, workload="other", **changes))
    other = record(32, 1.0, workload="other")
    store.append(other)
    store.append(record(8, 8.0, baseline_us=8.0))
    given: list[list[str]] = []

    def strategy(task: SearchTask, generator: random.Random) -> SearchStrategy:
        given.append([found.workload for found in task.history()])
        return GridSearch(task, generator)

    plan = Plan(strategy, min_gain=0.0, finals=False)
    tune_regions([(toy.region(), 1)], machine, Pretended(), store, plan)
    assert given == [["other"]]


def test_ctrl_c_keeps_what_was_measured(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    pretended = Pretended()
    pretended.interrupt_at = 6
    result = tune_regions([(toy.region(), 1), (toy.region(16), 1)], machine, pretended, store, ALL)
    assert result.interrupted and len(result.regions) == 2
    assert len(list(store)) == 6
    # Nothing is confirmed yet, so the default stays.
    assert all(region.best == {"block": 8, "mode": "right"} for region in result.regions)


def test_replay_finds_what_the_search_found(
    tmp_path: Path, toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    measured = tune_regions([(toy.region(), 1)], machine, Pretended(), store, ALL)
    path = store.files[0].path
    before = path.read_bytes()
    scratch = RecordStore(tmp_path / "scratch.jsonl", must_exist=False)
    known = Replay(path, machine)
    plan = Plan("grid", min_gain=0.0, finals=False, space=known.space)
    replayed = tune_regions([(toy.region(), 1)], machine, known, scratch, plan)
    assert replayed.regions[0].best == measured.regions[0].best
    assert replayed.regions[0].speedup == measured.regions[0].speedup
    assert path.read_bytes() == before


def test_a_replay_after_the_default_changed(
    tmp_path: Path, toy: ModuleType, machine: Machine, store: RecordStore, record: MakeRecord
) -> None:
    """All were measured in turns with block 16, the former default, which took 4 us."""
    for block in (16, 8, 32):
        store.append(record(block, 64 / block, baseline_us=4.0))
    known = Replay(store.files[0].path, machine)
    plan = dataclasses.replace(ALL, finals=False, space=known.space)
    scratch = RecordStore(tmp_path / "scratch.jsonl", must_exist=False)
    (found,) = tune_regions([(toy.region(), 1)], machine, known, scratch, plan).regions
    assert (found.default_us, found.best_us, found.speedup) == (8.0, 2.0, 4.0)
