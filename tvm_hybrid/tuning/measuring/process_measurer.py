"""ProcessMeasurer: has worker processes measure candidates, and outlives them."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template

from ...records.record import Status
from .case import Case
from .child_process import wait_for
from .measure import Effort, Measurement
from .worker import Job
from .worker_process import BUILDING, Lost, WorkerProcess

logger = logging.getLogger("tvm_hybrid")

M = TypeVar("M", bound="ProcessMeasurer")

MOST_LOSSES = 2
"""So many workers or servers that are lost with a candidate are the candidate's doing."""


class ProcessMeasurer:
    """Measures candidates in processes that start when they are needed, again after each death.

    A candidate that crashes, hangs, or yields something wrong is a result like any other. One whose
    worker or server was lost, as by a signal from outside, is measured once more.

    Parameters
    ----------
    machine : Machine
        ISA and threads.
    target : str
        The TVM target as JSON.
    timeout : float
        Seconds that building one candidate may take, and measuring it as many again.
    footprint_bytes : int
        Bytes of all constants of the model; decides how cold the caches are kept.
    seed : int
        For the arguments of the kernels.
    """

    poll_seconds: float | None = None
    """How often `_watch` is called at least while nothing happens; None: not then."""

    def __init__(
        self, machine: Machine, target: str, timeout: float, footprint_bytes: int, seed: int
    ) -> None:
        self.machine, self.target, self.timeout = machine, target, timeout
        self.footprint_bytes, self.seed = footprint_bytes, seed
        self._workers: Sequence[WorkerProcess] = []

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
        ServerError
            If servers are needed, and there is none that can run the code.
        """
        if configs:
            self._prepare(len(configs))
        case = Case.of(region, template, self.machine, self.target, self.footprint_bytes, self.seed)
        todo = deque(range(len(configs)))
        losses: Counter[int] = Counter()

        def go_on() -> None:
            """Gives idle workers something to do."""
            for worker in self._workers:
                if worker.job is None and todo and self._joins(worker, len(todo)):
                    number = todo.popleft()
                    job = Job.of(case, configs[number], baseline, effort)
                    worker.give(number, job, self.timeout)
            self._watch()

        try:
            go_on()
            while any(worker.job for worker in self._workers):
                for worker, outcome in self._outcomes():
                    number = worker.number
                    if isinstance(outcome, Lost):
                        losses[number] += outcome.blamed
                        if losses[number] < MOST_LOSSES:
                            logger.warning(
                                "lost, the candidate is tried again later: %s", outcome.reason
                            )
                            todo.append(number)
                            continue
                        outcome = _blamed(outcome)
                    effort = with_best(effort, outcome)
                    if len(self._workers) > 1:
                        go_on()  # on other CPUs than whoever looks at this
                    yield configs[number], outcome
                go_on()
        finally:
            for worker in self._workers:
                if worker.job is not None:
                    worker.close()

    def _prepare(self, candidates: int) -> None:
        """Makes workers ready for so many candidates."""

    def _joins(self, worker: WorkerProcess, candidates: int) -> bool:
        """Whether a worker takes part when so many candidates are waiting."""
        return True

    def _watch(self) -> None:
        """Looks at what workers are doing, whenever something happened."""

    def _outcomes(self) -> Iterator[tuple[WorkerProcess, Measurement | Lost]]:
        """The candidates that are done; waits for something to happen."""
        busy = [worker for worker in self._workers if worker.job is not None]
        limits = [left for worker in busy if (left := worker.seconds_left) is not None]
        if self.poll_seconds is not None:
            limits.append(self.poll_seconds)
        wait_for([worker.child for worker in busy], min(limits, default=None))
        for worker in busy:
            outcome = worker.outcome()
            if outcome is not None:
                yield worker, outcome
        self._watch()

    def close(self) -> None:
        """Ends the workers, whatever they are doing."""
        for worker in self._workers:
            worker.close()

    def __enter__(self: M) -> M:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _blamed(lost: Lost) -> Measurement:
    """What is said of a candidate with which too many workers or servers were lost."""
    status: Status = "compile_error" if lost.stage in BUILDING else "runtime_error"
    text = f"{MOST_LOSSES} servers or workers were lost with it; at last {lost.reason}"
    return Measurement(status=status, error=text)


def with_best(effort: Effort, measured: Measurement) -> Effort:
    """The effort for the candidates after this one."""
    ratio = measured.ratio
    if effort.best_ratio is None or ratio is None or ratio >= effort.best_ratio:
        return effort
    return msgspec.structs.replace(effort, best_ratio=ratio)
