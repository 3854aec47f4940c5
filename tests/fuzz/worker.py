"""Examines cases in a process that may crash or hang, without ending the caller."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from .case import Case
from .examine import Outcome, State, examine

# Seconds: the slowest graphs take ten seconds to compile on a busy machine.
LIMIT = 120.0
# Compiled code stays in memory, so the process is renewed after this number of cases.
MOST_CASES = 250


class Worker:
    """Examines cases in turn, each in a process that is renewed when it ends."""

    def __init__(self, limit: float = LIMIT) -> None:
        self._limit = limit
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._pipe: Connection | None = None
        self._done = 0

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def examine(self, case: Case) -> Outcome:
        """Examines as `examine.examine` does; a crash or a hang is an outcome too."""
        if self._process is None or self._done >= MOST_CASES:
            self._end()
            self.start()
        self._done += 1
        assert self._pipe is not None
        try:
            self._pipe.send(case.to_bytes())
            if not self._pipe.poll(self._limit):
                self._end()
                return Outcome(State.HANG, f"no result after {self._limit:g} s")
            return self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            self._end()
            return Outcome(State.CRASH, f"the process ended with {code}")

    def kill(self) -> None:
        """Ends the process, as a crash would."""
        self._process.kill()

    def start(self) -> None:
        """Starts a process."""
        self._pipe, theirs = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._done = 0

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None


def _serve(pipe: Connection) -> None:
    """Main loop of the process: receives cases, sends outcomes."""
    # Waiting threads of pools would take the CPU from working ones.
    os.environ["TVM_THREAD_POOL_SPIN_COUNT"] = "0"
    os.environ["TVM_HYBRID_RECORDS"] = "none"
    while True:
        try:
            content = pipe.recv()
        except EOFError:
            return
        pipe.send(examine(Case.from_bytes(content)))
