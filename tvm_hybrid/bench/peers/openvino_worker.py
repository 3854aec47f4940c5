"""Worker process that runs a model through OpenVINO; see `contestants` for its job and answers.

It imports nothing of this project and is run by its path: so the Python that has OpenVINO needs
only NumPy in addition. Apart from the files, the job has "model" (an ONNX file), "threads",
"precision" (of floats: "f32" or "bf16") and "slice". If "slice" is not 0, a turn's answer has no
times of whole runs. Each time is then the mean, over the runs of a slice of this many seconds, that
convolutions and matrix products take by OpenVINO's own counters.

A job with "callers" measures throughput: "streams" share the threads, and one request per caller is
always under way. An answer then has "load": the time of every request and the rate.
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
# Counters round the times of every run down to whole microseconds.
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
        """Makes a request of a newly compiled model, with its inputs set."""
        request = self._compiled(counting).create_infer_request()
        self._fill(request)
        return request

    def queue(self, jobs: int) -> Any:
        """Makes a queue of concurrent requests of a newly compiled model, with inputs set."""
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
    """Results of the last run."""
    return [np.array(tensor.data) for tensor in request.output_tensors]


def run_times(request: Any, seconds: float) -> list[float]:
    """Runs for about `seconds`, at least once; returns the seconds of every run."""
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
    """Keeps all requests of a queue under way for about `seconds`; returns times and the rate.

    Each request is a caller that sends again when it has its result; see `contestants.LoadTurn`.
    """
    if len(queue) == 1:  # a single request needs no callback
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
    """Mean seconds of the kernels per run, in about `seconds` of runs.

    Counters give the mean of all runs since the model was compiled. So it is compiled again, and
    the first run is subtracted.
    """
    request = model.request(counting=True)
    request.infer()
    first = counted(request)
    runs = len(run_times(request, seconds))
    return (counted(request) * (runs + 1) - first) / runs + HALF_A_TICK


def counted(request: Any) -> float:
    """Mean seconds of the kernels over all runs of a request."""
    kernels = (info for info in request.get_profiling_info() if info.node_type in KERNELS)
    return sum(info.real_time.total_seconds() for info in kernels)


def serve(job: dict[str, Any], requests: TextIO, answers: TextIO) -> None:
    """Prepares the job, then answers requests until the input ends."""

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
    except Exception as error:  # any error of OpenVINO is this contestant's result
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
