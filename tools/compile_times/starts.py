"""Starts engines in new processes, and reads their reports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from microkernels.isa import CAP_VARIABLE

from .stage_clock import Seconds
from .start import FIRST_RUN, MEASURING, MODULES

ROOT = Path(__file__).resolve().parents[2]
WALL = 5
"""The wall time that a start may take, as a multiple of its limit of CPU seconds."""


@dataclass
class Start:
    """The time and the counts of one start."""

    # Stage -> CPU and wall seconds, in the order in which stages first ended.
    stages: dict[str, list[float]] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)  # part of a stage -> CPU seconds
    counts: dict[str, int] = field(default_factory=dict)
    peak_mb: float = 0.0  # of memory
    one_program: bool = True  # whether one program serves all dynamic sizes
    fault: str = ""  # why there is no answer; empty if there is one

    def seconds(self, first_run: bool = True) -> Seconds:
        """Seconds until the first answer or the session, without Python's import of modules."""
        left_out = {MODULES} if first_run else {MODULES, FIRST_RUN}
        rows = [row for title, row in self.stages.items() if title not in left_out]
        return Seconds(sum(row[0] for row in rows), sum(row[1] for row in rows))


@dataclass(frozen=True)
class Files:
    """A model and the inputs of its first run."""

    model: Path
    feeds: Path


def written(name: str, folder: Path, relative: str = "") -> Files:
    """Writes a model of the corpus, or a relative of it, in a process that frees its memory."""
    folder.mkdir()
    files = Files(folder / "model.onnx", folder / "feeds.npz")
    program = [sys.executable, "-m", "tools.compile_times.write"]
    subprocess.run([*program, name, str(folder), "--relative", relative], check=True, cwd=ROOT)
    return files


def start(
    engine: str,
    files: Files,
    threads: int,
    limit: float,
    cache: Path | None = None,
    python: str = sys.executable,
    target: str | None = None,
) -> Start:
    """Starts an engine until its first answer, or until it has taken `limit` CPU seconds.

    Parameters
    ----------
    engine : str
        One of `start.ENGINES`.
    cache : Path or None
        Folder of the program cache; None disables the cache.
    python : str
        A Python that has the engine.
    target : str or None
        CPU that "counting" compiles for, without records; None for this one.
    """
    environment = {**os.environ, "TVM_NUM_THREADS": str(threads), "PYTHONHASHSEED": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    )
    if target is not None:
        environment["TVM_HYBRID_RECORDS"] = "none"
        environment.pop(CAP_VARIABLE, None)
    if cache is None:
        environment["TVM_HYBRID_CACHE"] = "0"
    else:
        environment.pop("TVM_HYBRID_CACHE", None)
        environment["TVM_HYBRID_CACHE_DIR"] = str(cache)
    with TemporaryDirectory(prefix="compile_times-") as folder:
        report = Path(folder) / "report"
        report.touch()
        errors = Path(folder) / "errors"
        job = {
            "engine": engine,
            "model": str(files.model),
            "feeds": str(files.feeds),
            "report": str(report),
            "threads": threads,
            "limit": limit,
            "target": target,
            "began": time.perf_counter(),
        }
        command = [python, "-m", "tools.compile_times.start", json.dumps(job)]
        with errors.open("w") as sink:
            process = subprocess.Popen(
                command, env=environment, cwd=ROOT, stdout=sink, stderr=sink, start_new_session=True
            )
            late = False
            try:
                process.wait(WALL * limit)
            except subprocess.TimeoutExpired:
                late = True
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)  # with the processes it has started
                    process.wait()
        found = _read(report)
        if late:
            found.fault = f"not done after {WALL * limit:.0f} s by the clock, in {found.fault!r}"
        elif process.returncode == -signal.SIGXCPU:
            found.fault = f"not done after {limit:.0f} CPU s, in {found.fault!r}"
        elif found.fault:
            lines = errors.read_text().strip().splitlines() or [f"status {process.returncode}"]
            found.fault = f"ended in {found.fault!r}: {lines[-1][:300]}"
        return found


def _read(report: Path) -> Start:
    """Reads a start's report; its fault is the stage in which it ended early."""
    found = Start(fault="the start")
    *lines, _unfinished = report.read_text().split("\n")
    for line in lines:
        said: dict[str, Any] = json.loads(line)
        if "begins" in said:
            found.fault = said["begins"]
        elif "stage" in said and said["stage"] != MEASURING:
            row = found.stages.setdefault(said["stage"], [0.0, 0.0])
            row[0] += said["cpu"]
            row[1] += said["wall"]
        elif "done" in said:
            found.parts, found.counts = said["parts"], said["counts"]
            found.peak_mb = said["peak_mb"]
            found.one_program = said.get("one_program", True)
            found.fault = ""
    return found
