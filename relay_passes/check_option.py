"""Refuses an option that is not one of a few words."""

from __future__ import annotations

from collections.abc import Sequence

from microkernels.base.errors import CompileError


def check_option(argument: str, value: object, known: Sequence[str], what: str = "") -> None:
    """Refuses a value that is not among those known.

    `what` is what the message calls the option; by default as its argument is called.

    Raises
    ------
    CompileError
        Naming those that there are.
    """
    if value not in known:
        names = ", ".join(map(repr, known))
        raise CompileError(
            f"unknown {what or argument} {value!r}; the known ones are {names}", argument=argument
        )
