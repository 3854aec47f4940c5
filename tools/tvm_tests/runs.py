"""Runs a file of tests in processes of pytest until each test has an outcome."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec


@dataclass
class Builds:
    """Counts of what our pipeline compiles."""

    modules: int = 0  # modules that went through our whole pipeline
    regions: int = 0  # nodes in these modules that our templates build


PLUGIN = "tools.tvm_tests.plugin"
ROOT = Path(__file__).resolve().parents[2]
STEP = 0.5  # seconds between two checks of a process
START = 300  # fewest seconds allowed until the first test


class Outcome(msgspec.Struct, frozen=True):
    """How a test ended."""

    outcome: str  # pytest's "passed", "failed" or "skipped"; "crashed" or "hung" if it ended pytest
    error: str = ""  # in one line; "" if it passed
    modules: int = 0  # modules that our pipeline compiled for it
    regions: int = 0  # nodes in these modules that are our kernels


def run_file(checkout: Path, file: str, ours: bool, timeout: float) -> dict[str, Outcome]:
    """The outcomes of all tests of a file of a checkout, or of one test, by pytest's names.

    Parameters
    ----------
    ours : bool
        Whether our pipeline replaces TVM's.
    timeout : float
        Seconds for one test.
    """
    found: dict[str, Outcome] = {}
    while True:
        started, ended = _run(checkout, file, ours, timeout, found)
        if started is None or started in found:
            return found
        found[started] = ended


def _run(
    checkout: Path, file: str, ours: bool, timeout: float, found: dict[str, Outcome]
) -> tuple[str | None, Outcome]:
    """Runs tests without an outcome; returns the test that ended the process, if any, and how."""
    with TemporaryDirectory() as folder:
        notes, done = Path(folder, "notes"), Path(folder, "done")
        notes.touch()
        done.write_text("\n".join(found))
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "TVM_TESTS_OURS": str(int(ours)),
            "TVM_TESTS_NOTES": str(notes),
            "TVM_TESTS_DONE": str(done),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider"]
        command += ["--tb=short", "--rootdir", str(checkout), "-o", "addopts=", file]
        output = Path(folder, "output")
        with output.open("w") as log:
            process = subprocess.Popen(
                command, cwd=checkout, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
            try:
                hung = not _ends(process, notes, timeout)
            finally:
                process.kill()
                process.wait()
        started = None
        for line in notes.read_text().splitlines():
            entry = json.loads(line)
            started = name = entry.pop("test")
            if entry:
                found[name] = msgspec.convert(entry, Outcome)
                started = None
        how = f"no end after {timeout:g} s" if hung else f"exit code {process.returncode}"
        return started, Outcome("hung" if hung else "crashed", how)


def _ends(process: subprocess.Popen[bytes], notes: Path, timeout: float) -> bool:
    """Waits for a process; returns whether it ends without a test that takes too long."""
    # Counts checks, not seconds of the clock: a machine that sleeps must not fail tests.
    size, looks = 0, 0
    while process.poll() is None:
        time.sleep(STEP)
        looks += 1
        if (now := notes.stat().st_size) != size:
            size, looks = now, 0
        if looks * STEP > (timeout if size else max(timeout, START)):
            return False
    return True
