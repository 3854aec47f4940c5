"""A tuner with a real worker that is killed or interrupted loses no finished trial."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from microkernels.machines.machine import Machine
from tests.tvm_hybrid.tuning.processes import children
from tvm_hybrid.records.record_file import RecordFile
from tvm_hybrid.records.record_store import RecordStore
from tvm_hybrid.tuning.tune_regions import tune_regions
from tvm_hybrid.tuning.tune_result import TuneResult
from tvm_hybrid.tuning.tuning_task import Plan

_TUNER = """
import sys
from tests.tvm_hybrid.tuning import toy
from tests.tvm_hybrid.tuning.test_tuner_ended import tune_toys
print(tune_toys(sys.argv[1]), flush=True)
"""


def tune_toys(path: str) -> TuneResult:
    """Tunes many toys with a real worker."""
    from tvm.target import Target, codegen

    from tvm_hybrid.tuning.measuring.local_measurer import LocalMeasurer

    from . import toy

    target = Target({"kind": "llvm", "mcpu": codegen.llvm_get_system_cpu()})
    machine = Machine.from_target(target)
    store = RecordStore(path, must_exist=False)
    regions = [(toy.region(64 * size), 1) for size in range(1, 40)]
    with LocalMeasurer(machine, str(target)) as measurer:
        return tune_regions(
            regions, machine, measurer, store, Plan("grid", min_gain=0.0, finals=False)
        )


def started_tuner(path: Path, records: int) -> subprocess.Popen[bytes]:
    """A tuning process that has written at least `records` records."""
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


@pytest.mark.sampled
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
