"""Only workers are bound to their CPUs; Linux is asked in fresh processes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_hybrid
from tests.tvm_hybrid.onnx_models import reference, saved, two_layers
from tests.tvm_hybrid.small_models import mlp_module, mlp_reference, run_python
from tvm_hybrid.errors import ArtifactError, TargetError
from tvm_hybrid.runtime.topology import host_topology

pytestmark = pytest.mark.turns

CPUS = sorted(os.sched_getaffinity(0))
TWO = pytest.mark.skipif(len(CPUS) < 2, reason="workers are bound to CPUs of their own")

# Prints for each step the affinity of the calling thread and of the threads it started.
STEPS = """
import json, os, sys, threading
import tvm_hybrid
from tests.tvm_hybrid.runtime.thread_pool.regions import asleep, pool, wait_until
from tests.tvm_hybrid.runtime.thread_pool.wide_model import check, wide_module

def tasks():
    return set(map(int, os.listdir("/proc/self/task")))

first, others = threading.get_native_id(), {}

def look():
    # Who has been woken is off its caller's CPU until it runs.
    assert wait_until(lambda: all(map(asleep, tasks() - before)))
    for task in tasks() - before:
        others[task] = sorted(os.sched_getaffinity(task))
    print(json.dumps([sorted(os.sched_getaffinity(first)), sorted(others.values())]))

settings = json.loads(sys.argv[1])
executables = [
    tvm_hybrid.compile(wide_module(), **{"num_threads": 2, **each}) for each in settings
]
sessions = [tvm_hybrid.InferenceSession(each) for each in executables]
pool()  # LLVM has been at work
own = json.loads(sys.argv[2])
os.sched_setaffinity(0, own)
before = tasks()
for session in sessions:
    for _ in range(3):
        check(session)
    look()
"""


def affinities(
    settings: list[dict[str, Any]], own: list[int], **environment: str
) -> list[tuple[list[int], list[list[int]]]]:
    """CPUs of the calling thread and of the workers after a run with each setting."""
    quiet = {"TVM_THREAD_POOL_SPIN_COUNT": "0", "TVM_NUM_THREADS": "1"}
    done = run_python(STEPS, json.dumps(settings), json.dumps(own), **quiet | environment)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@TWO
def test_each_worker_is_bound_and_the_caller_is_not() -> None:
    low, high = CPUS[:2]
    settings: list[dict[str, Any]] = [
        {"threads": [low, high]},
        {"threads": [high, low]},
        {},
        {"threads": f"{low},{high}"},
    ]
    found = affinities(settings, CPUS)
    assert [caller for caller, _ in found] == [CPUS] * 4
    # Each place has its own workers, and so have unbound threads.
    assert [each for _, each in found] == [
        [[high]],
        sorted([[low], [high]]),
        sorted([[low], [high], CPUS]),
        sorted([[low], [high], CPUS]),
    ]


@TWO
@pytest.mark.parametrize("threads", [None, "all"])
def test_a_caller_that_has_few_cpus_keeps_them(threads: str | None) -> None:
    own = CPUS[-1:]
    setting = {} if threads is None else {"threads": threads}
    if len(host_topology().groups(lambda cpu: cpu.core)) < 2:
        pytest.skip("two threads need two cores")
    ((caller, _),) = affinities([setting], own)
    assert caller == own


@TWO
def test_a_variable_of_tvm_turns_binding_off_and_we_say_so() -> None:
    code = STEPS.replace("import json", "import logging; logging.basicConfig(); import json", 1)
    low, high = CPUS[:2]
    done = run_python(
        code,
        json.dumps([{"threads": [low, high]}]),
        json.dumps(CPUS),
        TVM_BIND_THREADS="0",
        TVM_NUM_THREADS="1",
        TVM_THREAD_POOL_SPIN_COUNT="0",
    )
    caller, workers = json.loads(done.stdout)
    assert caller == CPUS and workers == [CPUS]
    assert "TVM_BIND_THREADS keeps workers from being bound" in done.stderr


def test_a_program_says_where_it_runs(tmp_path: Path) -> None:
    (cpu, *_) = CPUS
    executable = tvm_hybrid.compile(mlp_module(), threads=[cpu])
    assert (executable.num_threads, executable.cpus) == (1, (cpu,))
    assert tvm_hybrid.compile(mlp_module(), threads=1).cpus == ()
    path = executable.export(tmp_path / "one.so")
    assert tvm_hybrid.load(path).cpus == ()
    x = np.ones((1, 16), np.float32)
    for weights in (None, "first-touch", "interleave", "replicate"):
        session = tvm_hybrid.InferenceSession(path, threads=str(f"{cpu}-{cpu}"), weights=weights)
        assert session.executable.cpus == (cpu,)
        (y,) = session.run(None, {"x": x})
        np.testing.assert_allclose(y, mlp_reference(x), rtol=1e-4)
    opened = tvm_hybrid.InferenceSession(mlp_module(), threads=[cpu], weights="replicate")
    assert opened.executable.cpus == (cpu,)


def test_a_library_has_its_number_of_threads(tmp_path: Path) -> None:
    executable = tvm_hybrid.compile(mlp_module(), num_threads=2)
    path = executable.export(tmp_path / "two.so")
    for use in (tvm_hybrid.load, tvm_hybrid.InferenceSession):
        with pytest.raises(TargetError, match=rf"\[{CPUS[0]}\] has too few CPUs for 2 threads"):
            use(path, threads=CPUS[:1])
        with pytest.raises(TargetError, match="no socket:99"):
            use(path, threads="socket:99")
        with pytest.raises(ArtifactError, match="for 2 threads, not 3"):
            use(path, threads=3)
        with pytest.raises(TargetError, match="'nowhere'"):
            use(path, weights="nowhere")
    assert tvm_hybrid.load(path, threads=2).num_threads == 2


def test_an_executable_has_its_place() -> None:
    executable = tvm_hybrid.compile(mlp_module(), num_threads=1)
    for given in ({"threads": "all"}, {"weights": "interleave"}):
        with pytest.raises(ArtifactError, match="give threads, weights and spin there"):
            tvm_hybrid.InferenceSession(executable, **given)  # type: ignore[arg-type]
    with pytest.raises(ArtifactError, match="for 1 threads, not 2"):
        tvm_hybrid.InferenceSession(executable, threads=2)
    assert tvm_hybrid.InferenceSession(executable, threads=1).executable is executable


def test_what_is_wrong_is_said_before_the_model_is_read(tmp_path: Path) -> None:
    for use in (tvm_hybrid.compile, tvm_hybrid.InferenceSession):
        with pytest.raises(TargetError, match="no node:99"):
            use(tmp_path / "none", threads="node:99")
        with pytest.raises(TargetError, match="'nowhere'"):
            use(tmp_path / "none", threads="all", weights="nowhere")


def test_a_session_of_dynamic_shapes_has_a_place(tmp_path: Path) -> None:
    session = tvm_hybrid.InferenceSession(
        saved(tmp_path, two_layers("rows")), threads=CPUS[:1], weights="replicate"
    )
    x = np.ones((3, 8), np.float32)
    (y,) = session.run(None, {"x": x})
    np.testing.assert_allclose(y, reference(x), rtol=1e-4)
    assert session.executable.cpus == tuple(CPUS[:1])
