"""A quota of CPU time limits all compilation: threads, builders, processes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from microkernels.base import cpu_quota
from microkernels.base.cpu_quota import Quota, busy_cpus, read_quota
from relay_passes.ir.stages import threads_for, workers

ROOT = Path(__file__).parents[3]
# Files that list or report CPUs; they start no threads or processes.
OTHERS = {"tvm_hybrid/cli/machine.py", "tvm_hybrid/tuning/measuring/local_measurer.py"}
# Files with the largest number of threads that a run may use, which is not its default.
REFUSALS = {"tvm_hybrid/runtime/threads.py", "tvm_hybrid/session/onnxruntime_api/model_surface.py"}


@pytest.fixture
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A process that may use eight CPUs; tests choose its control groups."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    return monkeypatch


def group(root: Path, version: int, quota: str) -> Quota | None:
    """The quota read from a control group, in microseconds of each 100,000."""
    (root / "proc/self").mkdir(parents=True)
    folder = root / ("sys/fs/cgroup/a" if version == 2 else "sys/fs/cgroup/cpu/a")
    folder.mkdir(parents=True)
    if version == 2:
        (root / "proc/self/cgroup").write_text("0::/a\n")
        (folder / "cpu.max").write_text(f"{quota} 100000\n")
    else:
        (root / "proc/self/cgroup").write_text("4:cpu,cpuacct:/a\n")
        cpu = root / "sys/fs/cgroup/cpu,cpuacct"
        cpu.symlink_to(root / "sys/fs/cgroup/cpu")
        (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (folder / "cpu.cfs_period_us").write_text("100000\n")
    return read_quota(root)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("quota", "count"), [("50000", 1), ("250000", 3), ("1600000", 8), ("none", 8)]
)
def test_threads_that_compile_are_no_more_than_a_quota(
    version: int, quota: str, count: int, tmp_path: Path, eight_cpus: pytest.MonkeyPatch
) -> None:
    text = {1: "-1", 2: "max"}[version] if quota == "none" else quota
    found = group(tmp_path, version, text)
    assert (found is None) == (quota == "none")
    eight_cpus.setattr(cpu_quota, "host_quota", lambda: found)
    assert busy_cpus() == threads_for(100) == count
    assert threads_for(1) == 1
    with workers(100) as pool:
        assert pool._max_workers == count


def test_affinity_counts_beside_a_quota(eight_cpus: pytest.MonkeyPatch) -> None:
    eight_cpus.setattr(cpu_quota, "host_quota", lambda: Quota(6.0, Path("cpu.max")))
    eight_cpus.setattr(os, "sched_getaffinity", lambda process: {3, 5})
    assert busy_cpus() == 2


def test_nobody_else_counts_cpus() -> None:
    """Code that counts CPUs itself would not see the quota."""
    counted = re.compile(r"cpu_count\(\)|len\((os\.)?sched_getaffinity\(|len\(ALLOWED_CPUS\)")
    packages = ("microkernels", "tir_schedules", "relay_passes", "tvm_hybrid", "tools")
    found = {
        str(path.relative_to(ROOT))
        for package in packages
        for path in (ROOT / package).rglob("*.py")
        if counted.search(path.read_text())
    }
    assert found == {*OTHERS, "microkernels/base/cpu_quota.py", *REFUSALS}
