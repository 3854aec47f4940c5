"""The command line: `tvm-hybrid COMMAND`, one module a command, imported when it is used."""

from .group import main

__all__ = ["main"]
