"""The command `tvm-hybrid`, as it is installed.

It stands outside of the package, so that Ctrl-C is understood while the package is imported.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 130


def main() -> int:
    """Runs the command line; see `tvm_hybrid.cli.group.main`. Returns the exit code."""
    former = signal.getsignal(signal.SIGINT)
    if former is signal.default_int_handler:  # else a shell said to ignore it
        signal.signal(signal.SIGINT, _leave)
    from tvm_hybrid.cli import main as run

    signal.signal(signal.SIGINT, former)
    return run()


def _leave(number: int, frame: FrameType | None) -> None:
    """Ends at once: nothing was begun, and an import may turn an exception into another."""
    os.write(2, b"Error: interrupted\n")
    os._exit(INTERRUPTED)
