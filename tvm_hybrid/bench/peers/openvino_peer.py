"""OpenVINO as a contestant: in a worker, with a Python of its own if need be.

It is optional: without a Python that has it, benchmarks say so and continue without it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...report.timing import SLICE_SECONDS, ContestantError
from ..feeds import LoadTurn
from .peers import PYTHON_VARIABLE, openvino_python
from .worker_process import WorkerContestant

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
        try:
            super().__init__(
                "OpenVINO",
                [program, "-c", _RUN, str(_WORKER)],
                {
                    "model": str(Path(model).resolve()),
                    "threads": threads,
                    "precision": precision,
                    "slice": SLICE_SECONDS if kernels else 0.0,
                    "streams": streams,
                    "callers": callers,
                },
                feeds,
                {},
            )
        except ContestantError as error:
            if not isinstance(error.__cause__, OSError):
                openvino_version(program)  # says how to get it, if that is what is wrong
            raise

    def load_for(self, seconds: float) -> LoadTurn:
        """Keeps all callers' requests under way for about `seconds`."""
        self._child.send(seconds)
        load = self._answer("load")
        return LoadTurn([float(time) for time in load["times"]], float(load["rate"]))
