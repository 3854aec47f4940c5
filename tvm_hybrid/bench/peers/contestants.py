"""The contestants of a benchmark: this plugin, ONNX Runtime, TVM without the plugin.

Each is prepared once, keeps its outputs for comparison, and has `run_for` (see `timing`). A
contestant that cannot be prepared raises ContestantError; the benchmark reports it and continues
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
    """Runs one model in a worker process, which answers with lines of JSON.

    The worker's last argument names a file with a JSON object: `job`, and "feeds" and "outputs",
    the paths of .npz files for inputs and results. When it has run the model once, it answers
    {"ready": SECONDS}. Then it answers {"times": [SECONDS, ...]} for every line with a number of
    seconds. {"error": REASON} ends it at any time.

    Parameters
    ----------
    name : str
        Name in messages.
    command : sequence of str
        Program and arguments; the path of the job is added.
    job : mapping
        Further settings for the worker, as JSON values.
    feeds : mapping
        The inputs.
    environment : mapping
        Variables that are added to this process's environment.
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
        """Waits for an answer with this field; skips lines that libraries print."""
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
    """The result of one turn of concurrent callers.

    Attributes
    ----------
    times : list of float
        Seconds from sending to the result, for every request.
    rate : float
        Requests a second: the sum of the callers' rates, each until the caller's last result, so
        that callers may end at different times.
    """

    times: list[float]
    rate: float

    @property
    def seconds(self) -> float:
        """Duration of these requests at this rate."""
        return len(self.times) / self.rate


def total_rate(turns: Iterable[LoadTurn]) -> float:
    """Requests a second over several turns."""
    turns = list(turns)
    return sum(len(turn.times) for turn in turns) / sum(turn.seconds for turn in turns)


def load_turn(
    call: Callable[[], object],
    callers: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> LoadTurn:
    """Calls from several threads for about `seconds`, from each at least once.

    Parameters
    ----------
    call : callable
        Makes one request, and returns when the result is there.
    callers : int
        Number of threads.
    seconds : float
        No request is sent after this time.
    clock : callable
        Returns the time in seconds.

    Raises
    ------
    Exception
        The first exception of a call.
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
    """Calls one session with onnxruntime's interface, in this process.

    Parameters
    ----------
    session : InferenceSession
        The session.
    feeds : mapping
        The inputs, which all callers share.
    callers : int
        Number of calling threads in `load_for`.

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
        """Frees nothing."""

    @staticmethod
    def of_onnx(model: Path, feeds: Feeds, threads: int, callers: int = 1) -> SessionContestant:
        """Makes a session of ONNX Runtime with its default optimisations.

        Raises
        ------
        ContestantError
            If onnxruntime is not installed, or cannot load or run the model.
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
        Gives TVM shapes, target, and the inputs with known values.
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


# OpenVINO as a contestant: in a worker process, with another Python if necessary.
#
# It is optional: if no Python has it, benchmarks report that and continue without it.


# Not run as a script: then this folder would come before the libraries in sys.path.
_RUN = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
_WORKER = Path(__file__).with_name("openvino_worker.py")


def openvino_version(python: str) -> str:
    """Returns the version of OpenVINO that a Python has.

    Raises
    ------
    ContestantError
        If it does not have OpenVINO, or cannot be started.
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
    """OpenVINO's CPU plugin, in latency mode with one stream, or in throughput mode.

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
        Whether to time only convolutions and matrix products, as means over slices of runs.
    precision : str
        "f32" or "bf16": what float operators compute in. Integers stay as the model says.
    streams, callers : int
        With callers: throughput mode for `load_for`, with this many streams that share the threads.

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
                openvino_version(program)  # raises with advice if OpenVINO is missing
            raise

    def load_for(self, seconds: float) -> LoadTurn:
        """Keeps all callers busy for about `seconds`."""
        self._child.send(seconds)
        load = self._answer("load")
        return LoadTurn([float(time) for time in load["times"]], float(load["rate"]))
