"""The command line: `tvm-hybrid COMMAND`, one module a command, imported when it is used."""

from .group import cli, main

__all__ = ["cli", "main"]
