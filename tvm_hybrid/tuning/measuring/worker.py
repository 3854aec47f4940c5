"""The process that measures: `python -m tvm_hybrid.tuning.measuring.worker PARENT_PID CPUS CPUS`.

Jobs arrive on standard input, one JSON object a line; on what was standard output it answers with
the stages it enters and finally with the measurement. Before it enters "measure" it waits until it
is told to: it builds on the second list of CPUs, "0,2,3", and measures on the first, where somebody
else may be measuring still. It dies with its parent, and so does whatever candidate it is running.
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
        What it has in common with other candidates of its region.
    config, baseline : dict, dict or None
        Fields of the candidate's and of the default Config.
    effort : Effort
        How long to measure.
    """

    case: Case
    config: dict[str, Any]
    baseline: dict[str, Any] | None
    effort: Effort


class Stage(msgspec.Struct, frozen=True, tag=True):
    """The worker enters a stage; if it dies, it died there.

    Attributes
    ----------
    stage : str
        Its name.
    server : str
        The server that it depends on, if any.
    """

    stage: str
    server: str = ""


class Reply(msgspec.Struct, frozen=True, tag=True):
    """The worker is done.

    Attributes
    ----------
    measurement : Measurement or None
        What came of it.
    fatal, kind : str
        If there is none: why no candidate of this region can be measured, and the error's type.
    lost : str
        If there is neither: how the server was lost.
    """

    measurement: Measurement | None = None
    fatal: str = ""
    kind: str = ""
    lost: str = ""


def fatal_reply(error: Exception) -> Reply:
    """What to say when no candidate of a region can be measured."""
    return Reply(fatal=str(error), kind=type(error).__name__)


class Turn(msgspec.Struct, frozen=True):
    """To the worker: nobody else is measuring."""


B = TypeVar("B")


class Benches(Generic[B]):
    """The bench of the region that jobs are for; one at a time.

    Parameters
    ----------
    make : callable
        Case, template -> its bench.
    """

    def __init__(self, make: Callable[[Case, Template[Any]], B]) -> None:
        self._make = make
        self._known: tuple[Case, B] | None = None

    def prepare(self, job: Job) -> tuple[B, Config, Config | None]:
        """What a job is measured by, its candidate and its baseline.

        Raises
        ------
        TvmHybridError, ImportError
            If no candidate of this region can be measured.
        """
        template = job.case.template()
        if self._known is None or self._known[0] != job.case:
            self._known = None  # frees the former region's arrays first
            gc.unfreeze()
            self._known = (job.case, self._make(job.case, template))
            # What lives now lives as long as the region: looking it through for garbage after every
            # candidate would take as long as a third of the measuring.
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
"""Stages in which a candidate is not run yet."""
OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What ends a process from outside; no candidate does that to itself."""


class Lost(NamedTuple):
    """No measurement: the worker, or its server, was lost.

    Attributes
    ----------
    reason : str
        In words.
    stage : str
        In which it was.
    blamed : bool
        Whether the candidate was there when it happened, and may have done it.
    """

    reason: str
    stage: str
    blamed: bool = True


class WorkerProcess:
    """One worker process and the candidate that it has.

    Parameters
    ----------
    child : ChildProcess
        Runs a worker.

    Attributes
    ----------
    job : Job or None
        The candidate; None if it is idle.
    number : int
        The candidate's, as `give` was told.
    stage : str
        What the worker does: a stage of `Bench.measure`, "prepare" before them, or "wait".
    server : str
        The server that this depends on, if any.
    """

    def __init__(self, child: ChildProcess) -> None:
        self.child = child
        self.job: Job | None = None
        self.number = 0
        self.stage = self.server = ""
        self._timeout = self._end = 0.0

    def give(self, number: int, job: Job, timeout: float) -> None:
        """Has it build within so many seconds, wait for its turn, and measure within as many.

        Raises
        ------
        CompileError
            If it cannot start.
        """
        self.number, self.job, self._timeout = number, job, timeout
        self.stage, self.server = BUILDING[0], ""
        self.child.ask(job)
        self._end = time.monotonic() + timeout

    @property
    def seconds_left(self) -> float | None:
        """Until it is too late; None while it waits for its turn."""
        return None if math.isinf(self._end) else max(0.0, self._end - time.monotonic())

    def outcome(self) -> Measurement | Lost | None:
        """What became of the candidate, after which it is idle; None if it is not done yet.

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
                self.close()  # it may have written elsewhere, too
            return message.measurement

    def take_turn(self) -> None:
        """Has it measure."""
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
        """What it means that it died of something that a candidate may have done to it."""
        building = self.stage in BUILDING
        return Measurement(status="compile_error" if building else "runtime_error", error=text)

    def close(self) -> None:
        """Ends the process, whatever it is doing; it starts anew when it is next needed."""
        self.job = None
        self.child.close()
