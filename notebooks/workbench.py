"""Helpers of the tutorials: the CPU's name, times of functions, and the command line."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import tvm_hybrid


def cpu_name() -> str:
    """Returns Linux's name of this CPU, and LLVM's name of the CPU that code is compiled for."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line for line in lines if line.startswith("model name")), ": unknown")
    target = tvm_hybrid.resolve_target(None)
    return f"CPU: {model.partition(':')[2].strip()}, code for {target.attrs['mcpu']}"


def least_times(ways: Mapping[str, Callable[[], object]], seconds: float = 0.3) -> dict[str, float]:
    """Times functions in turns, so that other work on the machine disturbs all of them equally.

    Parameters
    ----------
    ways : mapping of str to callable
        Name -> function to call.
    seconds : float
        Time for each function, all turns together.

    Returns
    -------
    dict of str to float
        Name -> least time of a call, in microseconds.
    """
    least = {}
    for name, call in ways.items():
        call()
        least[name] = float("inf")
    end = time.perf_counter() + seconds * len(ways)
    while time.perf_counter() < end:
        for name, call in ways.items():
            for _ in range(3):
                start = time.perf_counter()
                call()
                least[name] = min(least[name], 1e6 * (time.perf_counter() - start))
    return least


def tvm_hybrid_command(*arguments: object) -> str:
    """Runs the command `tvm-hybrid` and returns its output.

    Parameters
    ----------
    *arguments : object
        Arguments of the command line.

    Raises
    ------
    RuntimeError
        If the command fails.
    """
    run = "from tvm_hybrid_command import main; raise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-c", run, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"tvm-hybrid {' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout
