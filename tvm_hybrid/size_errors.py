"""Sizes that depend on data, and turn out not to fit when the model runs."""

from __future__ import annotations

import re

from microkernels.errors import FeedError

_CHECK = re.compile(r"\((-?\d+) vs\. (-?\d+)\)\s*: ErrorContext\(match_cast")


def raise_size_error(error: Exception) -> None:
    """Raises the error in our words, if a check of sizes raised it.

    Raises
    ------
    FeedError
        Naming both sizes.
    """
    found = _CHECK.search(str(error))
    if found is not None:
        raise FeedError(
            "the inputs' values make sizes that do not fit the model: one that depends on them is "
            f"{found[1]} where {found[2]} is needed"
        ) from error
