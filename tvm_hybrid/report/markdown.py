"""Tables of the pages of documentation that commands write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table, after an empty one."""
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, *rows)]
    return ["", lines[0], f"|{'---|' * len(columns)}", *lines[1:]]
