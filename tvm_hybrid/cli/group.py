"""The `tvm-hybrid` command itself: finds subcommands, shows errors, sets exit codes.

Exit codes: 0 success, 1 a check failed, 2 wrong usage or bad input, 130 interrupted.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.logging import RichHandler
from rich.text import Text

from microkernels.base.errors import TvmHybridError, VerifyError
from microkernels.base.logs import LOG_VARIABLE

from ..version_check import __version__
from .base.console import error_console, interruptible

INTERRUPTED = 130

COMMANDS = {
    "compile": "program",
    "run": "program",
    "inspect": "inspection",
    "bench": "bench",
    "serve": "program",
    "verify": "program",
    "quantize": "program",
    "explain": "inspection",
    "profile": "inspection",
    "report": "inspection",
    "check": "program",
    "scale": "inspection",
    "tune": "tune",
    "layouts": "tune",
    "records": "records",
    "simulate": "simulate",
    "record-spaces": "simulate",
    "calibrate": "machine",
    "kernels": "machine",
    "doctor": "machine",
    "completion": "machine",
}
"""Command -> its module, in the order of a user's work."""


class LazyGroup(click.Group):
    """A group whose commands are in the other modules of this package.

    The module of a command has a `click.Command` of its name. It is imported when the command is
    used, or when help lists it, so that a command does not pay for the imports of others.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands, in the order of a user's work."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns the command of this name; None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f".{COMMANDS[cmd_name]}", __package__)
        commands = (each for each in vars(module).values() if isinstance(each, click.Command))
        command = next(each for each in commands if each.name == cmd_name)
        add_examples(command, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command to run; for an unknown name, suggests a similar one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            if not near:
                raise
            message = f"No such command {args[0]!r}; did you mean {near[0]}?"
            raise click.UsageError(message, ctx) from error


@click.command(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, prog_name="tvm-hybrid")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """Compiles ONNX models for Xeon-class CPUs through Apache TVM.

    Exit codes: 0 success, 1 a check failed, 2 wrong usage or bad input, 130 interrupted.
    """
    context.obj = {"debug": debug}
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        return
    logger = logging.getLogger("tvm_hybrid")
    if os.environ.get(LOG_VARIABLE) or any(isinstance(h, RichHandler) for h in logger.handlers):
        return  # the user's own log shows warnings
    handler = RichHandler(
        level=logging.WARNING, console=error_console(), show_time=False, show_path=False
    )
    logger.addHandler(handler)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Parameters
    ----------
    arguments : sequence of str or None
        Arguments after the program's name; None: those of `sys.argv`.

    Returns
    -------
    int
        The exit code.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    # Users write --debug anywhere; click accepts options of the group only in front.
    arguments = ["--debug"] * debug + [item for item in arguments if item != "--debug"]
    with interruptible() as pressed:
        try:
            code = cli.main(args=arguments, prog_name="tvm-hybrid", standalone_mode=False)
            return code if isinstance(code, int) else 0
        except (click.Abort, KeyboardInterrupt):
            return _failed("interrupted", INTERRUPTED)
        except Exception as error:
            if pressed():
                return _failed("interrupted", INTERRUPTED)
            return _told(error, arguments)


def _told(error: Exception, arguments: Sequence[str]) -> int:
    """Shows an expected error and returns its exit code; raises any other error."""
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        if context is not None and isinstance(error, click.UsageError):
            click.echo(context.get_usage(), err=True)
        return _failed(error.format_message(), 2)
    if isinstance(error, TvmHybridError):
        from .base.options import in_options

        if "--debug" in arguments:
            error_console().print_exception()
        return _failed(in_options(error), 1 if isinstance(error, VerifyError) else 2)
    raise error


def _failed(message: str, code: int) -> int:

    line = Text.assemble(("Error: ", "bold red"), " ".join(message.split()))
    error_console().print(line, soft_wrap=True)
    return code


_BLOCKS = Path(__file__).with_name("examples.txt").read_text(encoding="utf-8").split("\n\n")
EXAMPLES: dict[str, tuple[str, ...]] = {
    name: tuple(line.strip() for line in lines) for name, *lines in map(str.splitlines, _BLOCKS)
}
"""Command -> example lines for a shell."""


def add_examples(command: click.Command, name: str) -> None:
    """Appends examples to the help of a command and of its subcommands."""
    found = EXAMPLES.get(name, ())
    if found:
        command.epilog = "\n".join(("\b", "Examples:", *(f"  {line}" for line in found)))
    for inner, each in getattr(command, "commands", {}).items():
        add_examples(each, f"{name} {inner}")
