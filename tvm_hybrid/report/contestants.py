"""The contestants of a benchmark: this plugin, ONNX Runtime, TVM without the plugin.

Each is prepared once, keeps its outputs for comparison, and has `run_for` (see `timing`). What
cannot be prepared raises ContestantError, and the benchmark names it and goes on without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .feeds import as_saved, save_arrays
from .timing import ContestantError, time_calls

Feeds = Mapping[str, np.ndarray]


class SessionContestant:
    """Any session with onnxruntime's interface, in this process.

    Attributes
    ----------
    outputs : list of numpy.ndarray
        Results of the first run.
    """

    def __init__(self, session: Any, feeds: Feeds) -> None:
        self._session, self._feeds = session, dict(feeds)
        self.outputs: list[np.ndarray] = session.run(None, self._feeds)

    def run_for(self, seconds: float) -> list[float]:
        """Runs for about `seconds`; returns the seconds of every run."""
        run, feeds = self._session.run, self._feeds
        return time_calls(lambda: run(None, feeds), seconds)

    def close(self) -> None:
        """Nothing to free."""


def onnx_runtime_session(model: str | bytes, threads: int, optimise: bool = True) -> Any:
    """An onnxruntime session on the CPU.

    Parameters
    ----------
    model : str or bytes
        A file's path or its content.
    threads : int
        Threads inside one operator; operators run one after the other.
    optimise : bool
        False gives the literal meaning of the model, operator by operator.

    Raises
    ------
    ContestantError
        If onnxruntime is not installed or refuses the model.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ContestantError(
            "onnxruntime is not installed; pip install 'tvm_hybrid[bench]' brings it"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if not optimise:
        level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.graph_optimization_level = level
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common base
        raise ContestantError(f"ONNX Runtime: {_last_line(error)}") from error


def onnx_runtime_contestant(model: str | bytes, feeds: Feeds, threads: int) -> SessionContestant:
    """ONNX Runtime with its default optimisations.

    Raises
    ------
    ContestantError
        If it is not installed, or cannot load or run the model.
    """
    session = onnx_runtime_session(model, threads)
    try:
        return SessionContestant(session, feeds)
    except Exception as error:
        raise ContestantError(f"ONNX Runtime: {_last_line(error)}") from error


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


class StockTvm:
    """TVM's default pipeline in a worker process.

    Parameters
    ----------
    model : Path
        An ONNX file.
    feeds : mapping
        The inputs.
    shapes : mapping or None
        As for `tvm_hybrid.compile`.
    target : str, mapping or None
        As for `tvm_hybrid.compile`.
    threads : int
        Size of TVM's thread pool.
    time_limit : float
        Seconds after which a silent worker is given up.

    Raises
    ------
    ContestantError
        If TVM cannot import, compile or run the model in time.
    """

    def __init__(
        self,
        model: Path,
        feeds: Feeds,
        shapes: Mapping[str, Any] | None,
        target: str | Mapping[str, Any] | None,
        threads: int,
        time_limit: float = 300.0,
    ) -> None:
        self._time_limit = time_limit
        self._resources = contextlib.ExitStack()
        folder = Path(
            self._resources.enter_context(tempfile.TemporaryDirectory(prefix="tvm_hybrid-stock-"))
        )
        save_arrays(folder / "feeds.npz", feeds)
        job = {
            "model": str(Path(model).resolve()),
            "shapes": shapes,
            "target": target,
            "feeds": str(folder / "feeds.npz"),
            "outputs": str(folder / "outputs.npz"),
        }
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        self._log = folder / "log"
        command = [sys.executable, "-m", f"{__package__}.stock_worker", str(folder / "job.json")]
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "TVM_NUM_THREADS": str(threads)},
            )
        try:
            self.prepare_seconds = float(self._answer("ready"))
            with np.load(folder / "outputs.npz") as arrays:
                self.outputs = [as_saved(arrays[name]) for name in arrays.files]
        except BaseException:
            self.close()
            raise

    def run_for(self, seconds: float) -> list[float]:
        """Runs for about `seconds`; returns the seconds of every run."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # reading the answer tells why
            self._process.stdin.write(f"{seconds}\n")
            self._process.stdin.flush()
        return [float(time) for time in self._answer("times")]

    def _answer(self, field: str) -> Any:
        """That field of the worker's next answer; other lines are libraries' own."""
        assert self._process.stdout is not None
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._process.kill()

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
                    raise ContestantError(f"stock TVM: {fields['error']}")
                if field in fields:
                    return fields[field]
        finally:
            timer.cancel()
        if late.is_set():
            raise ContestantError(f"stock TVM: no answer within {self._time_limit:.0f} s")
        code = self._process.wait()
        last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        raise ContestantError(f"stock TVM: worker ended with {code}: {''.join(last)}")

    def close(self) -> None:
        """Ends the worker and removes its files."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._resources.close()
