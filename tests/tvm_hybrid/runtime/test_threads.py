"""The number of threads: the meaning of None, and that parallel loops use exactly that many."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import tvm_hybrid
from tests.conftest import THREADS
from tests.tvm_hybrid.runtime.simulated_machines import machine
from tests.tvm_hybrid.small_models import mlp, mlp_module, run_python
from tvm_hybrid.cli import main
from tvm_hybrid.errors import TargetError
from tvm_hybrid.runtime import threads
from tvm_hybrid.runtime import topology as topology_module
from tvm_hybrid.runtime.thread_pool.native import installed


def test_none_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "3")
    assert threads.resolve_threads(None) == 3
    monkeypatch.delenv("TVM_NUM_THREADS")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert threads.resolve_threads(None) == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert threads.resolve_threads(None) == threads.cores_in_quota()
    assert 1 <= threads.physical_cores() <= (os.cpu_count() or 1)


def quota(name: str, text: str, period: str = "100000") -> dict[str, str]:
    """Files of a control group of version 1, or of version 2 if `name` begins with "2"."""
    if name.startswith("2"):
        return {f"sys/fs/cgroup{name[1:]}/cpu.max": f"{text} {period}"}
    folder = f"sys/fs/cgroup/{name}"
    return {f"{folder}/cpu.cfs_quota_us": text, f"{folder}/cpu.cfs_period_us": period}


V2 = {"proc/self/cgroup": "0::/a/b"}
V1 = {"proc/self/cgroup": "7:memory:/m\n4:cpu,cpuacct:/a/b\n0::/"}
QUOTAS: dict[str, tuple[dict[str, str], float | None, int]] = {
    "none": ({}, None, 8),
    "none of version 2": (V2 | quota("2/a/b", "max"), None, 8),
    "none of version 1": (V1 | quota("cpu/a/b", "-1"), None, 8),
    "version 2": (V2 | quota("2/a/b", "200000"), 2, 2),
    "of a group around it": (V2 | quota("2/a/b", "max") | quota("2/a", "300000"), 3, 3),
    "the least": (V2 | quota("2/a/b", "500000") | quota("2/a", "300000"), 3, 3),
    "of a container, its own root": (V2 | quota("2", "400000"), 4, 4),
    "with another period": (V2 | quota("2/a/b", "75000", "50000"), 1.5, 2),
    "less than one": (V2 | quota("2/a/b", "20000"), 0.2, 1),
    "nearer to the lower": (V2 | quota("2/a/b", "240000"), 2.4, 2),
    "more than there are": (V2 | quota("2/a/b", "1600000"), 16, 8),
    "version 1": (V1 | quota("cpu/a/b", "200000"), 2, 2),
    "version 1 by both names": (V1 | quota("cpu,cpuacct/a/b", "300000"), 3, 3),
    "version 1, a container": (V1 | quota("cpu", "200000"), 2, 2),
    "of another group": (V2 | quota("2/c", "100000"), None, 8),
    "nonsense": (V2 | quota("2/a/b", "many"), None, 8),
}


@pytest.mark.parametrize("name", QUOTAS)
def test_a_quota_bounds_the_default(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files, cpus, count = QUOTAS[name]
    cores = [(core,) for core in range(8)]
    topology = machine(tmp_path, {0: cores}, files=files)
    assert (topology.quota and topology.quota.cpus) == cpus
    for module in (threads, topology_module):
        monkeypatch.setattr(module, "host_topology", lambda: topology)
    for variable in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(variable, raising=False)
    assert threads.default_threads() == count
    assert threads.resolve_threads(8) == 8  # an explicit number is used as given
    assert main(["doctor", "--json"]) == 0
    facts = {fact["name"]: fact["value"] for fact in json.loads(capsys.readouterr().out)}
    said = f"{cpus:g} CPUs ({tmp_path}/sys/fs/cgroup" if cpus else "none"
    assert facts["quota of CPU time"].startswith(said)
    why = "one for each core" if count == 8 else f"is {cpus:g} CPUs"
    assert facts["threads of a run"].startswith(f"{count}, ") and why in facts["threads of a run"]
    monkeypatch.setenv("TVM_NUM_THREADS", "5")
    assert threads.default_threads() == 5
    assert threads.why_default_threads() == "as TVM_NUM_THREADS says"


def test_affinity_bounds_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = V2 | quota("2/a/b", "300000")
    topology = machine(tmp_path, {0: [(0, 2), (1, 3)]}, files=files, allowed=[0, 2])
    monkeypatch.setattr(threads, "host_topology", lambda: topology)
    for variable in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(variable, raising=False)
    assert threads.default_threads() == 1


@pytest.mark.parametrize("number", [0, -1, 1.5, "2", True])
def test_what_is_no_number_of_threads_is_refused(number: Any) -> None:
    with pytest.raises(TargetError, match="num_threads"):
        threads.resolve_threads(number)


CPUS = len(os.sched_getaffinity(0))


@pytest.mark.parametrize("number", [4 * CPUS + 1, 100_000])
def test_more_than_four_for_each_cpu_are_refused_where_they_would_run(
    number: int, tmp_path: Path
) -> None:
    words = rf"at most {4 * CPUS} here.*{CPUS} CPU.*not {number}"
    assert threads.resolve_threads(4 * CPUS, here=True) == 4 * CPUS
    # Each of them checks this before it looks at the model.
    for use in (tvm_hybrid.compile, tvm_hybrid.InferenceSession, tvm_hybrid.tune):
        with pytest.raises(TargetError, match=words):
            use(tmp_path / "no model", num_threads=number)
    with pytest.raises(TargetError, match=words):
        tvm_hybrid.InferenceSession(tmp_path / "none", target="zen3", num_threads=number)


def test_another_machine_may_have_more_cpus(tmp_path: Path) -> None:
    number = 4 * CPUS + 1
    executable = tvm_hybrid.compile(mlp_module(), target="haswell", num_threads=number)
    assert executable.num_threads == number
    path = executable.export(tmp_path / "many.so")
    for use in (executable.new_machine, lambda: tvm_hybrid.load(path)):
        with pytest.raises(TargetError, match=f"at most {4 * CPUS} here"):
            use()
    with pytest.raises(TargetError, match="8192"):
        tvm_hybrid.compile(mlp_module(), target="haswell", num_threads=100_000)


@pytest.mark.parametrize("text", ["abc", "0", "-1", "1.5", "²"])
def test_a_variable_that_is_no_number_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", text)
    for number in (None, 1):
        with pytest.raises(TargetError, match=f"TVM_NUM_THREADS.*'{text}'"):
            tvm_hybrid.compile(tmp_path / "no model", num_threads=number)
    with pytest.raises(TargetError, match="TVM_NUM_THREADS"):
        mlp().new_machine()
    (tmp_path / "none.onnx").touch()
    assert main(["run", str(tmp_path / "none.onnx"), "--threads", "1"]) == 2
    assert "TVM_NUM_THREADS" in capsys.readouterr().err
    assert main(["doctor"]) == 1
    assert "TVM_NUM_THREADS must be" in " ".join(capsys.readouterr().out.split())


def test_too_large_a_variable_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", str(4 * CPUS + 1))
    with pytest.raises(TargetError, match=rf"TVM_NUM_THREADS must be at most {4 * CPUS} here"):
        threads.resolve_threads(None, here=True)
    assert threads.resolve_threads(1, here=True) == 1
    monkeypatch.delenv("TVM_NUM_THREADS")
    monkeypatch.setenv("OMP_NUM_THREADS", str(4 * CPUS + 1))
    with pytest.raises(TargetError, match="OMP_NUM_THREADS must be at most"):
        threads.resolve_threads(None, here=True)


POOL = """
import os, sys, threading
from tvm_hybrid.runtime.thread_pool.native import installed
from tvm_hybrid.runtime.threads import use_threads
import tvm
assert installed()
number = tvm.get_global_func("runtime.NumThreads")
cpus = os.sched_getaffinity(0)
for count in (2, 1, 3, 2):
    use_threads(count)
    print(number(), end=" ")
print(os.sched_getaffinity(0) == cpus, end=" ")
seen = []
def other():
    use_threads(2)
    seen.append(number())
use_threads(1)
thread = threading.Thread(target=other)
thread.start()
thread.join()
print(seen[0], number())
"""


def test_the_pool_has_as_many_workers_as_asked_and_is_not_pinned() -> None:
    done = run_python(POOL, TVM_NUM_THREADS="3", TVM_THREAD_POOL_SPIN_COUNT="0")
    assert done.stdout.split() == ["2", "1", "3", "2", "True", "2", "1"], done.stderr


OF_TVM = """
import logging, os, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
import tvm
number = tvm.get_global_func("runtime.NumThreads")
print(number())
from tvm_hybrid.runtime.thread_pool.native import installed
from tvm_hybrid.runtime.threads import use_threads
use_threads(4)
assert installed() is None
print(number())
"""


def test_with_tvm_s_runtime_alone_a_pool_of_tvm_that_is_too_small_is_reported() -> None:
    done = run_python(
        OF_TVM, TVM_NUM_THREADS="1", TVM_THREAD_POOL_SPIN_COUNT="0", TVM_USE_RUNTIME_LIB="1"
    )
    first, warning, last = done.stdout.strip().splitlines()
    assert (first, last) == ("1", "1")
    assert "TVM_NUM_THREADS=4" in warning


def test_each_thread_has_its_own_number() -> None:
    mine = threads.current.setting.count
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(threads.current.setting.count))
    thread.start()
    thread.join()
    assert found == [0]
    assert threads.current.setting.count == mine


@pytest.mark.parametrize("_again", range(2))
def test_every_test_begins_with_the_same_number_on_our_pool(_again: int) -> None:
    """Therefore a test file passes alone and after other files."""
    assert installed() is not None
    assert threads.current.setting.count == THREADS
    threads.use_threads(THREADS + 1)  # the second run must not see this
