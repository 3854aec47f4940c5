"""The names of many nodes in a short text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from relay_passes.ir.decisions import Decision

_MOST = 4


def short(origins: Sequence[str]) -> str:
    """The first nodes, and how many more there are."""
    more = len(origins) - _MOST
    return ", ".join(origins[:_MOST]) + (f" and {more} more" if more > 0 else "")


def together(decisions: Iterable[Decision]) -> tuple[str, ...]:
    """The nodes of several decisions, each once."""
    return tuple(dict.fromkeys(each for decision in decisions for each in decision.origins))
