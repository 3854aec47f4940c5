"""The tuner's side of a worker process: starts it, asks it, and outlives it."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from microkernels.errors import CompileError
from tir_schedules.config import Config
from tir_schedules.machine import Machine
from tir_schedules.region import Region
from tir_schedules.template import Template

from .child_process import ChildProcess
from .measure import Effort, Measurement
from .worker import Job, Reply, Stage

logger = logging.getLogger("tvm_hybrid")

_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_THREADS_VARIABLE = "TVM_NUM_THREADS"


class WorkerProcess:
    """Measures candidates in a process of its own, started when needed, again after each death.

    A candidate that crashes, hangs, or yields something wrong is a result like any other. After a
    wrong one the process is replaced: whatever that kernel wrote elsewhere is gone with it. A
    process that somebody ended from outside (by SIGKILL, as the kernel does when memory runs out,
    SIGTERM, SIGINT or SIGHUP) is replaced too, and its candidate measured once more; if that one
    is ended as well, it is taken for the candidate's doing.

    Parameters
    ----------
    machine : Machine
        ISA and threads.
    target : str
        The TVM target as JSON.
    timeout : float
        Seconds that one candidate may take, all stages together.
    footprint_bytes : int
        Bytes of all constants of the model; decides how cold the caches are kept.
    seed : int
        For the arguments of the kernels.
    cpu : int or None
        Where serial kernels are measured; None: on the last CPU that this process may use, because
        the first ones serve most interrupts. Kernels of several threads run on all that it may use.
    """

    def __init__(
        self,
        machine: Machine,
        target: str,
        timeout: float = 30.0,
        footprint_bytes: int = 0,
        seed: int = 0,
        cpu: int | None = None,
    ) -> None:
        self.machine, self.target, self.timeout = machine, target, timeout
        self.footprint_bytes, self.seed = footprint_bytes, seed
        cpus = ""
        if machine.threads == 1:
            cpus = str(max(os.sched_getaffinity(0)) if cpu is None else cpu)
        self._child = ChildProcess(
            f"{__package__}.worker", [cpus], {_THREADS_VARIABLE: str(machine.threads)}
        )

    @property
    def pid(self) -> int | None:
        """The process's id while it lives."""
        return self._child.pid

    def measure(
        self,
        region: Region,
        template: Template[Any],
        configs: Sequence[Config],
        baseline: Config | None,
        effort: Effort,
    ) -> Iterator[tuple[Config, Measurement]]:
        """Each candidate with what came of it, in the order given; see `Measurer.measure`.

        If `effort` names the best so far, what is found becomes the best for those that follow.

        Raises
        ------
        CompileError
            If the worker cannot start, or cannot measure any candidate of this region.
        """
        for config in configs:
            job = Job(
                region=region,
                module=template.build.__module__,
                config=config.to_dict(),
                baseline=baseline.to_dict() if baseline is not None else None,
                isa=self.machine.isa.name,
                target=self.target,
                threads=self.machine.threads,
                footprint_bytes=min(self.footprint_bytes, 2 * self.machine.l3_bytes),
                effort=effort,
                seed=self.seed,
            )
            try:
                measured = self._measure(job)
            except BaseException:
                self.close()
                raise
            effort = with_best(effort, measured)
            yield config, measured

    def _measure(self, job: Job) -> Measurement:
        ended = self._attempt(job)
        if isinstance(ended, _Ended) and ended.from_outside:
            logger.info("the measuring process %s; the candidate is tried again", ended.how)
            ended = self._attempt(job)
        if isinstance(ended, _Ended):
            return ended.measurement()
        if ended.status == "wrong_result":
            self.close()
        return ended

    def _attempt(self, job: Job) -> Measurement | _Ended:
        self._child.ask(job)
        stage, end = "prepare", time.monotonic() + self.timeout
        while True:
            try:
                line = self._child.answer(end - time.monotonic())
            except TimeoutError:
                self.close()
                return Measurement(
                    status="timeout", error=f"not done after {self.timeout:g} s, in stage {stage!r}"
                )
            if line is None:
                code, how = self._child.ended()
                return _Ended(stage, how, code)
            message = msgspec.json.decode(line, type=Stage | Reply)
            if isinstance(message, Stage):
                stage = message.stage
            elif message.measurement is None:
                raise CompileError(f"cannot measure {job.region.key}: {message.fatal}")
            else:
                return message.measurement

    def close(self) -> None:
        """Ends the worker, whatever it is doing."""
        self._child.close()

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Ended(NamedTuple):
    """The worker's death."""

    stage: str
    how: str
    code: int

    @property
    def from_outside(self) -> bool:
        """Whether no candidate does that to itself."""
        return -self.code in _OUTSIDE

    def measurement(self) -> Measurement:
        """What it says about the candidate."""
        building = self.stage in ("prepare", "compile")
        return Measurement(
            status="compile_error" if building else "runtime_error",
            error=f"the worker {self.how} in stage {self.stage!r}",
        )


def with_best(effort: Effort, measured: Measurement) -> Effort:
    """The effort for the candidates after this one."""
    ratio = measured.ratio
    if effort.best_ratio is None or ratio is None or ratio >= effort.best_ratio:
        return effort
    return msgspec.structs.replace(effort, best_ratio=ratio)
