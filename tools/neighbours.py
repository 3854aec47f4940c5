"""Measures how a session and other work share a machine: `python -m tools.neighbours MODEL.onnx`.

It prints one line for each question, on two threads by default:

    first call    microseconds of a call after a pause, and right after another, for each `spin`
    numpy         a NumPy step between calls of an idle session, against the step alone
    turns         three sessions one after the other, against the sum of their times alone
    callers       calls a second of 1, 2, 4, ... threads that share a session of one thread
    processes     calls a second of 1, 2, 4 processes, each with its own session
    threads       threads of the process, after many callers have come and gone

Nothing else should run meanwhile. Times are medians of some calls, or the least of some medians.
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import numpy as np

import tvm_hybrid
from tvm_hybrid.bench.peers.contestants import load_turn
from tvm_hybrid.cli.base.options import named_size
from tvm_hybrid.report.timing import time_calls
from tvm_hybrid.runtime.tensors import numpy_dtype

REPEAT = 60
PAUSE = 0.02  # seconds
SECONDS = 3.0
REQUESTS = 300  # calls, each in a new thread
CALLERS = (1, 2, 4, 8)
PROCESSES = (1, 2, 4)

Call = Callable[[], object]


def session_call(model: Path, sizes: dict[str, int], threads: int, spin: str) -> Call:
    """A function that runs a new session of a model on zeros."""
    session = tvm_hybrid.InferenceSession(
        str(model), shapes=sizes or None, num_threads=threads, spin=spin
    )
    infos = session.executable.inputs
    feeds = {
        info.name: np.zeros([int(size) for size in info.shape], numpy_dtype(info.dtype))
        for info in infos
    }
    return lambda: session.run(None, feeds)


def median_of(call: Call, before: Call = lambda: None) -> float:
    """Median seconds of `call`; `before` runs before each call and is not timed."""
    times = []
    for _ in range(REPEAT):
        before()
        times += time_calls(call, 0.0)
    return statistics.median(times)


def rate_of_processes(arguments: Sequence[str], count: int) -> float:
    """Calls a second of `count` processes together; each prints its own rate."""
    command = [sys.executable, "-m", "tools.neighbours", *arguments, "--one-of-many"]
    pipe = subprocess.PIPE
    running = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(count)]
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()  # the process says that it is ready
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return sum(float(process.communicate()[0]) for process in running)


def first_calls(make: Callable[[str], Call]) -> None:
    """Prints how long the first call after a pause takes."""
    for spin in ("run", "always", "never"):
        call = make(spin)
        call()
        after_pause = median_of(call, lambda: time.sleep(PAUSE))
        at_once = median_of(call)
        click.echo(
            f"first call  spin={spin:7} {1e6 * after_pause:8.1f} us after {1e3 * PAUSE:g} ms, "
            f"{1e6 * at_once:8.1f} us at once"
        )


def numpy_beside(make: Callable[[str], Call]) -> None:
    """Prints how much an open session slows NumPy down."""
    # A step of about 2 ms that fills both cores, as reading and scaling pictures does.
    one = np.random.default_rng(0).standard_normal((600, 600)).astype(np.float32)
    step = functools.partial(np.matmul, one, one)
    median_of(step)
    for spin in ("run", "always", "never"):
        call = make(spin)
        alone, beside = [], []
        for _ in range(6):
            alone.append(median_of(step))
            call()
            beside.append(median_of(step))
        del call
        ratio = min(beside) / min(alone)
        click.echo(f"numpy       spin={spin:7} {ratio:6.3f}x of {1e3 * min(alone):.2f} ms")
    call = make("run")
    between = median_of(step, call)
    click.echo(f"numpy       spin=run     {between / median_of(step):6.3f}x right behind a call")


def in_turns(make: Callable[[str], Call]) -> None:
    """Prints the time of three sessions that run one after the other."""
    calls = [make("run") for _ in range(3)]
    for call in calls:
        call()
    alone, turns = [], []
    for _ in range(6):
        alone.append(sum(median_of(call) for call in calls))
        turns.append(median_of(lambda: [call() for call in calls]))
    ratio = statistics.median(turns) / statistics.median(alone)
    click.echo(f"turns       {ratio:.3f}x of the sum, {1e3 * statistics.median(alone):.2f} ms")


def threads_left(call: Call) -> None:
    """Prints the threads of this process before and after many callers."""

    def count() -> int:
        return len(os.listdir("/proc/self/task"))

    before = count()
    for _ in range(REQUESTS // 10):
        some = [threading.Thread(target=call) for _ in range(10)]
        for thread in some:
            thread.start()
        for thread in some:
            thread.join()
    time.sleep(0.2)
    click.echo(f"threads     {before} before and {count()} after {REQUESTS} callers")


@click.command()
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--dim",
    "sizes",
    metavar="NAME=8",
    type=named_size,
    multiple=True,
    help="Size of a dynamic dimension.",
)
@click.option("--threads", default=2, show_default=True, help="Threads of a run.")
@click.option("--one-of-many", "alone", is_flag=True, hidden=True)
def main(model: Path, sizes: tuple[tuple[str, int], ...], threads: int, alone: bool) -> None:
    """Measures how sessions of MODEL share the machine with other work."""

    def make(spin: str) -> Call:
        return session_call(model, dict(sizes), threads, spin)

    if alone:
        call = make("run")
        call()
        click.echo("ready")
        sys.stdin.readline()
        click.echo(load_turn(call, 1, SECONDS).rate)
        return
    first_calls(make)
    numpy_beside(make)
    in_turns(make)
    serial = session_call(model, dict(sizes), 1, "run")
    for count in CALLERS:
        rate = load_turn(serial, count, SECONDS).rate
        click.echo(f"callers     {count}: {rate:.0f} calls/s")
    arguments = [str(model), f"--threads={threads}"]
    arguments += [f"--dim={name}={size}" for name, size in sizes]
    for count in PROCESSES:
        click.echo(f"processes   {count}: {rate_of_processes(arguments, count):.0f} calls/s")
    threads_left(make("run"))


if __name__ == "__main__":
    main()
