"""One start of one engine in this process; `starts` calls it, each time in a fresh one.

A job is JSON: "engine", "model" and "feeds" (files), "report" (a file to write to), "threads",
"limit" (CPU seconds, then the process ends), "began" (when it was started), "counting".
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

from tools.compile_times.stage_clock import StageClock

IMPORTS, FRONT_END, REST = "Python modules", "front end", "rest of the session"
MACHINE_CODE, KEEPING, FIRST_RUN, MEASURING = (
    "machine code",
    "kept on disk",
    "first run",
    "measuring",
)


def main() -> None:
    job = json.loads(sys.argv[1])
    limit = int(job["limit"])
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    with Path(job["report"]).open("a") as output:
        clock = StageClock(output, job["began"])
        clock.begin(IMPORTS)
        {"tvm_hybrid": _ours, "onnxruntime": _onnxruntime, "openvino": _openvino}[job["engine"]](
            job, clock
        )


def _ours(job: dict[str, Any], clock: StageClock) -> None:
    import tvm_hybrid
    import tvm_hybrid.session  # noqa: F401
    from tools.compile_times import hooks

    hooks.install(clock)
    entries = hooks.Entries() if job["counting"] else None
    clock.begin(REST)
    with hooks.announced(clock):
        if entries is not None:
            entries.enable()
        session = tvm_hybrid.InferenceSession(job["model"], num_threads=job["threads"])
        one_program = "run" not in vars(session)
        _first_run(session.run, job, clock)
        if entries is not None:
            clock.counts.update(entries.counts())
    clock.end(one_program=one_program, programs=len(session.programs))


def _onnxruntime(job: dict[str, Any], clock: StageClock) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job["threads"]
    options.log_severity_level = 3
    clock.begin(REST)
    session = onnxruntime.InferenceSession(
        job["model"], options, providers=["CPUExecutionProvider"]
    )
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


def _first_run(run: Any, job: dict[str, Any], clock: StageClock) -> None:
    import numpy as np

    clock.begin(MEASURING)
    with np.load(job["feeds"]) as arrays:
        feeds = {name: arrays[name] for name in arrays.files}
    clock.begin(FIRST_RUN)
    run(None, feeds)


if __name__ == "__main__":
    main()
