"""Contestants that measure the kernels of a model alone, without reorders at its borders and calls.

A model of one convolution takes its input and gives its output channel by channel (NCHW), a layout
that fast kernels reorder on the way in and out. Such a contestant tells how long what is neither a
reorder nor a call takes in one run: of ours by the virtual machine's instrument, half a microsecond
too long; of ONNX Runtime's by its profile, whose ticks are microseconds (half a tick is added, what
cutting off costs on average). `openvino_peer.OpenVino` does the same for OpenVINO.

As the last only tells the mean of runs, so do all: a turn is cut into slices of a few runs, short
enough that another process seldom interrupts one, and gives the mean of each.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from relay_passes.ir.decisions import REORDER, Decision

from ...executable.executable import Executable
from ...report.timing import SLICE_SECONDS, ContestantError, time_calls, time_slices
from ..peers.onnx_runtime import last_line, optimised_session

# Part of the names of ONNX Runtime's operators that count as kernels.
ONNX_RUNTIME_KERNELS = ("Conv", "MatMul", "Gemm")
HALF_A_TICK = 0.5e-6


class OurKernels:
    """The kernels of a compiled model, except reorders.

    Parameters
    ----------
    executable : Executable
        The model.
    feeds : mapping
        Its inputs.

    Attributes
    ----------
    functions : frozenset of str
        The kernels in the compiled module.
    names : tuple of str
        What each computes first, and with which microkernel or schedule.
    """

    def __init__(self, executable: Executable, feeds: Mapping[str, np.ndarray]) -> None:
        self._executable, self._feeds = executable, dict(feeds)
        decisions = [d for d in executable.explain() if d.function and d.op != REORDER]
        self.functions = frozenset(decision.function for decision in decisions)
        self.names = tuple(_name(decision) for decision in decisions)
        self._runs = runs_in_slice(time_calls(lambda: executable.run(self._feeds), SLICE_SECONDS))

    def run_for(self, seconds: float) -> list[float]:
        """Mean seconds of the kernels in one run, of every slice in about `seconds`."""
        return time_slices(self._slice, seconds)

    def _slice(self) -> float:
        profile = self._executable.profile(self._feeds, self._runs)
        rows = (row for row in profile.rows if row.function in self.functions)
        return sum(row.microseconds for row in rows) * 1e-6


class OnnxRuntimeKernels:
    """The convolutions and matrix products of a model in ONNX Runtime.

    Parameters
    ----------
    model : Path
        An ONNX file.
    feeds : mapping
        Its inputs.
    threads : int
        Threads of one run.
    """

    def __init__(self, model: Path, feeds: Mapping[str, np.ndarray], threads: int) -> None:
        self._model, self._feeds, self._threads = str(model), dict(feeds), threads

    def run_for(self, seconds: float) -> list[float]:
        """Mean seconds of the kernels in one run, of every slice in about `seconds`.

        Raises
        ------
        ContestantError
            If onnxruntime is not installed, or cannot run the model.
        """
        return time_slices(self._slice, seconds)

    def _slice(self) -> float:
        with tempfile.TemporaryDirectory(prefix="tvm_hybrid-profile-") as folder:
            # A profile ends once and for all, so every slice has a session of its own.
            prefix = str(Path(folder) / "profile")
            session = optimised_session(self._model, self._threads, profile=prefix)
            try:
                session.run(None, self._feeds)
                runs = len(time_calls(lambda: session.run(None, self._feeds), SLICE_SECONDS))
                profile = Path(session.end_profiling()).read_bytes()
            except Exception as error:  # onnxruntime's exceptions have no common base
                raise ContestantError(f"ONNX Runtime: {last_line(error)}") from error
        return mean_kernel_seconds(profile, 1 + runs)


def _name(decision: Decision) -> str:
    return f"{decision.op.partition(' + ')[0]} {decision.kernel}"


def runs_in_slice(times: list[float]) -> int:
    """How many runs make a slice, from the seconds of some."""
    return max(int(SLICE_SECONDS / min(times)), 1)


def mean_kernel_seconds(profile: bytes, runs: int) -> float:
    """Mean seconds of the kernels in a run, from ONNX Runtime's profile of `runs` of them.

    The first run is left out. Until it ends, time may be needed that later runs do not need.
    """
    durations: dict[str, list[int]] = {}
    for event in json.loads(profile):
        operator = event.get("args", {}).get("op_name", "")
        if event.get("cat") == "Node" and any(name in operator for name in ONNX_RUNTIME_KERNELS):
            durations.setdefault(event["name"], []).append(event["dur"])
    if not durations or any(len(times) != runs for times in durations.values()):
        raise ContestantError("ONNX Runtime: its profile does not show every run of the model")
    return sum(sum(times[1:]) / (runs - 1) * 1e-6 + HALF_A_TICK for times in durations.values())
