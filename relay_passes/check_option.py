"""Refuses an option that is not one of a few words."""

from __future__ import annotations

from collections.abc import Sequence

from microkernels.errors import CompileError


def check_option(option: str, value: str, known: Sequence[str]) -> None:
    """Refuses a value that is not among those known.

    Raises
    ------
    CompileError
        Naming those that there are.
    """
    if value not in known:
        names = ", ".join(map(repr, known))
        raise CompileError(f"unknown {option} {value!r}; the known ones are {names}")
