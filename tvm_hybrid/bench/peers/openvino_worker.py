"""Worker process that runs a model through OpenVINO; see `contestants` for its job and answers.

It imports nothing of this project, and is run by its path: the Python that has OpenVINO needs only
NumPy besides. The job has, apart from the files, "model" (an ONNX file), "threads", "precision"
("f32" or "bf16", of floats) and "slice". If that is not 0, a turn's answer is not the times of
whole runs: each is the mean time, by OpenVINO's own counters, that convolutions and matrix products
take in the runs of a slice of so many seconds.

A job with "callers" is about throughput: "streams" share the threads, and as many requests as there
are callers are always under way. An answer then has "load": the time of every request and the rate.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import openvino

# Types of nodes that count as kernels.
KERNELS = ("Convolution", "GroupConvolution", "MatMul", "FullyConnected")
# Counters drop fractions of a microsecond in every run.
HALF_A_TICK = 0.5e-6


class Model:
    """A model and its inputs."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._core = openvino.Core()
        self._model = self._core.read_model(job["model"])
        callers = job.get("callers", 0)
        self._options = {
            "INFERENCE_NUM_THREADS": job["threads"],
            "NUM_STREAMS": job["streams"] if callers else 1,
            "PERFORMANCE_HINT": "THROUGHPUT" if callers else "LATENCY",
            "ENABLE_CPU_PINNING": False,
            "INFERENCE_PRECISION_HINT": job["precision"],
        }
        with np.load(job["feeds"]) as arrays:
            self._feeds = {name: arrays[name] for name in arrays.files}

    def request(self, counting: bool = False) -> Any:
        """A request of a freshly compiled model with its inputs set."""
        request = self._compiled(counting).create_infer_request()
        self._fill(request)
        return request

    def queue(self, jobs: int) -> Any:
        """Requests that run at once, of a freshly compiled model, with their inputs set."""
        queue = openvino.AsyncInferQueue(self._compiled(False), jobs)
        for request in queue:
            self._fill(request)
        return queue

    def _compiled(self, counting: bool) -> Any:
        options = {**self._options, "PERF_COUNT": counting}
        return self._core.compile_model(self._model, "CPU", options)

    def _fill(self, request: Any) -> None:
        for name, array in self._feeds.items():
            tensor = request.get_tensor(name)
            tensor.shape = array.shape
            tensor.data[...] = array.view(tensor.data.dtype)


def outputs_of(request: Any) -> list[np.ndarray]:
    """The results of the last run."""
    return [np.array(tensor.data) for tensor in request.output_tensors]


def run_times(request: Any, seconds: float) -> list[float]:
    """Runs for about `seconds`, at least once; the seconds of every run."""
    times = []
    start = time.perf_counter()
    end = start + seconds
    while True:
        request.infer()
        now = time.perf_counter()
        times.append(now - start)
        if now >= end:
            return times
        start = now


def loaded(queue: Any, seconds: float) -> dict[str, Any]:
    """All requests of a queue under way for about `seconds`: their times and the rate.

    Each request is a caller that sends again when it has its result; see `contestants.LoadTurn`.
    """
    if len(queue) == 1:  # nobody has to be told
        alone = run_times(queue[0], seconds)
        return {"times": alone, "rate": len(alone) / sum(alone)}
    times: dict[int, list[float]] = {}
    last: dict[int, float] = {}

    def done(_request: Any, sent: tuple[int, float]) -> None:
        caller, start = sent
        last[caller] = time.perf_counter()
        times.setdefault(caller, []).append(last[caller] - start)

    queue.set_callback(done)
    first: dict[int, float] = {}
    start = time.perf_counter()
    while time.perf_counter() < start + seconds or len(first) < len(queue):
        caller = queue.get_idle_request_id()  # waits for one that is free
        now = time.perf_counter()
        first.setdefault(caller, now)
        queue.start_async(userdata=(caller, now))
    queue.wait_all()
    rate = sum(len(each) / (last[caller] - first[caller]) for caller, each in times.items())
    return {"times": [each for some in times.values() for each in some], "rate": rate}


def kernel_time(model: Model, seconds: float) -> float:
    """Mean seconds that kernels take in one run, of about `seconds` of runs.

    Counters give the mean of all runs since the model was compiled, so it is compiled anew, and the
    first run is taken out.
    """
    request = model.request(counting=True)
    request.infer()
    first = counted(request)
    runs = len(run_times(request, seconds))
    return (counted(request) * (runs + 1) - first) / runs + HALF_A_TICK


def counted(request: Any) -> float:
    """Mean seconds of the kernels in all runs of a request."""
    kernels = (info for info in request.get_profiling_info() if info.node_type in KERNELS)
    return sum(info.real_time.total_seconds() for info in kernels)


def serve(job: dict[str, Any], requests: TextIO, answers: TextIO) -> None:
    """Prepares the job, then runs it as requested until there is no request."""

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    start = time.perf_counter()
    try:
        model = Model(job)
        request = model.request()
        request.infer()
        np.savez(job["outputs"], *outputs_of(request))
        queue = model.queue(job["callers"]) if job.get("callers") else None
    except Exception as error:  # whatever OpenVINO raises is this contestant's result
        lines = str(error).strip().splitlines()
        answer(error=f"{type(error).__name__}: {lines[-1] if lines else ''}")
        return
    answer(ready=time.perf_counter() - start)
    for line in requests:
        seconds = float(line)
        if queue is not None:
            answer(load=loaded(queue, seconds))
        elif job["slice"]:
            end = time.perf_counter() + seconds
            times = [kernel_time(model, job["slice"])]
            while time.perf_counter() < end:
                times.append(kernel_time(model, job["slice"]))
            answer(times=times)
        else:
            answer(times=run_times(request, seconds))


if __name__ == "__main__":
    serve(json.loads(Path(sys.argv[-1]).read_text(encoding="utf-8")), sys.stdin, sys.stdout)
