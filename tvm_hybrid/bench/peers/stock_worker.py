"""Worker process that runs a model through TVM alone, as `tvm.compile` does without this plugin.

It is a separate process because its compilation may take very long or crash in LLVM, and because
TVM's thread pool belongs to a process. It imports with our frontend, since stock TVM takes fewer
models, and then uses TVM's default pipeline.

    python -m tvm_hybrid.bench.peers.stock_worker JOB.json

`contestants.StockTvm` writes the job; see `contestants.WorkerContestant` for the answers. A request
is a line with the number of seconds to run for. The worker ends with its input.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import tvm
from tvm import relax

from ...frontend import import_onnx
from ...report.timing import time_calls
from ...targets.resolve import resolve_target
from ..feeds import as_saved


def _prepare(job: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Compiles `main` and makes its arguments."""
    given = (job["shapes"] or {}).items()
    shapes = {name: tuple(each) if isinstance(each, list) else each for name, each in given}
    with np.load(job["feeds"]) as arrays:
        values = {name: as_saved(arrays[name]) for name in job["known"]}
        imported = import_onnx(job["model"], shapes or None, values)
        feeds = [tvm.runtime.tensor(as_saved(arrays[info.name])) for info in imported.inputs]
    executable = tvm.compile(imported.mod, target=resolve_target(job["target"]))
    return relax.VirtualMachine(executable, tvm.cpu())["main"], feeds


def serve(job: dict[str, Any], requests: TextIO, answers: TextIO) -> None:
    """Prepares the job, then answers requests until the input ends."""

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    start = time.perf_counter()
    try:
        main, feeds = _prepare(job)
        result = main(*feeds)  # one tensor or a tuple of them
        tensors = [result] if hasattr(result, "numpy") else list(result)
        outputs = [tensor.numpy() for tensor in tensors]
    except Exception as error:  # any error of TVM is this contestant's result
        lines = str(error).strip().splitlines()
        answer(error=f"{type(error).__name__}: {lines[-1] if lines else ''}")
        return
    np.savez(job["outputs"], *outputs)
    answer(ready=time.perf_counter() - start)
    for line in requests:
        answer(times=time_calls(lambda: main(*feeds), float(line)))


if __name__ == "__main__":
    serve(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), sys.stdin, sys.stdout)
