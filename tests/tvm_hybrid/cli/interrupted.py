"""Runs commands in children of a fresh process and interrupts them (SIGINT) at chosen moments.

    python -m tests.tvm_hybrid.cli.interrupted MODEL FOLDER SEED

Prints a line of JSON for each command. Modules are imported before, so that a child gets to work at
once. Orphans become children of this process, which thus finds processes that a command leaves
behind.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import tvm_hybrid

PR_SET_CHILD_SUBREAPER = 36
SLOWEST = 120.0
PRESSED = {"compile": 4, "run": 1, "verify": 2, "bench": 2, "tune": 1}
if "TVM_HYBRID_ALL_TESTS" not in os.environ:
    PRESSED = {"compile": 2, "run": 1, "verify": 1, "bench": 1, "tune": 1}
LONG = 3.0  # bench and tune take longer than this


def commands(model: str, folder: Path) -> dict[str, list[str]]:
    """Commands to interrupt; each takes a second or more."""
    one = ["--threads", "1"]
    return {
        "compile": ["compile", model, "-o", str(folder / "m.so"), *one],
        "run": ["run", model, "--output", str(folder / "y.npz"), *one],
        "verify": ["verify", model, *one],
        "bench": ["bench", model, "--seconds", "1", *one],
        "tune": ["tune", model, "--records", str(folder / "r.jsonl"), "--trials", "40", *one],
    }


def main(model: str, folder: Path, seed: int) -> None:
    """Runs one command to its end to time it; then interrupts all commands.

    A command that ends too early is run again and interrupted earlier.
    """
    import onnxruntime  # noqa: F401
    import tvm

    from tvm_hybrid.bench import bench as _bench  # noqa: F401
    from tvm_hybrid.cli import bench, program, tune  # noqa: F401
    from tvm_hybrid.session import inference_session as session  # noqa: F401

    tvm.get_global_func("target.llvm_get_system_cpu")()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    generator = random.Random(seed)
    for name, arguments in commands(model, folder).items():
        if name == "compile":
            whole = float(_pressed(arguments, folder, None)["seconds"])
        for part in range(PRESSED[name]):
            seconds = LONG if name in ("bench", "tune") else 0.9 * whole
            after = seconds * (part + generator.random()) / PRESSED[name]
            row = _pressed(arguments, folder, after)
            while row["code"] == 0:  # the machine became faster than when `whole` was measured
                after /= 2
                row = _pressed(arguments, folder, after)
            print(json.dumps({"command": name, **row}), flush=True)


def _pressed(arguments: list[str], folder: Path, after: float | None) -> dict[str, Any]:
    """Exit code, output and leftovers of a command that is interrupted after `after` seconds."""
    for path in folder.iterdir():
        path.unlink()
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryFile() as said:
        begun = time.monotonic()
        child = os.fork()
        if child == 0:
            _child(arguments, place, said.fileno())
        if after is not None:
            _wait(child, after)
            os.kill(child, signal.SIGINT)  # not reaped yet: the process id is still valid
        code = _wait(child, SLOWEST)
        seconds = time.monotonic() - begun
        orphans = _orphans()
        said.seek(0)
        return {
            "after": after,
            "code": code,
            "seconds": seconds,
            "said": said.read().decode(),
            "files": sorted(path.name for path in folder.iterdir()),
            "torn": sorted(path.name for path in folder.iterdir() if not _is_whole(path)),
            "temporary": sorted(os.listdir(place)),
            "orphans": orphans,
        }


def _child(arguments: list[str], place: str, said: int) -> None:
    code = 99
    try:
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.environ["TMPDIR"] = tempfile.tempdir = place
        from tvm_hybrid.cli import main as run

        code = run(arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _is_whole(path: Path) -> bool:
    """Whether an output loads; tried in a child, which a truncated library may crash."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if path.suffix == ".npz":
                with np.load(path) as arrays:
                    _ = [arrays[name] for name in arrays]
            elif path.suffix == ".so":
                tvm_hybrid.load(path)
            elif path.suffix == ".jsonl":
                _ = [json.loads(line) for line in path.read_text().splitlines()]
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _wait(child: int, seconds: float) -> int | None:
    """Exit code, or None while it runs; the zombie is kept so that its process id is not reused."""
    end = time.monotonic() + seconds
    while True:
        found = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is not None:
            return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        if time.monotonic() >= end:
            return None
        time.sleep(0.005)


def _orphans() -> list[str]:
    """Command lines of leftover processes; dying ones get a moment to end."""
    end = time.monotonic() + 5.0
    while True:
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                return []
        if time.monotonic() >= end:
            text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
            names = [Path(f"/proc/{pid}/cmdline").read_text() for pid in text.split()]
            for pid in text.split():
                os.kill(int(pid), signal.SIGKILL)
            return names
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
