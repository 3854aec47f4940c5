"""KernelClock: times each kernel of a lowered module alone, in a child process.

Regions have tuning records; other kernels of a model, such as conversions between layouts, have
none. Here all kernels are timed in one way, as they are compiled, so that their sums compare two
programs of one model. A kernel that is in both programs is timed once, so it does not add to the
difference.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np
import tvm

from microkernels.base.logs import logger
from relay_passes.pipeline_options import PipelineOptions

from ...runtime.threads import use_threads
from ..verification.bounds import element_type
from .case import Kernel, Rotation, compiled, time_in_turns
from .child_process import Answers, ChildProcess, Closing, die_with
from .sampling import Effort

if TYPE_CHECKING:  # the child process, which runs this file, starts faster without it
    from .model_race import ProgramKernel


CALL_US = 0.3
"""Overhead of the virtual machine for each kernel."""
TIMEOUT = 30.0
"""Most seconds for one kernel, its compilation included."""


class Clock(Protocol):
    """Knows how long kernels take."""

    def microseconds(self, kernel: ProgramKernel) -> float:
        """Time of one call; infinite if it cannot be measured."""


class KernelClock(Closing):
    """Times kernels in a child process, each kernel once.

    Parameters
    ----------
    options : PipelineOptions
        Gives the target and the number of threads.
    footprint_bytes : int
        Bytes of all constants of the model; decides how cold the caches are kept.
    """

    def __init__(self, options: PipelineOptions, footprint_bytes: int = 0) -> None:
        self._target, self._threads = str(options.target), options.threads
        self._footprint = min(footprint_bytes, 2 * options.machine.l3_bytes)
        self._known: dict[int, float] = {}
        cpus = str(max(os.sched_getaffinity(0))) if options.threads == 1 else ""
        self._child = ChildProcess.of_module(
            f"{__package__}.kernel_clock", [cpus], {"TVM_NUM_THREADS": str(options.threads)}
        )

    def microseconds(self, kernel: ProgramKernel) -> float:
        """Time of one call; infinite if the kernel crashes, hangs or cannot be compiled."""
        if kernel.key not in self._known:
            found = self._ask(kernel)
            us = math.inf if found.microseconds is None else found.microseconds + CALL_US
            if found.microseconds is None:
                logger.warning("a kernel cannot be timed: %s", found.error)
            self._known[kernel.key] = us
        return self._known[kernel.key]

    def _ask(self, kernel: ProgramKernel) -> KernelTime:
        function = str(tvm.ir.save_json(kernel.function))
        setting = self._target, self._threads, self._footprint
        job = KernelJob(function, kernel.constants, *setting)
        try:
            self._child.ask(job)
            line = self._child.answer(TIMEOUT)
        except TimeoutError:
            self.close()
            return KernelTime(error=f"not done after {TIMEOUT:g} s")
        except BaseException:
            self.close()
            raise
        if line is None:
            return KernelTime(error=f"the measuring process {self._child.ended()[1]}")
        return msgspec.json.decode(line, type=KernelTime)

    def close(self) -> None:
        """Ends the child process."""
        self._child.close()


def total_us(clock: Clock, kernels: Iterable[ProgramKernel]) -> float:
    """Time of all calls of all kernels in one run."""
    return sum(kernel.calls * clock.microseconds(kernel) for kernel in kernels)


# The child process of `KernelClock`, which times kernels of lowered modules.
#
# Unlike a candidate of a region, such a kernel has no reference result to be checked against: it is
# what the compiler makes of a model anyway. Floats are 0.5 and integers 0, a valid index for every
# kernel.


EFFORT = Effort(samples=15, seconds=0.3, accuracy=0.01)


class KernelJob(msgspec.Struct, frozen=True):
    """A kernel to time.

    Attributes
    ----------
    function : str
        The PrimFunc in TVM's JSON.
    constants : tuple of int
        Numbers of the arguments that are read from `footprint_bytes` of memory in turn.
    target : str
        TVM target as JSON.
    threads : int
        Threads that the kernel uses.
    footprint_bytes : int
        Bytes of all constants of the model.
    """

    function: str
    constants: tuple[int, ...]
    target: str
    threads: int
    footprint_bytes: int


class KernelTime(msgspec.Struct, frozen=True, kw_only=True):
    """Median microseconds of one call, or an error."""

    microseconds: float | None = None
    error: str = ""


def time_kernel(job: KernelJob) -> KernelTime:
    """Compiles and times one kernel in this process."""
    use_threads(job.threads)
    try:
        times, _ = time_in_turns(_compiled(job), None, EFFORT, job.threads)
    except Exception as error:  # any failure of a kernel is a result
        return KernelTime(error=f"{type(error).__name__}: {error}"[:500])
    found = statistics.median(times)
    return KernelTime(microseconds=found) if math.isfinite(found) else KernelTime(error="no time")


def _compiled(job: KernelJob) -> Kernel:
    function = tvm.ir.load_json(job.function)
    target = tvm.target.Target(json.loads(job.target))
    code = compiled(function, "kernel", job.threads, target)["kernel"]
    arrays = []
    for parameter in function.params:
        shape = tuple(int(extent) for extent in parameter.shape)
        dtype = element_type(str(parameter.dtype))
        arrays.append(np.full(shape, 0 if dtype.kind in "iub" else 0.5).astype(dtype))
    constants = {i: arrays[i] for i in job.constants}
    *inputs, output = arrays
    rotation = Rotation(job.footprint_bytes)
    return Kernel(code, inputs, constants, output, rotation, Rotation(0))


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
