"""The tuner's side of one worker that measures at servers: how long it may take, and where."""

from __future__ import annotations

import contextlib
import math
import tempfile
import time

import msgspec

from microkernels.base.errors import TvmHybridError

from ..measuring.child_process import ChildProcess, wait_for
from ..measuring.measure import Measurement
from ..measuring.worker import BUILDING, Job, Lost, Stage, WorkerProcess
from .worker import CONNECTING, TRYING, WAITING, RemoteSetting

CONNECT_SECONDS = 10.0
"""A server that does not greet for so long is lost."""
GRACE_SECONDS = 5.0
"""A server ends a session that is too long by itself; after so much longer it is lost."""


class RemoteWorker(WorkerProcess):
    """A worker process that measures at servers.

    Parameters
    ----------
    setting : RemoteSetting
        Where servers come from, and how long a candidate may occupy one.
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

    def __init__(self, setting: RemoteSetting, grace: float = GRACE_SECONDS) -> None:
        self.setting, self.grace = setting, grace
        self.waiting_since: float | None = None
        self.at_server = False
        self.served = 0.0
        self.reason = ""
        self._folder = tempfile.TemporaryDirectory(prefix="tvm_hybrid_")
        arguments = [msgspec.json.encode(setting).decode(), self._folder.name]
        child = ChildProcess.of_module(f"{__package__}.worker", arguments, {"TVM_NUM_THREADS": "1"})
        super().__init__(child)

    def give(self, number: int, job: Job, timeout: float) -> None:
        """Has it build and try a candidate within so many seconds, then measure it at a server."""
        self.waiting_since, self.at_server = None, False
        super().give(number, job, timeout)

    def outcome(self) -> Measurement | Lost | None:
        """As `WorkerProcess.outcome`."""
        try:
            return super().outcome()
        finally:
            if self.job is None:
                if self.at_server:
                    self.served = time.monotonic()
                self.waiting_since, self.at_server = None, False

    def _enter(self, message: Stage) -> None:
        self.stage, self.server = message.stage, message.server
        now = time.monotonic()
        if self.stage.startswith(WAITING):
            self.waiting_since = self.waiting_since or now
            self.reason = self.stage.removeprefix(WAITING).lstrip(": ")
            self._end = math.inf
        elif self.stage == CONNECTING:
            self._end = now + CONNECT_SECONDS
        elif self.server and not self.at_server:
            assert self.job is not None
            self.waiting_since, self.at_server = None, True
            self._end = now + self.setting.seconds_for(self.job) + self.grace

    def _late(self) -> Measurement | Lost:
        if not self.server:
            return super()._late()
        text = f"{self.server} does not answer, in stage {self.stage!r}"
        return Lost(text, self.stage, self.stage != CONNECTING)

    def _died(self, text: str) -> Measurement | Lost:
        if self.stage in (*BUILDING, TRYING):
            return super()._died(text)
        return Lost(text, self.stage, bool(self.server) and self.stage != CONNECTING)

    def close(self) -> None:
        """Ends the process, at the end of its session if that comes soon.

        TVM's server ends with a session whose client dies with an answer unread.
        """
        end = time.monotonic() + self.grace
        while self.job is not None and self.child.pid is not None and self.seconds_left != 0.0:
            with contextlib.suppress(TvmHybridError):
                super().outcome()
            left = min(self.seconds_left or 0.0, end - time.monotonic())
            if self.job is None or not self.server or left <= 0.0:
                break
            wait_for([self.child], left)
        self.at_server = False
        super().close()

    def end(self) -> None:
        """Ends it for good."""
        self.close()
        self._folder.cleanup()
