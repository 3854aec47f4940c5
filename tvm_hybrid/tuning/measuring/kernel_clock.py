"""KernelClock: how long the kernels of a lowered module take, each alone, in a process of its own.

Regions have tuning records; other kernels of a model, such as conversions between layouts, have
none. Here all kernels are timed in the same way, as they are compiled, so that their sum compares
two programs of one model. A kernel of both programs is timed once, and does not add to the
difference.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable
from typing import Protocol

import msgspec
import tvm

from relay_passes.pipeline_options import PipelineOptions

from .child_process import ChildProcess
from .kernel_clock_worker import KernelJob, KernelTime
from .model_race import ProgramKernel

logger = logging.getLogger("tvm_hybrid")

CALL_US = 0.3
"""What the virtual machine takes for one more kernel."""
TIMEOUT = 30.0
"""Seconds that one kernel may take, its compilation included."""


class Clock(Protocol):
    """Whoever knows how long kernels take."""

    def microseconds(self, kernel: ProgramKernel) -> float:
        """One call; infinite if it cannot be measured."""


class KernelClock:
    """Times kernels in a child process, each once.

    Parameters
    ----------
    options : PipelineOptions
        Target and threads.
    footprint_bytes : int
        Bytes of all constants of the model; decides how cold the caches are kept.
    """

    def __init__(self, options: PipelineOptions, footprint_bytes: int = 0) -> None:
        self._target, self._threads = str(options.target), options.threads
        self._footprint = min(footprint_bytes, 2 * options.machine.l3_bytes)
        self._known: dict[int, float] = {}
        cpus = str(max(os.sched_getaffinity(0))) if options.threads == 1 else ""
        self._child = ChildProcess.of_module(
            f"{__package__}.kernel_clock_worker", [cpus], {"TVM_NUM_THREADS": str(options.threads)}
        )

    def microseconds(self, kernel: ProgramKernel) -> float:
        """One call; infinite if it crashes, hangs or cannot be compiled."""
        if kernel.key not in self._known:
            found = self._ask(kernel)
            if found.microseconds is None:
                logger.warning("a kernel cannot be timed: %s", found.error)
            us = found.microseconds
            self._known[kernel.key] = math.inf if us is None else us + CALL_US
        return self._known[kernel.key]

    def _ask(self, kernel: ProgramKernel) -> KernelTime:
        job = KernelJob(
            function=str(tvm.ir.save_json(kernel.function)),
            constants=kernel.constants,
            target=self._target,
            threads=self._threads,
            footprint_bytes=self._footprint,
        )
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

    def __enter__(self) -> KernelClock:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def total_us(clock: Clock, kernels: Iterable[ProgramKernel]) -> float:
    """One run of all kernels."""
    return sum(kernel.calls * clock.microseconds(kernel) for kernel in kernels)
