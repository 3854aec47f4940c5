"""Consoles: results go to standard output, progress and errors to standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

_PLAIN_WIDTH = 140


class FittingConsole(Console):
    """A console on which no table is cut: it becomes a list where there is no room for it."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As of any console."""
        from rich.table import Table

        from .narrow_tables import shown_on

        fitting = (shown_on(self, each) if isinstance(each, Table) else each for each in objects)
        super().print(*fitting, **options)


def output_console() -> Console:
    """Writes results; a file or a pipe gets lines that are not folded to a terminal's 80 columns.

    Made anew for each use, so that it follows a redirected `sys.stdout`.
    """
    console = FittingConsole()
    if not console.is_terminal:
        console.width = max(console.width, _PLAIN_WIDTH)
    return console


def error_console() -> Console:
    """Writes progress, warnings and errors."""
    return FittingConsole(stderr=True)


def say(*lines: object, to: Console | None = None) -> None:
    """Prints lines as they are: not folded, not coloured, and brackets mean nothing.

    Parameters
    ----------
    to : Console or None
        Where; None: results, on standard output.
    """
    console = to or output_console()
    for line in lines:
        console.print(str(line), highlight=False, soft_wrap=True, markup=False)


def print_json(value: Any) -> None:
    """Prints one JSON document on standard output; inf and NaN become null, as JSON has neither.

    Structs and dataclasses become objects.
    """
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2)
    output_console().file.write(text.decode() + "\n")


@contextmanager
def working(message: str) -> Iterator[Callable[[str], None]]:
    """Shows that something is going on: a spinner on a terminal, one line anywhere else.

    What it gives shows another message, of a step that begins.
    """
    console = error_console()
    if console.is_terminal:
        with console.status(message) as status:
            yield status.update
    else:

        def show(line: str) -> None:
            console.print(line, highlight=False, soft_wrap=True)

        show(message)
        yield show


@contextmanager
def turns_bar(message: str) -> Iterator[tuple[Callable[[str], None], Callable[[int, int], None]]]:
    """Shows what goes on, as `working`; on a terminal also how much is done, and what is left.

    What it gives shows another message, and takes how many turns are over and how many there are.
    """
    console = error_console()
    if not console.is_terminal:
        with working(message) as show:
            yield show, lambda done, total: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(message, total=None)
        yield (
            lambda line: bar.update(task, description=line),
            lambda done, total: bar.update(task, completed=done, total=total),
        )
