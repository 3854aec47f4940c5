"""The other end of a `ChildProcess`: what it answers, and that it does not outlive its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import msgspec

_PR_SET_PDEATHSIG = 1


class Answers:
    """JSON lines to the parent, on what was standard output.

    What a candidate prints must not end up among them: it goes to standard error from now on.
    """

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)

    def __call__(self, message: msgspec.Struct) -> None:
        """Sends one message."""
        self._file.write(msgspec.json.encode(message) + b"\n")
        self._file.flush()


def die_with(parent: int) -> None:
    """Has the kernel end this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)  # it was gone before we asked
