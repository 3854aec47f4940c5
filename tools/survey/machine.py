"""Sections about the CPU itself, and about the cost of a call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import tvm

from microkernels.registry import all_microkernels
from tools.compile_times.feeds import feeds_of
from tvm_hybrid.bench.calibrate import measure_numbers
from tvm_hybrid.bench.peers.onnx_runtime import optimised_session
from tvm_hybrid.bench.peers.peers import ONNX_RUNTIME, OURS
from tvm_hybrid.report.kernel_speed import measure_kernels, measure_roof, runs_here, types_of
from tvm_hybrid.report.timing import interleave, time_calls

from .race import Racer
from .section import Case, Job
from .store import Row
from .workloads import Workload

PEAKS = {"float32": "f32", "bfloat16": "bf16", "uint8": "int8"}
VALUE = "value"
UNITS = {  # beginning of a number's name in descriptions -> unit
    "clock": "MHz",
    "fma_latency": "cycles",
    "load_rate": "vectors a cycle",
    "l2_rate": "bytes a cycle",
    "l3_rate": "bytes a us",
    "memory_rate": "bytes a us",
    "fork_us": "us",
}
CALL = Workload("matmul", "f32", (1, 16, 16), "1x16x16")


def peaks(job: Job) -> list[Case]:
    """Cases: the peak speed of this machine by type, and its bandwidth of copies in memory."""

    def peak(dtype: str) -> Iterator[Row]:
        roof = measure_roof([dtype], job.threads)
        (most,) = roof.peaks.values()
        figures = [(PEAKS[dtype], most, "GOP/s")]
        if dtype == "float32":
            figures.append(("copy in memory, read and written", roof.bandwidth, "GB/s"))
        for case, value, unit in figures:
            yield Row(case=case, threads=job.threads, unit=unit, values={VALUE: round(value, 1)})

    return [Case(PEAKS[dtype], functools.partial(peak, dtype)) for dtype in PEAKS]


def calibration(job: Job) -> list[Case]:
    """A case: all numbers that `tvm-hybrid calibrate` can measure, even if manuals have them."""

    def numbers() -> Iterator[Row]:
        for name, number in measure_numbers(job.threads).items():
            unit = next(unit for beginning, unit in UNITS.items() if name.startswith(beginning))
            counts = (1, job.threads) if isinstance(number.value, tuple) else (1,)
            for count in filter(number.at, counts):  # one thread forks nothing
                yield Row(case=name, threads=count, unit=unit, values={VALUE: number.at(count)})

    return [Case("calibrate", numbers)]


def kernels(job: Job) -> list[Case]:
    """Cases: every registered microkernel that this CPU runs, beside the peak of its types."""
    here = [kernel for kernel in all_microkernels() if runs_here(kernel)]

    def of_types(types: str) -> Iterator[Row]:
        report = measure_kernels([kernel for kernel in here if types_of(kernel) == types])
        for speed in report.kernels:
            values = {"speed": round(speed.gops, 1), "share": round(speed.share, 3)}
            yield Row(case=speed.name, dtype=types, unit="GOP/s", values=values)

    wanted = dict.fromkeys(map(types_of, here))
    return [Case(types, functools.partial(of_types, types)) for types in wanted]


def overhead(job: Job) -> list[Case]:
    """A case: the cost of a call, for a product so small that it hardly counts."""

    def call() -> Sequence[Row]:
        model = CALL.model()
        feeds = feeds_of(model)
        with TemporaryDirectory(prefix="survey-") as folder:
            path = Path(folder) / "model.onnx"
            onnx.save(model.proto, path)
            session = Racer(path, feeds).session(job.threads)
            theirs = optimised_session(str(path), job.threads)
        (x,) = map(tvm.runtime.tensor, feeds.values())
        calls = {
            f"{OURS}, Executable.run": _Call(lambda: session.executable.run(x)),
            OURS: _Call(lambda: session.run(None, feeds)),
            ONNX_RUNTIME: _Call(lambda: theirs.run(None, feeds)),
        }
        times, _ = interleave(calls, 20, 0.01)
        values = {name: round(1e6 * min(found), 3) for name, found in times.items()}
        return [Row(case=f"a call of {CALL.label}", threads=job.threads, values=values)]

    return [Case("call", call)]


class _Call:
    """A function as a contestant."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def run_for(self, seconds: float) -> list[float]:
        """Runs for about `seconds`; returns the seconds of every call."""
        return time_calls(self._call, seconds)
