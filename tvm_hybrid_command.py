"""The installed command `tvm-hybrid`.

It is outside of the package, so that it can handle Ctrl-C while the package is imported.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 130


def main() -> int:
    """Runs the command line; see `tvm_hybrid.cli.group.main`. Returns the exit code."""
    former = signal.getsignal(signal.SIGINT)
    if former is signal.default_int_handler:  # else a shell has asked to ignore the signal
        signal.signal(signal.SIGINT, _leave)
    from tvm_hybrid.cli import main as run

    signal.signal(signal.SIGINT, former)
    return run()


def _leave(number: int, frame: FrameType | None) -> None:
    """Exits immediately: no work has begun, and an import may convert an exception."""
    os.write(2, b"Error: interrupted\n")
    os._exit(INTERRUPTED)
