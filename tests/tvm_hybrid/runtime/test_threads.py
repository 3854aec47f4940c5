"""The number of threads: what None means, and that parallel loops get exactly that many."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import tvm_hybrid
from tests.conftest import THREADS
from tests.tvm_hybrid.small_models import mlp, mlp_module, run_python
from tvm_hybrid.cli import main
from tvm_hybrid.errors import TargetError
from tvm_hybrid.runtime import threads
from tvm_hybrid.runtime.thread_pool.native import installed


def test_none_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "3")
    assert threads.resolve_threads(None) == 3
    monkeypatch.delenv("TVM_NUM_THREADS")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert threads.resolve_threads(None) == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert threads.resolve_threads(None) == threads.physical_cores()
    assert 1 <= threads.physical_cores() <= (os.cpu_count() or 1)


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
    # None of them looks at the model first.
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
    """So a file of tests passes alone as it does after others."""
    assert installed() is not None
    assert threads.current.setting.count == THREADS
    threads.use_threads(THREADS + 1)  # which the second time is forgotten
