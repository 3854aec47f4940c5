"""A contestant that runs in a process of its own: a job for the start, then one line a request."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ...report.timing import ContestantError
from ...tuning.measuring.child_process import ChildProcess
from ..feeds import as_saved, save_arrays

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
        time_limit: float = 300.0,
    ) -> None:
        self._name, self._time_limit = name, time_limit
        self._folder = tempfile.TemporaryDirectory(prefix="tvm_hybrid-worker-")
        folder = Path(self._folder.name)
        files = {"feeds": str(folder / "feeds.npz"), "outputs": str(folder / "outputs.npz")}
        self._child = ChildProcess([*command, str(folder / "job.json")], environment)
        try:
            save_arrays(folder / "feeds.npz", feeds)
            (folder / "job.json").write_bytes(msgspec.json.encode({**job, **files}))
            self._child.spawn()
            self.prepare_seconds = float(self._answer("ready"))
            with np.load(folder / "outputs.npz") as arrays:
                self.outputs = [as_saved(arrays[name]) for name in arrays.files]
        except OSError as error:
            self.close()
            raise ContestantError(f"{name}: cannot start {command[0]}: {error}") from error
        except BaseException:
            self.close()
            raise

    def run_for(self, seconds: float) -> list[float]:
        """Runs for about `seconds`; returns the seconds of every run."""
        self._child.send(seconds)
        return [float(time) for time in self._answer("times")]

    def _answer(self, field: str) -> Any:
        """That field of the worker's next answer; other lines are libraries' own."""
        while True:
            try:
                line = self._child.answer(self._time_limit)
            except TimeoutError:
                text = f"{self._name}: no answer within {self._time_limit:.0f} s"
                raise ContestantError(text) from None
            if line is None:
                raise ContestantError(f"{self._name}: the worker {self._child.ended()[1]}")
            try:
                fields = msgspec.json.decode(line, type=dict[str, Any])
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            if "error" in fields:
                raise ContestantError(f"{self._name}: {fields['error']}")
            if field in fields:
                return fields[field]

    def close(self) -> None:
        """Ends the worker and removes its files."""
        self._child.close()
        self._folder.cleanup()
