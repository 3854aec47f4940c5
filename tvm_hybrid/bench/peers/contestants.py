"""The contestants of a benchmark: this plugin, ONNX Runtime, TVM without the plugin.

Each is prepared once, keeps its outputs for comparison, and has `run_for` (see `timing`). A
contestant that cannot be prepared raises ContestantError; the benchmark says so and continues
without it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tvm.target import Target

from ...options import CompileOptions
from ...report.timing import SLICE_SECONDS, ContestantError, time_calls
from ...tuning.measuring.child_process import ChildProcess
from ..feeds import as_saved, save_arrays
from .onnx_runtime import last_line, optimised_session
from .peers import PYTHON_VARIABLE, openvino_python

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
            self._answer("ready")
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


@dataclass(frozen=True)
class LoadTurn:
    """What callers saw in one turn.

    Attributes
    ----------
    times : list of float
        Seconds from sending to the result, of every request.
    rate : float
        Requests a second: the sum of the callers' own rates, each until its last result, so that
        it does not matter that some end earlier than others.
    """

    times: list[float]
    rate: float

    @property
    def seconds(self) -> float:
        """How long so many requests take at this rate."""
        return len(self.times) / self.rate


def total_rate(turns: Iterable[LoadTurn]) -> float:
    """Requests a second in several turns."""
    turns = list(turns)
    return sum(len(turn.times) for turn in turns) / sum(turn.seconds for turn in turns)


def load_turn(
    call: Callable[[], object],
    callers: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> LoadTurn:
    """Has threads call for about `seconds`, each at least once.

    Parameters
    ----------
    call : callable
        One request; it returns when the result is there.
    callers : int
        How many threads call.
    seconds : float
        When no more requests are sent.
    clock : callable
        Tells the time.

    Raises
    ------
    Exception
        What a call raised first.
    """
    found: list[tuple[list[float], float]] = []
    errors: list[BaseException] = []
    ready = threading.Barrier(callers)

    def caller() -> None:
        times: list[float] = []
        try:
            ready.wait()
            start = last = clock()
            end = start + seconds
            while True:
                call()
                now = clock()
                times.append(now - last)
                last = now
                if now >= end or errors:
                    break
        except BaseException as error:
            errors.append(error)
            ready.abort()
        else:
            found.append((times, last - start))

    threads = [threading.Thread(target=caller) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    times = [time for each, _ in found for time in each]
    return LoadTurn(times, sum(len(each) / spent for each, spent in found))


class SessionContestant:
    """Callers of one session with onnxruntime's interface, in this process.

    Parameters
    ----------
    session : InferenceSession
        Whose `run` is called.
    feeds : mapping
        The inputs, which all callers share.
    callers : int
        How many threads call in `load_for`.

    Attributes
    ----------
    outputs : list of numpy.ndarray
        Results of the first run.
    """

    def __init__(self, session: Any, feeds: Feeds, callers: int = 1) -> None:
        self._session, self._feeds, self._callers = session, dict(feeds), callers
        self.outputs: list[np.ndarray] = session.run(None, self._feeds)

    def run_for(self, seconds: float) -> list[float]:
        """Runs for about `seconds`; returns the seconds of every run."""
        run, feeds = self._session.run, self._feeds
        return time_calls(lambda: run(None, feeds), seconds)

    def load_for(self, seconds: float) -> LoadTurn:
        """Keeps all callers busy for about `seconds`."""
        run, feeds = self._session.run, self._feeds
        return load_turn(lambda: run(None, feeds), self._callers, seconds)

    def close(self) -> None:
        """Nothing to free."""

    @staticmethod
    def of_onnx(model: Path, feeds: Feeds, threads: int, callers: int = 1) -> SessionContestant:
        """ONNX Runtime with its default optimisations.

        Raises
        ------
        ContestantError
            If it is not installed, or cannot load or run the model.
        """
        session = optimised_session(str(model), threads)
        try:
            return SessionContestant(session, feeds, callers)
        except Exception as error:
            raise ContestantError(f"ONNX Runtime: {last_line(error)}") from error


class StockTvm(WorkerContestant):
    """TVM's default pipeline in a worker process.

    Parameters
    ----------
    model : Path
        An ONNX file.
    feeds : mapping
        The inputs.
    options : CompileOptions
        Its shapes, its target, and the inputs whose values it knows are TVM's too.
    threads : int
        Size of TVM's thread pool.
    limit : float
        Seconds after which a silent worker is given up.

    Raises
    ------
    ContestantError
        If TVM cannot import, compile or run the model in time.
    """

    def __init__(
        self, model: Path, feeds: Feeds, options: CompileOptions, threads: int, limit: float = 300.0
    ) -> None:
        target = options.target
        job = {
            "model": str(Path(model).resolve()),
            "shapes": options.shapes,
            "known": list(options.values or {}),
            "target": str(target) if isinstance(target, Target) else target,
        }
        command = [sys.executable, "-m", f"{__package__}.stock_worker"]
        environment = {"TVM_NUM_THREADS": str(threads)}
        super().__init__("stock TVM", command, job, feeds, environment, limit)


# OpenVINO as a contestant: in a worker, with a Python of its own if need be.
#
# It is optional: without a Python that has it, benchmarks say so and continue without it.


# Run as a script it would have this folder before the libraries.
_RUN = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
_WORKER = Path(__file__).with_name("openvino_worker.py")


def openvino_version(python: str) -> str:
    """The version of OpenVINO that a Python has.

    Raises
    ------
    ContestantError
        If it has none, or cannot be started.
    """
    program = "import openvino; print(openvino.__version__.split('-')[0])"
    try:
        done = subprocess.run(
            [python, "-c", program], capture_output=True, text=True, timeout=120, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        where = "" if python == sys.executable else f" for {python}"
        raise ContestantError(
            f"OpenVINO is not installed{where}: give it a Python of its own, `python -m venv "
            "openvino && openvino/bin/pip install openvino numpy`, and name that with "
            f"--openvino-python openvino/bin/python or {PYTHON_VARIABLE}"
        ) from error
    return done.stdout.strip()


class OpenVino(WorkerContestant):
    """OpenVINO's CPU plugin: one stream, latency mode; or throughput mode.

    Parameters
    ----------
    model : Path
        An ONNX file.
    feeds : mapping
        The inputs.
    threads : int
        Threads of one run.
    python : str or None
        See `openvino_python`.
    kernels : bool
        Whether to measure, instead of whole runs, the time of convolutions and matrix products in
        them: its mean of each slice of runs.
    precision : str
        "f32" or "bf16": what float operators compute in. Integers stay as the model says.
    streams, callers : int
        If there are callers: throughput mode with so many streams, which share the threads, for
        `load_for`.

    Raises
    ------
    ContestantError
        If OpenVINO is not installed, or cannot run the model in time.
    """

    def __init__(
        self,
        model: Path,
        feeds: Mapping[str, np.ndarray],
        threads: int,
        python: str | None = None,
        kernels: bool = False,
        precision: str = "f32",
        streams: int = 1,
        callers: int = 0,
    ) -> None:
        program = openvino_python(python)
        job = {
            "model": str(Path(model).resolve()),
            "threads": threads,
            "precision": precision,
            "slice": SLICE_SECONDS if kernels else 0.0,
            "streams": streams,
            "callers": callers,
        }
        try:
            super().__init__("OpenVINO", [program, "-c", _RUN, str(_WORKER)], job, feeds, {})
        except ContestantError as error:
            if not isinstance(error.__cause__, OSError):
                openvino_version(program)  # says how to get it, if that is what is wrong
            raise

    def load_for(self, seconds: float) -> LoadTurn:
        """Keeps all callers' requests under way for about `seconds`."""
        self._child.send(seconds)
        load = self._answer("load")
        return LoadTurn([float(time) for time in load["times"]], float(load["rate"]))
