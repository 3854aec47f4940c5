"""One worker process, the candidate that it has, and what its death means."""

from __future__ import annotations

import math
import signal
import time
from typing import NamedTuple

import msgspec

from microkernels.base.errors import CompileError, ServerError

from .child_process import ChildProcess
from .measure import Measurement
from .worker import Job, Reply, Stage, Turn

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

    def take_turn(self) -> None:
        """Has it measure."""
        self.stage, self._end = "measure", time.monotonic() + self._timeout
        self.child.ask(Turn())

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
                return self._death()
            message = msgspec.json.decode(line, type=Stage | Reply)
            if isinstance(message, Reply):
                return self._reply(message)
            self._enter(message)

    def _enter(self, message: Stage) -> None:
        self.stage, self.server = message.stage, message.server
        if self.stage == "wait":
            self._end = math.inf

    def _reply(self, reply: Reply) -> Measurement | Lost:
        job, self.job = self.job, None
        if reply.lost:
            return Lost(f"{self.server}: {reply.lost}", self.stage)
        if reply.measurement is None:
            assert job is not None
            error = ServerError if reply.kind == ServerError.__name__ else CompileError
            raise error(f"cannot measure {job.case.region.key}: {reply.fatal}")
        if reply.measurement.status == "wrong_result" and not self.server:
            self.close()  # it may have written elsewhere, too
        return reply.measurement

    def _late(self) -> Measurement | Lost:
        return Measurement(
            status="timeout", error=f"not done after {self._timeout:g} s, in stage {self.stage!r}"
        )

    def _death(self) -> Measurement | Lost:
        code, how = self.child.ended()
        text = f"the worker {how} in stage {self.stage!r}"
        return Lost(text, self.stage) if -code in OUTSIDE else self._died(text)

    def _died(self, text: str) -> Measurement | Lost:
        """What it means that it died of something that a candidate may have done to it."""
        building = self.stage in BUILDING
        return Measurement(status="compile_error" if building else "runtime_error", error=text)

    def close(self) -> None:
        """Ends the process, whatever it is doing; it starts anew when it is next needed."""
        self.job = None
        self.child.close()
