"""The command line: `tvm-hybrid COMMAND`, one module a command, imported when it is used."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; see `group.main`. Ctrl-C while that is imported is no traceback."""
    try:
        from .group import main as run
    except KeyboardInterrupt:
        print("Error: interrupted", file=sys.stderr)
        return 130
    return run(arguments)
