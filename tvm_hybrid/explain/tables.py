"""Tables that fit the console: one that is too wide becomes a list, and nothing is cut off."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text


class FittingConsole(Console):
    """A console that never cuts tables off: a table that is too wide becomes a list."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints like any console, but fits tables."""
        fitting = (shown_on(self, each) if isinstance(each, Table) else each for each in objects)
        super().print(*fitting, **options)


THINNEST = 24
"""Least width in characters of a column whose longer words may be folded."""


def shown_on(console: Console, table: Table) -> RenderableType:
    """Returns a table unchanged if the console is wide enough, else as a list of its rows.

    Words may be folded, but nothing is cut off.
    """
    for column in table.columns:
        if not column.no_wrap:
            column.overflow = "fold"
    needed = 3 * len(table.columns) + 1
    wide = console.options.update(max_width=10_000)
    for column in table.columns:
        measured = [Measurement.get(console, wide, cell) for cell in (column.header, *column.cells)]
        widest = max(each.maximum if column.no_wrap else each.minimum for each in measured)
        may_fold = column.justify == "left" and not column.no_wrap
        needed += min(widest, THINNEST) if may_fold else widest
    return table if needed <= console.width else _as_list(console, table)


def _as_list(console: Console, table: Table) -> RenderableType:
    """Turns every row into lines, one for each column that is not empty."""

    def text(cell: RenderableType) -> Text:
        return cell if isinstance(cell, Text) else console.render_str(str(cell), highlight=False)

    headers = [
        " ".join(text(column.header).plain.split()) if table.show_header else ""
        for column in table.columns
    ]
    margin = max(map(len, headers), default=0) + 2 * any(headers)
    lines: list[RenderableType] = []
    if table.title:
        lines.append(table.title)
    for row in zip(*(column.cells for column in table.columns), strict=True):
        if lines and any(headers):
            lines.append("")
        for header, cell in zip(headers, map(text, row), strict=True):
            if cell.plain:  # next to its column's header, folded if necessary
                line = Table.grid()
                line.add_column(no_wrap=True)
                line.add_column(overflow="fold", ratio=1)
                line.add_row(header.ljust(margin), cell)
                lines.append(line)
    if table.caption:
        lines += ["", table.caption]
    return Group(*lines)
