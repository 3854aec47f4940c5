"""The search: default first, everything on the disk at once, continuable, interruptible."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tir_schedules.config import Config
from tir_schedules.machine import Machine
from tir_schedules.region import Region
from tir_schedules.template import Template
from tvm_hybrid.tuning.measure import Effort, Measurement
from tvm_hybrid.tuning.record_file import RecordFile
from tvm_hybrid.tuning.records import RecordStore
from tvm_hybrid.tuning.replay import Replay
from tvm_hybrid.tuning.search import grid
from tvm_hybrid.tuning.tune_regions import FINAL_EFFORT, Plan, Trial, TuneResult, tune_regions


class Pretended:
    """A measurer without a machine: times follow from the block size."""

    def __init__(self, time_us: Callable[[int, bool], float] = lambda block, final: 64 / block):
        self.time_us = time_us
        self.blocks: list[int] = []
        self.baselines: list[Config | None] = []
        self.interrupt_at = -1

    def measure(
        self,
        region: Region,
        template: Template,
        config: Config,
        baseline: Config | None,
        effort: Effort,
    ) -> Measurement:
        block = config.to_dict()["block"]
        if len(self.blocks) == self.interrupt_at:
            raise KeyboardInterrupt
        self.blocks.append(block)
        self.baselines.append(baseline)
        time_us = self.time_us(block, effort == FINAL_EFFORT)
        if time_us < 0:
            return Measurement(status="runtime_error", error="pretended")
        return Measurement(
            status="ok", times_us=[time_us], baseline_us=8.0 if baseline is not None else None
        )


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    return RecordStore(tmp_path / "r.jsonl", must_exist=False)


ALL = Plan(grid, trials=64)


def test_default_first_then_the_space_then_the_best_again(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    pretended = Pretended()
    result = tune_regions([toy.region()], machine, pretended, store, ALL)
    assert pretended.blocks == [8, 1, 2, 4, 16, 32, 64, *(64, 32, 16), 8]
    default = toy.ToyConfig(block=8)
    assert pretended.baselines == [None, *[default] * 10]
    (region,) = result.regions
    assert region.best == {"block": 64, "mode": "right"}
    assert (region.default_us, region.best_us, region.speedup) == (8.0, 1.0, 8.0)
    assert (region.trials, region.known, region.failures) == (11, 0, 0)
    assert not result.interrupted and "8.000x" in str(result)
    found = store.lookup(toy.region(), machine)
    assert found is not None and found[0] == toy.ToyConfig(block=64)


def test_luck_does_not_win_the_finals(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    # Block 1 was lucky once; measured longer it is slow.
    pretended = Pretended(lambda block, final: 1.0 if block == 1 and not final else 10 - block / 10)
    result = tune_regions([toy.region()], machine, pretended, store, ALL)
    assert result.regions[0].best == {"block": 64, "mode": "right"}


def test_what_the_file_holds_is_not_measured_again(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    regions = [toy.region(), toy.region(16)]
    first = Pretended()
    tune_regions(regions, machine, first, store, Plan(grid, trials=3))
    again = Pretended()
    result = tune_regions(regions, machine, again, store, Plan(grid, trials=3))
    assert again.blocks == []
    assert [region.known for region in result.regions] == [3, 3]
    assert result.regions[0].best is not None and result.regions[0].trials == 0
    more = Pretended()
    tune_regions([toy.region()], machine, more, store, ALL)
    assert more.blocks[:4] == [2, 4, 32, 64]
    other_threads = Pretended()
    two = dataclasses.replace(machine, threads=2)
    tune_regions([toy.region()], two, other_threads, store, Plan(grid, trials=3))
    assert other_threads.blocks[0] == 8
    anew = Pretended()
    tune_regions([toy.region()], machine, anew, store, Plan(grid, trials=3, resume=False))
    assert anew.blocks[:3] == first.blocks[:3]


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
    everything_fails = Pretended(lambda block, final: -1)
    result = tune_regions([toy.region(16)], machine, everything_fails, store, ALL)
    assert result.regions[0].best is None and result.regions[0].failures == 5


def test_progress(toy: ModuleType, machine: Machine, store: RecordStore) -> None:
    seen: list[Trial] = []
    plan = Plan(grid, trials=3, finals=False)
    tune_regions([toy.region(), toy.region(16)], machine, Pretended(), store, plan, seen.append)
    assert [(trial.region, trial.trial) for trial in seen] == [
        (region, trial) for region in (0, 1) for trial in range(4)
    ]
    assert all((trial.regions, trial.trials) == (2, 3) for trial in seen)
    assert [trial.record is None for trial in seen[:4]] == [True, False, False, False]
    assert seen[0].best is None and seen[1].best == 1.0


def test_ctrl_c_keeps_what_was_measured(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    pretended = Pretended()
    pretended.interrupt_at = 5
    result = tune_regions([toy.region(), toy.region(16)], machine, pretended, store, ALL)
    assert result.interrupted and len(result.regions) == 1
    assert result.regions[0].best == {"block": 16, "mode": "right"}
    assert len(list(store)) == 5
    rest = Pretended()
    tune_regions([toy.region()], machine, rest, store, Plan(grid, trials=64, finals=False))
    assert rest.blocks == [32, 64]


def test_replay_finds_what_the_search_found(
    tmp_path: Path, toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    measured = tune_regions([toy.region()], machine, Pretended(), store, ALL)
    before = store.files[0].path.read_bytes()
    scratch = RecordStore(tmp_path / "scratch.jsonl", must_exist=False)
    known = Replay(store, machine)
    plan = Plan(grid, trials=64, finals=False, space=known.space)
    replayed = tune_regions([toy.region()], machine, known, scratch, plan)
    assert replayed.regions[0].best == measured.regions[0].best
    assert replayed.regions[0].speedup == measured.regions[0].speedup
    assert store.files[0].path.read_bytes() == before


_TUNER = """
import sys
from tests.tvm_hybrid.tuning import toy
from tests.tvm_hybrid.tuning.test_tune_regions import tune_toys
print(tune_toys(sys.argv[1]), flush=True)
"""


def tune_toys(path: str) -> TuneResult:
    """Tunes endlessly many toys with a real worker."""
    from tvm.target import Target, codegen

    from tvm_hybrid.tuning.worker_process import WorkerProcess

    from . import toy

    target = Target({"kind": "llvm", "mcpu": codegen.llvm_get_system_cpu()})
    machine = Machine.from_target(target)
    store = RecordStore(path, must_exist=False)
    regions = [toy.region(64 * size) for size in range(1, 1000)]
    with WorkerProcess(machine, str(target)) as worker:
        return tune_regions(regions, machine, worker, store, Plan(grid, finals=False))


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
