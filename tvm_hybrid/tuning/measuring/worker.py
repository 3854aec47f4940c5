"""The process that measures: `python -m tvm_hybrid.tuning.measuring.worker PARENT_PID CPUS CPUS`.

Jobs arrive on standard input, one JSON object a line. The worker answers, on the original standard
output, with the stages that it enters and finally with the measurement. It builds on the second
list of CPUs ("0,2,3") and measures on the first, where another worker may still be measuring: so
before the stage "measure" it waits for its turn. It dies with its parent, together with the
candidate that it runs.
"""

from __future__ import annotations

import gc
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from microkernels.base.errors import CompileError, ServerError, TvmHybridError
from tir_schedules.core.config import Config
from tir_schedules.core.template import Template

from ...runtime.threads import use_threads
from .case import Case
from .child_process import Answers, ChildProcess, die_with
from .measure import Bench, Effort, Measurement


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate to measure.

    Attributes
    ----------
    case : Case
        The region, and how to measure it.
    config, baseline : dict, dict or None
        Fields of the candidate's Config and of the baseline's.
    effort : Effort
        How much time to spend.
    """

    case: Case
    config: dict[str, Any]
    baseline: dict[str, Any] | None
    effort: Effort


class Stage(msgspec.Struct, frozen=True, tag=True):
    """The worker enters a stage; a worker that dies died in its last stage.

    Attributes
    ----------
    stage : str
        Name of the stage.
    server : str
        The server that the stage depends on, if any.
    """

    stage: str
    server: str = ""


class Reply(msgspec.Struct, frozen=True, tag=True):
    """The worker is done.

    Attributes
    ----------
    measurement : Measurement or None
        The outcome.
    fatal, kind : str
        Without a measurement: why no candidate of this region can be measured, and the error's
        type.
    lost : str
        Without both: how the server was lost.
    """

    measurement: Measurement | None = None
    fatal: str = ""
    kind: str = ""
    lost: str = ""


def fatal_reply(error: Exception) -> Reply:
    """Makes the reply that no candidate of a region can be measured."""
    return Reply(fatal=str(error), kind=type(error).__name__)


class Turn(msgspec.Struct, frozen=True):
    """Tells the worker that no other worker is measuring."""


B = TypeVar("B")


class Benches(Generic[B]):
    """Caches the bench of the current region; `make` makes it from a case and a template."""

    def __init__(self, make: Callable[[Case, Template[Any]], B]) -> None:
        self._make = make
        self._known: tuple[Case, B] | None = None

    def prepare(self, job: Job) -> tuple[B, Config, Config | None]:
        """Returns a job's bench, its candidate and its baseline.

        Raises
        ------
        TvmHybridError, ImportError
            If no candidate of this region can be measured.
        """
        template = job.case.template()
        if self._known is None or self._known[0] != job.case:
            self._known = None  # frees the previous region's arrays first
            gc.unfreeze()
            self._known = (job.case, self._make(job.case, template))
            # Objects that live now live as long as the region. Searching them for garbage after
            # every candidate would cost a third of the measuring time.
            gc.collect()
            gc.freeze()
        config = template.config_type.from_dict(job.config)
        baseline = template.config_type.from_dict(job.baseline) if job.baseline else None
        return self._known[1], config, baseline


def _go_to(cpus: set[int]) -> None:
    if cpus and os.sched_getaffinity(0) != cpus:
        os.sched_setaffinity(0, cpus)


def main() -> None:
    """Answers jobs until standard input ends."""
    die_with(int(sys.argv[1]))
    measuring, building = ({int(cpu) for cpu in arg.split(",") if cpu} for arg in sys.argv[2:4])
    _go_to(building)
    answer, benches = Answers(), Benches(Bench)

    def enter(stage: str) -> None:
        if stage == "measure":
            answer(Stage("wait"))
            if not sys.stdin.buffer.readline():
                sys.exit(0)
            _go_to(measuring)
        answer(Stage(stage))

    answer(Stage("ready"))
    for line in sys.stdin.buffer:
        job = msgspec.json.decode(line, type=Job)
        answer(Stage("prepare"))
        use_threads(job.case.threads)
        try:
            bench, config, baseline = benches.prepare(job)
        except (TvmHybridError, ImportError) as error:
            answer(fatal_reply(error))
            continue
        _go_to(building)
        answer(Reply(bench.measure(config, baseline, job.effort, enter)))


if __name__ == "__main__":
    main()


BUILDING = ("prepare", "compile")
"""Stages before a candidate runs."""
OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end a process from outside; no candidate sends them to itself."""


class Lost(NamedTuple):
    """No measurement, because the worker or its server was lost.

    Attributes
    ----------
    reason : str
        Description.
    stage : str
        Stage in which it was lost.
    blamed : bool
        Whether the candidate may be the cause.
    """

    reason: str
    stage: str
    blamed: bool = True


class WorkerProcess:
    """A worker process and its candidate.

    Attributes
    ----------
    job : Job or None
        The candidate; None if the worker is idle.
    number : int
        The candidate's number, from `give`.
    stage : str
        What the worker does: "prepare", a stage of `Bench.measure`, or "wait".
    server : str
        The server that the stage depends on, if any.
    """

    def __init__(self, child: ChildProcess) -> None:
        self.child = child
        self.job: Job | None = None
        self.number = 0
        self.stage = self.server = ""
        self._timeout = self._end = 0.0

    def give(self, number: int, job: Job, timeout: float) -> None:
        """Gives the worker a job, with `timeout` seconds to build and as many to measure.

        Raises
        ------
        CompileError
            If the worker cannot start.
        """
        self.number, self.job, self._timeout = number, job, timeout
        self.stage, self.server = BUILDING[0], ""
        self.child.ask(job)
        self._end = time.monotonic() + timeout

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the timeout; None while the worker waits for its turn."""
        return None if math.isinf(self._end) else max(0.0, self._end - time.monotonic())

    def outcome(self) -> Measurement | Lost | None:
        """Returns the outcome and makes the worker idle; None if the candidate is not done.

        Raises
        ------
        CompileError, ServerError
            If no candidate of this region can be measured.
        """
        while True:
            try:
                line = self.child.answer(0)
            except TimeoutError:
                if self.seconds_left != 0.0:
                    return None
                self.close()
                return self._late()
            if line is None:
                self.job = None
                code, how = self.child.ended()
                text = f"the worker {how} in stage {self.stage!r}"
                return Lost(text, self.stage) if -code in OUTSIDE else self._died(text)
            message = msgspec.json.decode(line, type=Stage | Reply)
            if isinstance(message, Stage):
                self._enter(message)
                continue
            job, self.job = self.job, None
            if message.lost:
                return Lost(f"{self.server}: {message.lost}", self.stage)
            if message.measurement is None:
                assert job is not None
                error = ServerError if message.kind == ServerError.__name__ else CompileError
                raise error(f"cannot measure {job.case.region.key}: {message.fatal}")
            if message.measurement.status == "wrong_result" and not self.server:
                self.close()  # the candidate may also have written over other memory
            return message.measurement

    def take_turn(self) -> None:
        """Lets the worker measure."""
        self.stage, self._end = "measure", time.monotonic() + self._timeout
        self.child.ask(Turn())

    def _enter(self, message: Stage) -> None:
        self.stage, self.server = message.stage, message.server
        if self.stage == "wait":
            self._end = math.inf

    def _late(self) -> Measurement | Lost:
        text = f"not done after {self._timeout:g} s, in stage {self.stage!r}"
        return Measurement(status="timeout", error=text)

    def _died(self, text: str) -> Measurement | Lost:
        """Interprets the death of a worker by a cause that may be the candidate's fault."""
        building = self.stage in BUILDING
        return Measurement(status="compile_error" if building else "runtime_error", error=text)

    def close(self) -> None:
        """Ends the process, whatever it is doing; it starts again when needed."""
        self.job = None
        self.child.close()
