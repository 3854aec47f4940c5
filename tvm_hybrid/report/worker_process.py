"""A contestant that runs in a process of its own: a job for the start, then one line a request."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from microkernels.output_file import undisturbed

from .feeds import as_saved, save_arrays
from .timing import ContestantError

Feeds = Mapping[str, np.ndarray]


class WorkerContestant:
    """Runs one model in a worker, which answers with lines of JSON.

    The worker reads the file named by its last argument, a JSON object: what `job` says, and
    "feeds" and "outputs", the paths of .npz files with the inputs and for the results. When it has
    run the model once it answers {"ready": SECONDS}. After that, for every line with a number of
    seconds it answers {"times": [SECONDS, ...]}. {"error": REASON} ends it at any time.

    Parameters
    ----------
    name : str
        What messages call it.
    command : sequence of str
        Program and arguments, to which the path of the job is added.
    job : mapping
        What the worker is told besides; JSON values.
    feeds : mapping
        The inputs.
    environment : mapping
        Environment variables besides this process's own.
    time_limit : float
        Seconds after which a silent worker is given up.

    Attributes
    ----------
    outputs : list of numpy.ndarray
        Results of the first run.
    prepare_seconds : float
        How long the worker took to load and run the model.

    Raises
    ------
    ContestantError
        If the worker cannot run the model in time.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        job: Mapping[str, Any],
        feeds: Feeds,
        environment: Mapping[str, str],
        time_limit: float,
    ) -> None:
        self._name, self._time_limit = name, time_limit
        self._resources = contextlib.ExitStack()
        folder = Path(
            self._resources.enter_context(tempfile.TemporaryDirectory(prefix="tvm_hybrid-worker-"))
        )
        self._log = folder / "log"
        self._process: subprocess.Popen[str] | None = None
        try:
            self._start(command, job, feeds, environment, folder)
            self.prepare_seconds = float(self._answer("ready"))
            with np.load(folder / "outputs.npz") as arrays:
                self.outputs = [as_saved(arrays[name]) for name in arrays.files]
        except BaseException:
            self.close()
            raise

    def _start(
        self,
        command: Sequence[str],
        job: Mapping[str, Any],
        feeds: Feeds,
        environment: Mapping[str, str],
        folder: Path,
    ) -> None:
        files = {"feeds": str(folder / "feeds.npz"), "outputs": str(folder / "outputs.npz")}
        try:
            save_arrays(folder / "feeds.npz", feeds)
            (folder / "job.json").write_text(json.dumps({**job, **files}), encoding="utf-8")
            with undisturbed(), open(self._log, "wb") as log:
                self._process = subprocess.Popen(
                    [*command, str(folder / "job.json")],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env={**os.environ, **environment},
                )
        except OSError as error:
            raise ContestantError(f"{self._name}: cannot start {command[0]}: {error}") from error

    def run_for(self, seconds: float) -> list[float]:
        """Runs for about `seconds`; returns the seconds of every run."""
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # reading the answer tells why
            self._process.stdin.write(f"{seconds}\n")
            self._process.stdin.flush()
        return [float(time) for time in self._answer("times")]

    def _answer(self, field: str) -> Any:
        """That field of the worker's next answer; other lines are libraries' own."""
        assert self._process is not None and self._process.stdout is not None
        late, process = threading.Event(), self._process

        def give_up() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self._time_limit, give_up)
        timer.start()
        try:
            for line in self._process.stdout:
                try:
                    fields = json.loads(line)
                except ValueError:
                    continue
                if not isinstance(fields, dict):
                    continue
                if "error" in fields:
                    raise ContestantError(f"{self._name}: {fields['error']}")
                if field in fields:
                    return fields[field]
        finally:
            timer.cancel()
        if late.is_set():
            raise ContestantError(f"{self._name}: no answer within {self._time_limit:.0f} s")
        code = self._process.wait()
        last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        raise ContestantError(f"{self._name}: worker ended with {code}: {''.join(last)}")

    def close(self) -> None:
        """Ends the worker and removes its files."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
        self._resources.close()
