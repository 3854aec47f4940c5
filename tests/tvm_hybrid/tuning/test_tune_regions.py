"""The search: default first, everything on the disk at once, continuable, interruptible."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from microkernels.errors import CompileError
from tir_schedules.config import Config
from tir_schedules.machine import Machine
from tir_schedules.region import Region
from tir_schedules.template import Template
from tvm_hybrid.tuning.events import StopTuning, Trial
from tvm_hybrid.tuning.measure import Effort, Measurement
from tvm_hybrid.tuning.record_file import RecordFile
from tvm_hybrid.tuning.records import RecordStore
from tvm_hybrid.tuning.replay import Replay
from tvm_hybrid.tuning.strategies.grid import GridSearch
from tvm_hybrid.tuning.strategies.strategy import SearchStrategy, SearchTask
from tvm_hybrid.tuning.tune_regions import FINAL_EFFORT, tune_regions
from tvm_hybrid.tuning.tune_result import TuneResult
from tvm_hybrid.tuning.tuning_task import Plan

from .conftest import MakeRecord

DEFAULT_US = 8.0


class Pretended:
    """A measurer without a machine: times follow from the block size."""

    def __init__(self, time_us: Callable[[int, bool], float] = lambda block, final: 64 / block):
        self.time_us = time_us
        self.blocks: list[int] = []
        self.finals: list[int] = []
        self.baselines: list[Config | None] = []
        self.batches: list[int] = []
        self.interrupt_at = -1

    def measure(
        self,
        region: Region,
        template: Template,
        configs: Sequence[Config],
        baseline: Config | None,
        effort: Effort,
    ) -> Iterator[tuple[Config, Measurement]]:
        self.batches.append(len(configs))
        for config in configs:
            yield config, self.one(config, baseline, effort)

    def one(self, config: Config, baseline: Config | None, effort: Effort) -> Measurement:
        block, final = config.to_dict()["block"], effort == FINAL_EFFORT
        if len(self.blocks) + len(self.finals) == self.interrupt_at:
            raise KeyboardInterrupt
        (self.finals if final else self.blocks).append(block)
        self.baselines.append(baseline)
        time_us = self.time_us(block, final)
        if time_us < 0:
            return Measurement(status="runtime_error", error="pretended")
        count = effort.samples
        return Measurement(
            status="ok",
            times_us=[time_us] * count,
            baseline_times_us=[DEFAULT_US] * count if baseline is not None else [],
            baseline_us=DEFAULT_US if baseline is not None else None,
        )


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    return RecordStore(tmp_path / "r.jsonl", must_exist=False)


ALL = Plan("grid", min_gain=0.0)
GRID = [8, 16, 2, 64, 1, 32, 4]


def test_default_first_then_the_space_then_the_best_again(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    pretended = Pretended()
    result = tune_regions([toy.region()], machine, pretended, store, ALL)
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
    found = store.lookup(toy.region(), machine)
    assert found is not None and found[0] == toy.ToyConfig(block=64)


def confirmed(store: RecordStore) -> dict[int, list[bool | None]]:
    """Block -> what each of its records says about confirmation."""
    said: dict[int, list[bool | None]] = {}
    for record, _ in store:
        said.setdefault(int(record.config["block"]), []).append(record.confirmed)
    return said


def test_luck_does_not_win_the_finals(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    # Block 1 was lucky once; measured longer it is slow.
    pretended = Pretended(lambda block, final: 1.0 if block == 1 and not final else 10 - block / 10)
    result = tune_regions([toy.region()], machine, pretended, store, ALL)
    assert result.regions[0].best == {"block": 64, "mode": "right"}
    assert confirmed(store) == {
        8: [True],
        1: [None, False],
        2: [None],
        4: [None],
        16: [None],
        32: [None, True],
        64: [None, True],
    }


@pytest.mark.parametrize("final_us", [8.0, 7.95, 9.0, -1.0])
def test_what_is_not_confirmed_is_never_chosen(
    final_us: float, toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    """All look twice as fast in the search, and are as fast as the default, or fail, in finals."""

    def time_us(block: int, final: bool) -> float:
        return DEFAULT_US if block == 8 else final_us if final else 4.0

    pretended = Pretended(time_us)
    result = tune_regions([toy.region()], machine, pretended, store, ALL)
    # In rounds of three, until none that looks faster is left.
    assert sorted(pretended.finals) == [1, 2, 4, 16, 32, 64]
    assert result.regions[0].best == {"block": 8, "mode": "right"}
    assert result.regions[0].speedup == 1.0 and result.best_us == result.default_us == 8.0
    found = store.lookup(toy.region(), machine)
    assert found is not None and found[0] == toy.ToyConfig(block=8)
    again = Pretended(time_us)
    tune_regions([toy.region()], machine, again, store, ALL)
    assert again.blocks == again.finals == []


def test_what_looks_a_little_faster_gets_no_final(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    pretended = Pretended(lambda block, final: 8.0 - block / 1000)
    result = tune_regions([toy.region()], machine, pretended, store, ALL)
    assert pretended.finals == []
    assert result.regions[0].best == {"block": 8, "mode": "right"}
    found = store.lookup(toy.region(), machine)
    assert found is not None and found[0] == toy.ToyConfig(block=8)


def test_finals_that_are_missing_are_made(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    searched = Pretended()
    plan = dataclasses.replace(ALL, finals=False)
    tune_regions([toy.region()], machine, searched, store, plan)
    assert set(itertools.chain(*confirmed(store).values())) == {None}
    again = Pretended()
    result = tune_regions([toy.region()], machine, again, store, ALL)
    assert (again.blocks, again.finals) == ([], [64, 32, 16])
    assert confirmed(store)[8] == [None, True]
    assert result.regions[0].speedup == 8.0


def test_what_the_file_holds_is_not_measured_again(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    regions = [toy.region(), toy.region(16)]
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
    tune_regions([toy.region()], two, other_threads, store, few)
    assert other_threads.blocks[0] == 8
    anew = Pretended()
    tune_regions(regions, machine, anew, store, dataclasses.replace(few, resume=False))
    assert anew.blocks == first.blocks


@pytest.mark.parametrize("strategy", ["grid", "random", "evolutionary", "model"])
@pytest.mark.parametrize("interrupt_at", [1, 2, 5, 7, 11])
def test_an_interrupted_run_is_continued(
    strategy: str, interrupt_at: int, toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    regions, plan = [toy.region(), toy.region(16)], Plan(strategy, min_gain=0.0)
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
    regions = [toy.region(), toy.region(128)]
    pretended = Pretended()
    plan = Plan("grid", trials=6, batch=2, finals=False)
    result = tune_regions(regions, machine, pretended, store, plan, weights=[1, 50])
    rare, often = result.regions
    assert (rare.tried, often.tried) == (1, 5)
    assert (rare.weight, often.weight) == (1, 50)
    assert result.default_us == 51 * 8.0
    assert result.best_us == 8.0 + 50 * 8.0 / often.speedup


def test_a_run_ends_early_when_little_is_expected(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    """All configurations are equal: after two batches of two nothing is expected."""
    pretended = Pretended(lambda block, final: 8.0)
    plan = Plan("grid", batch=2, min_gain=0.02)
    result = tune_regions([toy.region()], machine, pretended, store, plan)
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
    plan = Plan("grid", batch=1, min_gain=0.0, time_limit=9.5)
    pretended = Pretended(time_us)
    result = tune_regions([toy.region()], machine, pretended, store, plan)
    assert result.reason == "9.5 s are over"
    # A final is taken to cost three times a trial: 6 s for the two that lead after 4 s.
    assert pretended.blocks == [8, 16, 2, 64]
    assert pretended.finals == [64, 16] and now == 8.0
    short = RecordStore(store.files[0].path.with_name("short.jsonl"), must_exist=False)
    plan = dataclasses.replace(plan, batch=8, time_limit=3.0)
    result = tune_regions([toy.region()], machine, hasty := Pretended(time_us), short, plan)
    assert hasty.blocks == [8, 16] and hasty.finals == [16]
    assert result.reason == "3 s are over"


def test_failures_are_recorded_and_not_tried_again(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    pretended = Pretended(lambda block, final: -1 if block > 8 else 64 / block)
    result = tune_regions([toy.region()], machine, pretended, store, ALL)
    assert result.regions[0].failures == 3
    assert result.regions[0].best == {"block": 8, "mode": "right"}
    assert result.regions[0].speedup == 1.0
    statuses = [located.record.status for located in store if located.record.config["block"] == 64]
    assert statuses == ["runtime_error"]
    again = Pretended()
    tune_regions([toy.region()], machine, again, store, ALL)
    assert again.blocks == []


def test_a_default_that_fails(toy: ModuleType, machine: Machine, store: RecordStore) -> None:
    pretended = Pretended(lambda block, final: -1 if block == 8 else 64 / block)
    result = tune_regions([toy.region()], machine, pretended, store, ALL)
    assert set(pretended.baselines) == {None}
    assert result.regions[0].default_us is None
    assert result.regions[0].best == {"block": 64, "mode": "right"}
    assert "failed -> 1.00 us" in str(result)
    found = store.lookup(toy.region(), machine)
    assert found is not None and found[0] == toy.ToyConfig(block=64)
    everything_fails = Pretended(lambda block, final: -1)
    result = tune_regions([toy.region(16)], machine, everything_fails, store, ALL)
    assert result.regions[0].best is None and result.regions[0].failures == 5


def test_a_region_that_cannot_be_measured_is_left_out(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    class Refuses(Pretended):
        def one(self, config: Config, baseline: Config | None, effort: Effort) -> Measurement:
            if self.batches[-1] == 1 and len(self.batches) == 1:
                raise CompileError("no arguments for this region")
            return super().one(config, baseline, effort)

    regions = [toy.region(16), toy.region()]
    result = tune_regions(regions, machine, Refuses(), store, ALL)
    (found,) = result.regions
    assert found.region == regions[1] and found.speedup == 8.0
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
        given.append([found.workload for found in task.history])
        return GridSearch(task, generator)

    plan = Plan(strategy, min_gain=0.0, finals=False)
    tune_regions([toy.region()], machine, Pretended(), store, plan)
    assert given == [["other"]]


def test_callbacks(toy: ModuleType, machine: Machine, store: RecordStore) -> None:
    seen: list[Trial] = []
    plan = Plan("grid", trials=4, min_gain=0.0)
    regions = [toy.region(), toy.region(16)]
    tune_regions(regions, machine, Pretended(), store, plan, [seen.append], [3, 1])
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
    result = tune_regions([toy.region()], machine, pretended, store, ALL, [enough])
    assert pretended.blocks == [8, 16] and pretended.finals == [16]
    assert result.reason == "twice is enough" and not result.interrupted
    assert result.regions[0].speedup == 2.0

    def at_once(trial: Trial) -> None:
        raise StopTuning

    result = tune_regions([toy.region(16)], machine, pretended, store, ALL, [at_once])
    assert result.reason == "a callback stopped it" and result.regions == []

    def broken(trial: Trial) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        tune_regions([toy.region(16)], machine, pretended, store, ALL, [broken])


def test_ctrl_c_keeps_what_was_measured(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    pretended = Pretended()
    pretended.interrupt_at = 6
    result = tune_regions([toy.region(), toy.region(16)], machine, pretended, store, ALL)
    assert result.interrupted and len(result.regions) == 2
    assert len(list(store)) == 6
    # Nothing is confirmed yet, so the default stays.
    assert all(region.best == {"block": 8, "mode": "right"} for region in result.regions)


def test_replay_finds_what_the_search_found(
    tmp_path: Path, toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    measured = tune_regions([toy.region()], machine, Pretended(), store, ALL)
    path = store.files[0].path
    before = path.read_bytes()
    scratch = RecordStore(tmp_path / "scratch.jsonl", must_exist=False)
    known = Replay(path, machine)
    plan = Plan("grid", min_gain=0.0, finals=False, space=known.space)
    replayed = tune_regions([toy.region()], machine, known, scratch, plan)
    assert replayed.regions[0].best == measured.regions[0].best
    assert replayed.regions[0].speedup == measured.regions[0].speedup
    assert path.read_bytes() == before


_TUNER = """
import sys
from tests.tvm_hybrid.tuning import toy
from tests.tvm_hybrid.tuning.test_tune_regions import tune_toys
print(tune_toys(sys.argv[1]), flush=True)
"""


def tune_toys(path: str) -> TuneResult:
    """Tunes many toys with a real worker."""
    from tvm.target import Target, codegen

    from tvm_hybrid.tuning.worker_process import WorkerProcess

    from . import toy

    target = Target({"kind": "llvm", "mcpu": codegen.llvm_get_system_cpu()})
    machine = Machine.from_target(target)
    store = RecordStore(path, must_exist=False)
    regions = [toy.region(64 * size) for size in range(1, 40)]
    with WorkerProcess(machine, str(target)) as worker:
        return tune_regions(
            regions, machine, worker, store, Plan("grid", min_gain=0.0, finals=False)
        )


def started_tuner(path: Path, records: int) -> subprocess.Popen[bytes]:
    """A tuning process that has written at least so many records."""
    process = subprocess.Popen(
        [sys.executable, "-c", _TUNER, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    end = time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < records:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    return process


def children(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_tuner_that_is_killed_loses_nothing(
    how: signal.Signals, tmp_path: Path, toy: ModuleType
) -> None:
    path = tmp_path / "r.jsonl"
    process = started_tuner(path, 4)
    finished = path.read_bytes()
    workers = children(process.pid)
    assert workers
    os.kill(process.pid, how)
    output, _ = process.communicate(timeout=60)
    file = RecordFile(path)
    assert len(file.refresh()) >= finished.count(b"\n") >= 4
    assert path.read_bytes().startswith(finished)
    assert all(located.record.status == "ok" for located in file)
    if how == signal.SIGINT:
        assert process.returncode == 0 and b"interrupted" in output
    else:
        assert process.returncode == -how
    # The worker dies with the tuner, whatever it was doing.
    end = time.monotonic() + 10
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < end
        time.sleep(0.05)
