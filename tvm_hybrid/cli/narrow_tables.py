"""Tables on narrow terminals: lists, where a table's columns would be cut or too thin to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Column, Table

THINNEST = 24
"""So many characters a column with longer words has at least, if these may be folded."""


def shown_on(console: Console, table: Table) -> RenderableType:
    """A table as it is if the console is wide enough, and else as a list of its rows.

    Words may be folded, but nothing is cut off.
    """
    for column in table.columns:
        if not column.no_wrap:
            column.overflow = "fold"
    edges = 3 * len(table.columns) + 1
    needed = edges + sum(_least_width(console, column) for column in table.columns)
    return table if needed <= console.width else _as_list(console, table)


def _least_width(console: Console, column: Column) -> int:
    """The width that a column has to have."""
    from rich.measure import Measurement

    wide = console.options.update(max_width=10_000)
    measured = [Measurement.get(console, wide, cell) for cell in (column.header, *column.cells)]
    if column.no_wrap:
        return max(each.maximum for each in measured)
    widest = max(each.minimum for each in measured)
    return min(widest, THINNEST) if column.justify == "left" else widest


def _as_list(console: Console, table: Table) -> RenderableType:
    """Every row as lines, a line for each column that has something to say."""
    from rich.console import Group
    from rich.text import Text

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
            if cell.plain:
                lines.append(_indented(header.ljust(margin), cell))
    if table.caption:
        lines += ["", table.caption]
    return Group(*lines)


def _indented(header: str, cell: RenderableType) -> RenderableType:
    """A cell behind its column's header, folded beside it."""
    from rich.table import Table

    line = Table.grid()
    line.add_column(no_wrap=True)
    line.add_column(overflow="fold", ratio=1)
    line.add_row(header, cell)
    return line
