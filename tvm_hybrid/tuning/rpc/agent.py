"""The tuner's side of one worker that measures at servers: asks it, and says what a death means."""

from __future__ import annotations

import tempfile
import time
from typing import NamedTuple

import msgspec

import microkernels.errors as errors
from microkernels.errors import CompileError, TvmHybridError

from ..measuring.child_process import ChildProcess
from ..measuring.measure import Measurement
from ..measuring.worker import Reply, Stage
from ..measuring.worker_process import OUTSIDE
from .tracker import Address
from .worker import BUILDING, CONNECTING, TRYING, WAITING, RemoteJob

CONNECT_SECONDS = 10.0
"""A server that does not greet for so long is lost."""
GRACE_SECONDS = 5.0
"""A server ends a session that is too long by itself; after so much longer it is lost."""


class Lost(NamedTuple):
    """No measurement: the server, or the worker, was lost.

    Attributes
    ----------
    reason : str
        In words.
    blamed : bool
        Whether the candidate was there when it happened, and may have done it.
    """

    reason: str
    blamed: bool


class Agent:
    """A worker process, and what it is doing.

    Parameters
    ----------
    address : Address
        The tracker to get servers from.
    timeout : float
        Seconds that building a candidate and trying it here may take.
    grace : float
        See `GRACE_SECONDS`.

    Attributes
    ----------
    waiting_since : float or None
        Monotonic time since when it waits for a server; None if it does not.
    at_server : bool
        Whether it is being served.
    served : float
        Monotonic time when it last was; 0.0: never.
    reason : str
        Why it got no server.
    """

    def __init__(self, address: Address, timeout: float, grace: float = GRACE_SECONDS) -> None:
        self.timeout, self.grace = timeout, grace
        self.waiting_since: float | None = None
        self.at_server = False
        self.served = 0.0
        self.reason = ""
        self._folder = tempfile.TemporaryDirectory(prefix="tvm_hybrid_")
        self._child = ChildProcess(
            f"{__package__}.worker",
            [msgspec.json.encode(address).decode(), self._folder.name],
            {"TVM_NUM_THREADS": "1"},
        )

    def measure(self, task: RemoteJob) -> Measurement | Lost:
        """Measures one candidate.

        Raises
        ------
        TvmHybridError
            If no candidate of this region can be measured.
        """
        try:
            return self._measure(task)
        finally:
            if self.at_server:
                self.served = time.monotonic()
            self.waiting_since, self.at_server = None, False

    def _measure(self, task: RemoteJob) -> Measurement | Lost:
        self._child.ask(task)
        stage, server = BUILDING[0], ""
        end: float | None = time.monotonic() + self.timeout
        while True:
            try:
                line = self._child.answer(None if end is None else end - time.monotonic())
            except TimeoutError:
                self._child.close()
                if not server:
                    text = f"not done after {self.timeout:g} s, in stage {stage!r}"
                    return Measurement(status="timeout", error=text)
                return Lost(f"{server} does not answer, in stage {stage!r}", stage != CONNECTING)
            if line is None:
                return self._death(stage, server)
            message = msgspec.json.decode(line, type=Stage | Reply)
            if isinstance(message, Reply):
                return self._outcome(task, message, server)
            stage, server = message.stage, message.server
            end = self._end_of(task, stage, server, end)

    def _end_of(self, task: RemoteJob, stage: str, server: str, end: float | None) -> float | None:
        """When to give up, now that this stage is entered; notes where it is."""
        now = time.monotonic()
        if stage.startswith(WAITING):
            self.waiting_since = self.waiting_since or now
            self.reason = stage.removeprefix(WAITING).lstrip(": ")
            return None
        if stage == CONNECTING:
            return now + CONNECT_SECONDS
        if not server or self.at_server:
            return end
        self.waiting_since, self.at_server = None, True
        return now + task.session_seconds + self.grace

    def _outcome(self, task: RemoteJob, done: Reply, server: str) -> Measurement | Lost:
        if done.measurement is not None:
            if done.measurement.status == "wrong_result" and not server:
                self.rest()  # it may have written elsewhere in the worker, too
            return done.measurement
        if done.lost:
            return Lost(f"{server}: {done.lost}", True)
        kind = getattr(errors, done.kind, CompileError)
        error = kind if issubclass(kind, TvmHybridError) else CompileError
        raise error(f"cannot measure {task.job.case.region.key}: {done.fatal}")

    def _death(self, stage: str, server: str) -> Measurement | Lost:
        code, how = self._child.ended()
        text = f"the worker {how} in stage {stage!r}"
        if -code in OUTSIDE:
            return Lost(text, True)
        if stage in BUILDING:
            return Measurement(status="compile_error", error=text)
        if stage == TRYING:
            return Measurement(status="runtime_error", error=text)
        return Lost(text, bool(server) and stage != CONNECTING)

    def kill(self) -> None:
        """Ends what it is doing; for another thread than the one that waits for it.

        When that one is done, `rest` is due.
        """
        self._child.kill()

    def rest(self) -> None:
        """Ends the process; it starts anew when it is next needed."""
        self._child.close()

    def close(self) -> None:
        """Ends it for good."""
        self.rest()
        self._folder.cleanup()
