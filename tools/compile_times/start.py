"""One start of one engine in this process; `starts` runs each start in a new process.

It imports nothing slow before it measures, and also runs in a Python that has only another engine.
Its job, as JSON, has "engine", "model" and "feeds" (files), "report" (a file to write to),
"threads", "limit" (CPU seconds, after which the process ends), "began" (when it was started), and
for "counting" a "target".
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.compile_times.stage_clock import StageClock

MODULES, FRONT_END, REST = "Python modules", "front end", "rest of the session"
MACHINE_CODE, KEEPING, FIRST_RUN = "machine code", "kept on disk", "first run"
MEASURING = "measuring"
"""A stage that does not count."""

Feeds = dict[str, Any]


def main() -> None:
    job = json.loads(sys.argv[1])
    limit = int(job["limit"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
    with Path(job["report"]).open("a") as output:
        clock = StageClock(output, job["began"])
        clock.begin(MODULES)
        ENGINES[job["engine"]](job, clock)


def _ours(job: dict[str, Any], clock: StageClock) -> None:
    """Measures a session and its first run."""
    import tvm_hybrid
    from tools.compile_times import hooks

    make = tvm_hybrid.InferenceSession  # this imports the modules it needs
    hooks.install(clock)
    clock.begin(REST)
    with hooks.announced(clock):
        session = make(job["model"], num_threads=job["threads"])
        one_program = "run" not in vars(session)
        _first_run(session.run, job, clock)
    clock.end(one_program=one_program)


def _early(job: dict[str, Any], clock: StageClock) -> None:
    """Measures a session that NumPy answers for, and its first run; then abandons compilation."""
    from tvm_hybrid import InferenceSession

    clock.begin(REST)
    session = InferenceSession(job["model"], num_threads=job["threads"], start="fast")
    _first_run(session.run, job, clock)
    clock.end()
    os._exit(0)


def _loading(job: dict[str, Any], clock: StageClock) -> None:
    """Measures a session whose program is in the cache; the compiler need not be imported."""
    from tvm_hybrid import InferenceSession

    clock.begin(REST)
    session = InferenceSession(job["model"], num_threads=job["threads"])
    _first_run(session.run, job, clock)
    clock.end()


def _counting(job: dict[str, Any], clock: StageClock) -> None:
    """Counts while compiling what a session compiles, for a target that may be another CPU."""
    from microkernels.machines.description import shipped_path
    from tools.compile_times import hooks
    from tvm_hybrid.errors import InputValueError
    from tvm_hybrid.options import CompileOptions
    from tvm_hybrid.session.model_programs import DynamicSession, ModelPrograms
    from tvm_hybrid.session.progress import Progress

    hooks.install(clock)
    target = job["target"]
    options = CompileOptions(
        target=target,
        machine=None if target is None else shipped_path(target),
        num_threads=job["threads"],
        cache=False,
    )
    feeds = _feeds(job, clock)
    clock.begin(REST)
    entries = hooks.Entries()
    with hooks.announced(clock), entries:
        silent = Progress(False, job["model"], True)
        programs = ModelPrograms(job["model"], options, silent)
        found = programs.for_all_sizes(None, None)
        if isinstance(found, DynamicSession):
            shapes = {name: array.shape for name, array in feeds.items()}
            parameters = found.parameters
            try:
                programs.for_sizes(shapes, {name: feeds[name] for name in parameters})
            except InputValueError as error:  # sessions, too, learn of parameters in this way
                parameters = (*parameters, *error.inputs)
                programs.for_sizes(shapes, {name: feeds[name] for name in parameters})
    clock.counts.update(entries.counts())
    clock.end(one_program=not isinstance(found, DynamicSession))


def _onnxruntime(job: dict[str, Any], clock: StageClock) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job["threads"]
    options.log_severity_level = 3
    clock.begin(REST)
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(job["model"], options, providers=providers)
    _first_run(session.run, job, clock)
    clock.end()


def _openvino(job: dict[str, Any], clock: StageClock) -> None:
    import openvino

    clock.begin(REST)
    core = openvino.Core()
    options = {"INFERENCE_NUM_THREADS": job["threads"], "PERFORMANCE_HINT": "LATENCY"}
    compiled = core.compile_model(core.read_model(job["model"]), "CPU", options)
    _first_run(lambda _, feeds: compiled(feeds), job, clock)
    clock.end()


def _feeds(job: dict[str, Any], clock: StageClock) -> Feeds:
    """The inputs of the first run."""
    with clock.stage(MEASURING):
        import numpy as np

        with np.load(job["feeds"]) as arrays:
            return {name: arrays[name] for name in arrays.files}


def _first_run(
    run: Callable[[None, Feeds], object], job: dict[str, Any], clock: StageClock
) -> None:
    feeds = _feeds(job, clock)
    clock.begin(FIRST_RUN)
    run(None, feeds)


ENGINES = {
    "tvm_hybrid": _ours,
    "early": _early,
    "loading": _loading,
    "counting": _counting,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}

if __name__ == "__main__":
    main()
