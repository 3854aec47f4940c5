"""The tuner's side of worker processes: starts them, asks them, and outlives them.

Serial kernels are measured on one CPU while the next is built on another:

    process 1   build A | measure A | build C ...   | measure C
    process 2   build B ............ | measure B    | build D
"""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import msgspec

from microkernels.errors import ConfigError
from tir_schedules.core.config import Config
from tir_schedules.core.machine import Machine
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template

from ...threads import same_core
from .case import Case
from .child_process import ChildProcess, wait_for
from .measure import Effort, Measurement, joined
from .worker import Job
from .worker_process import Death, WorkerProcess

logger = logging.getLogger("tvm_hybrid")

MANY = 8
"""Candidates for which a second process is worth its start."""

_THREADS_VARIABLE = "TVM_NUM_THREADS"


class LocalMeasurer:
    """Measures candidates in processes of their own, started when needed, again after each death.

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
        Seconds that building and checking one candidate may take, and measuring it as many again.
    footprint_bytes : int
        Bytes of all constants of the model; decides how cold the caches are kept.
    seed : int
        For the arguments of the kernels.
    cpu : int or None
        Where serial kernels are measured; None: on the last CPU that this process may use, because
        the first ones serve most interrupts. Kernels of several threads run on all that it may use.
    builders : sequence of int or None
        CPUs on which a second process builds serial kernels while one is measured; empty: there is
        no second process. None: all that this process may use, but for those of the core that
        measures.

    Raises
    ------
    ConfigError
        If there is no such CPU.
    """

    def __init__(
        self,
        machine: Machine,
        target: str,
        timeout: float = 30.0,
        footprint_bytes: int = 0,
        seed: int = 0,
        cpu: int | None = None,
        builders: Sequence[int] | None = None,
    ) -> None:
        self.machine, self.target, self.timeout = machine, target, timeout
        self.footprint_bytes, self.seed = footprint_bytes, seed
        measuring, building = "", ""
        if machine.threads == 1:
            measuring, building = _cpus(cpu, builders)
        workers = 2 if building else 1
        arguments = [measuring, building or measuring]
        environment = {_THREADS_VARIABLE: str(machine.threads)}
        self._workers = [
            WorkerProcess(ChildProcess(f"{__package__}.worker", arguments, environment))
            for _ in range(workers)
        ]

    @property
    def pid(self) -> int | None:
        """The first process's id while it lives."""
        return self._workers[0].child.pid

    def measure(
        self,
        region: Region,
        template: Template[Any],
        configs: Sequence[Config],
        baseline: Config | None,
        effort: Effort,
    ) -> Generator[tuple[Config, Measurement], None, None]:
        """Each candidate with what came of it, in order of completion; see `Measurer.measure`.

        If `effort` names the best so far, what is found becomes the best for those that follow.

        Raises
        ------
        CompileError
            If no process can be started, or none can measure any candidate of this region.
        """
        case = Case.of(region, template, self.machine, self.target, self.footprint_bytes, self.seed)
        if effort.processes == 1:
            jobs = [Job.of(case, each, baseline, effort) for each in configs]
            yield from self._measure(configs, jobs, effort)
            return
        share = msgspec.structs.replace(
            effort,
            processes=1,
            samples=math.ceil(effort.samples / effort.processes),
            seconds=effort.seconds / effort.processes,
        )
        for config in configs:
            job = Job.of(case, config, baseline, share)
            parts: list[Measurement] = []
            while len(parts) < effort.processes and all(part.status == "ok" for part in parts):
                self.close()
                ((_, found),) = self._measure([config], [job], share)
                parts.append(found)
            yield config, joined(parts)

    def _measure(
        self, configs: Sequence[Config], jobs: Sequence[Job], effort: Effort
    ) -> Generator[tuple[Config, Measurement], None, None]:
        """The same, of the candidates' jobs, in the processes that there are."""
        todo = deque(range(len(configs)))
        tried: set[int] = set()

        def go_on() -> None:
            """Gives idle processes something to do."""
            for worker in self._workers:
                if worker.job is None and todo and self._joins(worker, len(todo)):
                    number = todo.popleft()
                    job = msgspec.structs.replace(jobs[number], effort=effort)
                    worker.give(number, job, self.timeout)
            self._pass_turn()

        try:
            go_on()
            while any(worker.job for worker in self._workers):
                for worker, outcome in self._outcomes():
                    if isinstance(outcome, Death):
                        if outcome.from_outside and worker.number not in tried:
                            logger.info("a worker %s; its candidate is tried again", outcome.how)
                            tried.add(worker.number)
                            todo.appendleft(worker.number)
                            continue
                        outcome = outcome.measurement()
                    effort = with_best(effort, outcome)
                    number = worker.number
                    if len(self._workers) > 1:
                        go_on()  # on other CPUs than whoever looks at this
                    yield configs[number], outcome
                go_on()
        finally:
            for worker in self._workers:
                if worker.job is not None:
                    worker.close()

    def _joins(self, worker: WorkerProcess, candidates: int) -> bool:
        return worker is self._workers[0] or worker.child.pid is not None or candidates >= MANY

    def _outcomes(self) -> Iterator[tuple[WorkerProcess, Measurement | Death]]:
        """The candidates that are done; waits for something to happen."""
        busy = [worker for worker in self._workers if worker.job is not None]
        limits = [left for worker in busy if (left := worker.seconds_left) is not None]
        wait_for([worker.child for worker in busy], min(limits, default=None))
        for worker in busy:
            outcome = worker.outcome()
            if outcome is not None:
                yield worker, outcome
        self._pass_turn()

    def _pass_turn(self) -> None:
        """One process measures at a time."""
        if not any(
            worker.job is not None and worker.stage == "measure" for worker in self._workers
        ):
            for worker in self._workers:
                if worker.job is not None and worker.stage == "wait":
                    worker.take_turn()
                    return

    def close(self) -> None:
        """Ends the workers, whatever they are doing."""
        for worker in self._workers:
            worker.close()

    def __enter__(self) -> LocalMeasurer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _cpus(cpu: int | None, builders: Sequence[int] | None) -> tuple[str, str]:
    """Where to measure and where to build meanwhile, as lists of numbers."""
    allowed = sorted(os.sched_getaffinity(0))
    measuring = allowed[-1] if cpu is None else cpu
    if builders is None:
        builders = [other for other in allowed if not same_core(measuring, other)]
    count = os.cpu_count() or 1
    for number in (measuring, *builders):
        if not 0 <= number < count:
            raise ConfigError(f"there is no CPU {number} here; there are 0 to {count - 1}")
    return str(measuring), ",".join(map(str, builders))


def with_best(effort: Effort, measured: Measurement) -> Effort:
    """The effort for the candidates after this one."""
    ratio = measured.ratio
    if effort.best_ratio is None or ratio is None or ratio >= effort.best_ratio:
        return effort
    return msgspec.structs.replace(effort, best_ratio=ratio)
