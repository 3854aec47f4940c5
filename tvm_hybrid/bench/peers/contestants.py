"""The contestants of a benchmark: this plugin, ONNX Runtime, TVM without the plugin.

Each is prepared once, keeps its outputs for comparison, and has `run_for` (see `timing`). A
contestant that cannot be prepared raises ContestantError; the benchmark says so and continues
without it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tvm.target import Target

from ...report.timing import ContestantError, time_calls
from ...targets.resolve import TargetLike
from .onnx_runtime import last_line, optimised_session
from .worker_process import Feeds, WorkerContestant


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


def onnx_runtime_contestant(model: str | bytes, feeds: Feeds, threads: int) -> SessionContestant:
    """ONNX Runtime with its default optimisations.

    Raises
    ------
    ContestantError
        If it is not installed, or cannot load or run the model.
    """
    session = optimised_session(model, threads)
    try:
        return SessionContestant(session, feeds)
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
    shapes : mapping or None
        See `CompileOptions`.
    target : str, mapping, tvm.target.Target or None
        See `CompileOptions`.
    threads : int
        Size of TVM's thread pool.
    time_limit : float
        Seconds after which a silent worker is given up.
    known : sequence of str
        Inputs whose values it may know when it compiles.

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
        target: TargetLike,
        threads: int,
        time_limit: float = 300.0,
        known: Sequence[str] = (),
    ) -> None:
        super().__init__(
            "stock TVM",
            [sys.executable, "-m", f"{__package__}.stock_worker"],
            {
                "model": str(Path(model).resolve()),
                "shapes": shapes,
                "known": known,
                "target": str(target) if isinstance(target, Target) else target,
            },
            feeds,
            {"TVM_NUM_THREADS": str(threads)},
            time_limit,
        )
