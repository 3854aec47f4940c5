"""Parallel loops that keep few threads busy wake only these threads, and still run completely."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import tirx as T

import tvm_hybrid
from microkernels.base.tvm_compat.runtime import configure_threads
from relay_passes.lower.kernel_pipelines import (
    FEWEST,
    busy_threads,
    checking_pipeline,
    made_for,
    pipeline_for,
)
from tests.relay_passes.graphs import TARGET
from tir_schedules.core.emission import ALONE

POOLS = (1, 2, 3, 4, 5, 6, 8, 32)
LARGE = 5000  # enough elements that TVM takes them from its workspace


@T.prim_func(s_tir=True)
def two_loops(
    x: T.Buffer((20,), "float32"), y: T.Buffer((20,), "float32"), who: T.Buffer((5,), "int64")
) -> None:
    """y = 2 x + 3 in two loops, of 5 passes and of 4, and which thread runs each of the 5."""
    T.func_attr({"tirx.noalias": True})
    with T.sblock("root"):
        before = T.sblock_alloc_buffer((LARGE,), "float32")
        with T.sblock("first"):
            before[0] = T.float32(3)
        for i in T.parallel(5):
            with T.sblock("five"):
                own = T.sblock_alloc_buffer((LARGE,), "float32")
                who[i] = T.call_extern("int64", "pthread_self")
                for j in T.serial(4):
                    own[j] = x[i * 4 + j] * T.float32(2)
                for j in T.serial(4):
                    y[i * 4 + j] = own[j]
        for i in T.parallel(4):
            with T.sblock("four"):
                for j in T.serial(5):
                    y[i * 5 + j] = y[i * 5 + j] + before[0]


def compiled(function: tirx.PrimFunc, threads: int) -> Any:
    named = made_for(function.with_attr("global_symbol", "kernel"), threads)
    return tvm.compile(named, target=TARGET, tir_pipeline=pipeline_for(threads))


def run(code: Any) -> int:
    """Checks the results; returns how many threads ran the loop of 5 passes."""
    x = np.arange(20, dtype=np.float32)
    y, who = np.full(20, np.nan, np.float32), np.zeros(5, np.int64)
    code["kernel"](x, y, who)
    np.testing.assert_array_equal(y, 2 * x + 3)  # small integers
    return len(set(who.tolist()))


def use_pool_of_tvm(threads: int) -> None:
    """Uses TVM's thread pool, which gives each task its own thread; ours gives tasks to free ones.

    Its number of workers is TVM_NUM_THREADS at the time the calling thread's pool is made.
    """
    cpus = sorted(os.sched_getaffinity(0))
    count = max(threads, int(os.environ.get("TVM_NUM_THREADS", 1)))
    workers = list(islice(cycle(cpus), count))
    assert configure_threads(tvm.get_global_func, threads, workers) == threads


def check_pools(code: Any) -> None:
    for pool in POOLS:
        use_pool_of_tvm(pool)
        assert run(code) == busy_threads(5, min(pool, 5)), pool


@pytest.mark.parametrize(("extent", "threads"), [(14, 56), (64, 48), (100, 8), (1, 3), (7, 7)])
def test_busy_threads_are_those_that_tvm_gives_passes(extent: int, threads: int) -> None:
    step = -(-extent // threads)
    assert busy_threads(extent, threads) == len(range(0, extent, step))


def test_every_pass_runs_once_on_any_pool() -> None:
    code = (
        f"from {__name__} import check_pools, compiled, two_loops\n"
        "for threads in (3, 5, 6, 8, 56): check_pools(compiled(two_loops, threads))"
    )
    environment = {**os.environ, "TVM_NUM_THREADS": "32"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def launched(code: Any) -> list[int]:
    """The number of threads that each launch asks for; 0 stands for all of them."""
    text = code.mod.inspect_source("ll")
    asked = []
    for count in re.findall(r"call i32 %\S+\(ptr (?:nonnull )?@\S+, ptr .*, i32 (\S+)\)", text):
        choice = re.search(rf"{re.escape(count)} = select i1 \S+, i32 (\d+), i32 0", text)
        asked.append(int(choice[1]) if choice else int(count))
    return asked


def test_loops_ask_for_the_threads_that_they_keep_busy() -> None:
    assert launched(compiled(two_loops, 56)) == [5, 4]
    assert launched(compiled(two_loops, 5)) == [0, 4]
    assert launched(compiled(two_loops, 4)) == [3, 0]


@T.prim_func(s_tir=True)
def long_loop(
    start: T.Buffer((1,), "int64"),
    x: T.Buffer((T.int64(9),), "float32"),
    y: T.Buffer((T.int64(5),), "float32"),
) -> None:
    """y = x + 1 from a given element on, counted by int64, as scatters with int64 indices do."""
    for i in T.parallel(T.int64(5)):
        with T.sblock("five"):
            y[i] = x[start[0] + i] + T.float32(1)


def test_loops_may_be_counted_by_int64() -> None:
    code = compiled(long_loop, 7)
    assert launched(code) == [5]
    x, y = np.arange(9, dtype=np.float32), np.zeros(5, np.float32)
    code["kernel"](np.array([3], np.int64), x, y)
    np.testing.assert_array_equal(y, x[3:8] + 1)


def test_on_two_threads_loops_wake_both() -> None:
    assert launched(compiled(two_loops, 2)) == [0, 0]
    assert FEWEST == 2 and pipeline_for(1) == checking_pipeline()
    assert made_for(two_loops, 1).same_as(two_loops)


@T.prim_func(s_tir=True)
def dynamic_loop(count: T.int32, who: T.Buffer((4,), "int64"), y: T.Buffer((4,), "int64")) -> None:
    """Records the thread of each of 4 passes; counts of up to 7 run on one thread."""
    T.attr(0, ALONE, count <= 7)
    for i in T.parallel(4):
        with T.sblock("pass"):
            own = T.sblock_alloc_buffer((LARGE,), "int64")
            own[i] = T.int64(2)
            who[i] = T.call_extern("int64", "pthread_self")
            y[i] = own[i] * T.Cast("int64", count)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_a_small_loop_of_dynamic_sizes_runs_alone(threads: int) -> None:
    code = compiled(dynamic_loop, threads)
    with ThreadPoolExecutor(1) as other:  # a thread without a setting of ours
        other.submit(check_dynamic_loop, code, threads).result()


def check_dynamic_loop(code: Any, threads: int) -> None:
    use_pool_of_tvm(2)
    for count in (0, 7, 8):
        who, y = np.zeros(4, np.int64), np.zeros(4, np.int64)
        code["kernel"](count, who, y)
        assert y.tolist() == [2 * count] * 4
        assert len(set(who.tolist())) == (1 if count <= 7 and threads > 1 else 2), count


def test_a_loop_of_a_dynamic_extent_wakes_all_threads() -> None:
    @T.prim_func(s_tir=True)
    def many(count: T.int32, y: T.Buffer((20,), "float32")) -> None:
        for i in T.parallel(count):
            y[i] = T.float32(1)

    code = compiled(many, 56)
    assert launched(code) == [0]
    y = np.zeros(20, np.float32)
    code["kernel"](5, y)
    assert y.sum() == 5


def test_a_library_launches_few_as_well(tmp_path: Path) -> None:
    x = relax.Var("x", relax.TensorType((3, 20000), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.nn.softmax(x))
        builder.emit_func_output(y)
    # One CPU allows 4 threads; three of them are busy.
    executable = tvm_hybrid.compile(builder.get(), num_threads=4)
    path = tmp_path / "softmax.so"
    executable.export(path)
    data = np.random.default_rng(0).standard_normal((3, 20000)).astype(np.float32)
    results = [program.run(data)[0].numpy() for program in (executable, tvm_hybrid.load(path))]
    np.testing.assert_array_equal(*results)
    assert b"_few0_task" in path.read_bytes()
