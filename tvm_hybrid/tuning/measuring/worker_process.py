"""One worker process, the candidate that it has, and what its death means."""

from __future__ import annotations

import signal
import time
from typing import NamedTuple

import msgspec

from microkernels.errors import CompileError

from .child_process import ChildProcess
from .measure import Measurement
from .worker import Job, Reply, Stage, Turn

OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What ends a process from outside; no candidate does that to itself."""


class Death(NamedTuple):
    """How a worker ended while it had a candidate."""

    stage: str
    how: str
    code: int

    @property
    def from_outside(self) -> bool:
        """Whether no candidate does that to itself."""
        return -self.code in OUTSIDE

    def measurement(self) -> Measurement:
        """What it says about the candidate."""
        building = self.stage in ("prepare", "compile")
        return Measurement(
            status="compile_error" if building else "runtime_error",
            error=f"the worker {self.how} in stage {self.stage!r}",
        )


class WorkerProcess:
    """One worker process and the candidate that it has.

    Parameters
    ----------
    child : ChildProcess
        Runs `worker`.

    Attributes
    ----------
    job : Job or None
        The candidate; None if it is idle.
    number : int
        The candidate's, as `give` was told.
    stage : str
        What the worker does: a stage of `Bench.measure`, "prepare" before them, or "wait".
    """

    def __init__(self, child: ChildProcess) -> None:
        self.child = child
        self.job: Job | None = None
        self.number = 0
        self.stage = ""
        self._timeout = self._end = 0.0

    def give(self, number: int, job: Job, timeout: float) -> None:
        """Has it build within so many seconds, wait for its turn, and measure within as many.

        Raises
        ------
        CompileError
            If it cannot start.
        """
        self.number, self.stage, self.job = number, "prepare", job
        self._timeout = timeout
        self.child.ask(job)
        self._end = time.monotonic() + timeout

    @property
    def seconds_left(self) -> float | None:
        """Until it is too late; None while it waits for its turn."""
        return None if self.stage == "wait" else max(0.0, self._end - time.monotonic())

    def take_turn(self) -> None:
        """Has it measure."""
        self.stage, self._end = "measure", time.monotonic() + self._timeout
        self.child.ask(Turn())

    def outcome(self) -> Measurement | Death | None:
        """What became of the candidate, after which it is idle; None if it is not done yet.

        Raises
        ------
        CompileError
            If no candidate of this region can be measured.
        """
        while True:
            try:
                line = self.child.answer(0)
            except TimeoutError:
                return self._late()
            if line is None:
                self.job = None
                code, how = self.child.ended()
                return Death(self.stage, how, code)
            message = msgspec.json.decode(line, type=Stage | Reply)
            if isinstance(message, Reply):
                return self._reply(message)
            self.stage = message.stage

    def _reply(self, reply: Reply) -> Measurement:
        job, self.job = self.job, None
        if reply.measurement is None:
            assert job is not None
            key = job.case.region.key
            raise CompileError(f"cannot measure {key}: {reply.kind}: {reply.fatal}")
        if reply.measurement.status == "wrong_result":
            self.close()  # it may have written elsewhere, too
        return reply.measurement

    def _late(self) -> Measurement | None:
        if self.seconds_left != 0.0:
            return None
        self.close()
        return Measurement(
            status="timeout", error=f"not done after {self._timeout:g} s, in stage {self.stage!r}"
        )

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        self.job = None
        self.child.close()
