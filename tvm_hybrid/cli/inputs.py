"""The options that name a model's inputs, and the note on inputs that were made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from .console import error_console, say
from .options import FILE

F = TypeVar("F", bound=Callable[..., Any])


def input_options(command: F) -> F:
    """Adds `--input`, `--inputs` and `--seed`: `arrays`, `archive` and `seed` (`report.feeds`)."""
    command = click.option("--seed", default=0, show_default=True, help="For random inputs.")(
        command
    )
    command = click.option(
        "--inputs",
        "archive",
        metavar="FILE.npz",
        type=FILE,
        help="Arrays for several inputs, by name.",
    )(command)
    return click.option(
        "--input",
        "arrays",
        metavar="NAME=FILE.npy",
        multiple=True,
        help="The array for one input. Inputs without an array get random values.",
    )(command)


def note_random(names: Sequence[str]) -> None:
    """Says which inputs got random values, if any did."""
    if names:
        text = f"random values for input {', '.join(names)}; --input NAME=FILE.npy gives others"
        say(text, to=error_console())
