"""The command line: `tvm-hybrid COMMAND`. The file of a command is imported when it is used."""

from .group import main

__all__ = ["main"]
