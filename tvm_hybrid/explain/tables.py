"""Renders rich tables as plain text, for `str()`."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def as_text(table: Table) -> str:
    """The table as it would be printed on a terminal 160 characters wide, without colours."""
    from rich.console import Console

    text = io.StringIO()
    Console(width=160, color_system=None, file=text).print(table)
    return text.getvalue().rstrip("\n")
