"""Child: a forked process that a test may kill, for tests of data that must survive."""

from __future__ import annotations

import gc
import os
import select
import signal
import time
from collections.abc import Callable

SLOWEST = 120.0
"""Seconds until a test that hangs fails."""

system_write = os.write


class Child:
    """A forked process that does one task and acknowledges finished parts through a pipe.

    It must not use TVM's threads, which it lacks.
    """

    def __init__(self, work: Callable[[Callable[[int], None]], None]) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            gc.disable()  # a collection would copy every page
            code = 1
            try:
                os.close(reading)
                work(lambda number: _write_all(writing, f"{number}\n".encode()))
                code = 0
            finally:
                os._exit(code)
        os.close(writing)
        self._pipe = os.fdopen(reading, "rb")

    def acknowledged(self) -> list[int]:
        """All acknowledged numbers, once the process has ended."""
        with self._pipe as pipe:
            # The last line may be torn.
            return [int(line) for line in pipe.read().split(b"\n")[:-1]]

    def wait(self) -> int:
        """Exit code, or the negative number of the signal that ended the process."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self, after: float) -> int:
        """Kills the process `after` seconds after its first acknowledgement; returns as `wait`."""
        assert select.select([self._pipe], [], [], SLOWEST)[0]
        time.sleep(after)
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()


def _write_all(descriptor: int, data: bytes) -> None:
    assert system_write(descriptor, data) == len(data)  # shorter than what a pipe takes at once
