"""LocalMeasurer: measures candidates on this machine.

Serial kernels are measured on one CPU while the next is built on another:

    process 1   build A | measure A | build C ...   | measure C
    process 2   build B ............ | measure B    | build D
"""

from __future__ import annotations

import math
import os
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence

import msgspec

from microkernels.base.cpu_quota import busy_cpus
from microkernels.base.errors import ConfigError
from microkernels.base.logs import logger
from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config

from ...runtime.threads import same_core
from .case import Case
from .child_process import ChildProcess, Closing, wait_for
from .measure import Candidates, Effort, Measurement, joined
from .worker import BUILDING, Job, Lost, WorkerProcess

MOST_LOSSES = 2
"""A candidate fails when this many workers or servers were lost with it."""


class ProcessMeasurer(Closing):
    """Measures candidates in processes that start when needed, and again after each death.

    A candidate that crashes, hangs, or computes a wrong result gives a result like any other. A
    candidate whose worker or server was lost, as by a signal from outside, is measured once more.

    Parameters
    ----------
    machine : Machine
        Gives the ISA and the number of threads.
    target : str
        TVM target as JSON.
    timeout : float
        Most seconds for building a candidate, and again for measuring it.
    footprint_bytes : int
        Bytes of all constants of the model; decides how cold the caches are kept.
    seed : int
        Seed of the kernels' arguments.
    """

    poll_seconds: float | None = None
    """Longest time between two calls of `_watch`; None: only after an event."""

    def __init__(
        self, machine: Machine, target: str, timeout: float, footprint_bytes: int, seed: int
    ) -> None:
        self.machine, self.target, self.timeout = machine, target, timeout
        self.footprint_bytes, self.seed = footprint_bytes, seed
        self._workers: Sequence[WorkerProcess] = []

    def measure(self, wanted: Candidates) -> Generator[tuple[Config, Measurement], None, None]:
        """Yields each candidate with its outcome, as they complete; see `Measurer.measure`.

        If `effort` has a best ratio, faster candidates improve it for those that follow.

        Raises
        ------
        CompileError
            If no process can be started, or none can measure any candidate of this region.
        ServerError
            If servers are needed, and none can run the code.
        """
        region, template, configs, baseline, effort = wanted
        if configs:
            self._prepare(len(configs))
        case = Case.of(region, template, self.machine, self.target, self.footprint_bytes, self.seed)
        default = None if baseline is None else baseline.to_dict()
        todo = deque(range(len(configs)))
        losses: Counter[int] = Counter()

        def go_on() -> None:
            """Gives jobs to idle workers."""
            for worker in self._workers:
                if worker.job is None and todo and self._joins(worker, len(todo)):
                    number = todo.popleft()
                    config = configs[number].to_dict()
                    job = Job(case=case, config=config, baseline=default, effort=effort)
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
                        building = outcome.stage in BUILDING
                        outcome = Measurement(
                            status="compile_error" if building else "runtime_error",
                            error=f"{MOST_LOSSES} servers or workers were lost with it; "
                            f"at last {outcome.reason}",
                        )
                    effort = with_best(effort, outcome)
                    if len(self._workers) > 1:
                        go_on()  # the workers go on while the caller looks at this result
                    yield configs[number], outcome
                go_on()
        finally:
            for worker in self._workers:
                if worker.job is not None:
                    worker.close()

    def _prepare(self, candidates: int) -> None:
        """Makes workers ready for this many candidates."""

    def _joins(self, worker: WorkerProcess, candidates: int) -> bool:
        """Whether a worker takes part while this many candidates are waiting."""
        return True

    def _watch(self) -> None:
        """Supervises the workers; called whenever something happened."""

    def _outcomes(self) -> Iterator[tuple[WorkerProcess, Measurement | Lost]]:
        """Waits until something happens, and yields the candidates that are done."""
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


def with_best(effort: Effort, measured: Measurement) -> Effort:
    """Updates the best ratio for the candidates after this one."""
    ratio = measured.ratio
    if effort.best_ratio is None or ratio is None or ratio >= effort.best_ratio:
        return effort
    return msgspec.structs.replace(effort, best_ratio=ratio)


MANY = 8
"""Fewest candidates that are worth the start of a second process."""


class LocalMeasurer(ProcessMeasurer):
    """Measures candidates on this machine; a process is replaced after a wrong result.

    Parameters
    ----------
    machine, target, timeout, footprint_bytes, seed
        See `ProcessMeasurer`.
    cpu : int or None
        CPU that measures serial kernels; None: the last CPU that this process may use, because the
        first ones serve most interrupts. Parallel kernels run on all CPUs that it may use.
    builders : sequence of int or None
        CPUs on which a second process builds serial kernels during measurements; empty: there is no
        second process. None: CPUs of other cores than the measuring one, as many as this process
        may keep busy beside it; a quota of one CPU leaves none.

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
        super().__init__(machine, target, timeout, footprint_bytes, seed)
        measuring, building = "", ""  # lists of CPUs
        if machine.threads == 1:
            allowed, count = sorted(os.sched_getaffinity(0)), os.cpu_count() or 1
            cpu = allowed[-1] if cpu is None else cpu
            if builders is None:
                builders = [other for other in allowed if not same_core(cpu, other)]
                builders = builders[: busy_cpus() - 1]
            for number in (cpu, *builders):
                if not 0 <= number < count:
                    raise ConfigError(f"there is no CPU {number} here; there are 0 to {count - 1}")
            measuring, building = str(cpu), ",".join(map(str, builders))
        arguments = [measuring, building or measuring]
        environment = {"TVM_NUM_THREADS": str(machine.threads)}
        self._workers = [
            WorkerProcess(ChildProcess.of_module(f"{__package__}.worker", arguments, environment))
            for _ in range(2 if building else 1)
        ]

    @property
    def pid(self) -> int | None:
        """The first process's id; None if it is not running."""
        return self._workers[0].child.pid

    def measure(self, wanted: Candidates) -> Generator[tuple[Config, Measurement], None, None]:
        """See `ProcessMeasurer.measure`; samples may be spread over fresh processes."""
        effort = wanted.effort
        if effort.processes == 1:
            yield from super().measure(wanted)
            return
        samples = math.ceil(effort.samples / effort.processes)
        seconds = effort.seconds / effort.processes
        share = msgspec.structs.replace(effort, processes=1, samples=samples, seconds=seconds)
        for config in wanted.configs:
            one = wanted._replace(configs=[config], effort=share)
            parts: list[Measurement] = []
            while len(parts) < effort.processes and all(part.status == "ok" for part in parts):
                self.close()
                ((_, found),) = super().measure(one)
                parts.append(found)
            yield config, joined(parts)

    def _joins(self, worker: WorkerProcess, candidates: int) -> bool:
        return worker is self._workers[0] or worker.child.pid is not None or candidates >= MANY

    def _watch(self) -> None:
        """Lets one process measure at a time."""
        busy = [worker for worker in self._workers if worker.job is not None]
        waiting = [worker for worker in busy if worker.stage == "wait"]
        if waiting and not any(worker.stage == "measure" for worker in busy):
            waiting[0].take_turn()
