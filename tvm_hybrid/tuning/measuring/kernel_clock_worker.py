"""The process that times kernels of lowered modules; `kernel_clock` starts it.

Unlike a candidate of a region, a kernel of a lowered module has no reference to be checked against:
it is what the compiler makes of a model anyway. Floats are a half and integers 0, which every
kernel accepts: 0 is a valid index.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys

import msgspec
import numpy as np

from ..verification.arguments import element_type
from .case import Kernel, Rotation, time_in_turns
from .child_process import Answers, die_with
from .sampling import Effort

EFFORT = Effort(samples=15, seconds=0.3, accuracy=0.01)


class KernelJob(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel to time.

    Attributes
    ----------
    function : str
        The PrimFunc, as TVM writes it in JSON.
    constants : tuple of int
        Arguments that are read from `footprint_bytes` of memory in turn.
    target : str
        The TVM target as JSON.
    threads : int
        Threads the kernel uses.
    footprint_bytes : int
        Bytes of all constants of the model.
    """

    function: str
    constants: tuple[int, ...]
    target: str
    threads: int
    footprint_bytes: int


class KernelTime(msgspec.Struct, frozen=True, kw_only=True):
    """Median microseconds of one call, or why there are none."""

    microseconds: float | None = None
    error: str = ""


def time_kernel(job: KernelJob) -> KernelTime:
    """Compiles and times one kernel in this process."""
    from ...runtime.threads import use_threads

    use_threads(job.threads)
    try:
        times, _ = time_in_turns(_compiled(job), None, EFFORT, job.threads)
    except Exception as error:  # whatever a kernel does is a result
        return KernelTime(error=f"{type(error).__name__}: {error}"[:500])
    found = statistics.median(times)
    return KernelTime(microseconds=found) if math.isfinite(found) else KernelTime(error="no time")


def _compiled(job: KernelJob) -> Kernel:
    import tvm

    from relay_passes.lower.codegen import kernel_context
    from relay_passes.lower.launch_few import made_for, pipeline_for

    function = tvm.ir.load_json(job.function)
    named = made_for(function.with_attr("global_symbol", "kernel"), job.threads)
    target, pipeline = tvm.target.Target(json.loads(job.target)), pipeline_for(job.threads)
    with kernel_context():
        compiled = tvm.compile(named, target, tir_pipeline=pipeline)["kernel"]
    arrays = []
    for parameter in function.params:
        shape = tuple(int(extent) for extent in parameter.shape)
        dtype = element_type(str(parameter.dtype))
        arrays.append(np.full(shape, 0 if dtype.kind in "iub" else 0.5).astype(dtype))
    constants = {i: arrays[i] for i in job.constants}
    *inputs, output = arrays
    rotation = Rotation(job.footprint_bytes)
    return Kernel(compiled, inputs, constants, output, rotation, Rotation(0))


def main() -> None:
    """Answers jobs until standard input ends."""
    die_with(int(sys.argv[1]))
    if sys.argv[2]:
        os.sched_setaffinity(0, map(int, sys.argv[2].split(",")))
    answer = Answers()
    answer(KernelTime())  # ready
    for line in sys.stdin.buffer:
        answer(time_kernel(msgspec.json.decode(line, type=KernelJob)))


if __name__ == "__main__":
    main()
