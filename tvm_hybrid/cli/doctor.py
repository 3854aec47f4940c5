"""`tvm-hybrid doctor`: what is installed, what the CPU can do, and what is in the way."""

from __future__ import annotations

import click

from .base.console import output_console, print_json
from .base.options import json_option

_COLOURS = {"ok": "", "warning": "yellow", "bad": "bold red"}


@click.command("doctor")
@json_option
def command(as_json: bool) -> int:
    """Shows versions, CPU, instruction sets, threads and settings; exit code 1 if something is bad.

    Put its output into bug reports.
    """
    from rich.table import Table
    from rich.text import Text

    from .environment import BAD, examine

    facts = examine()
    if as_json:
        print_json(facts)
    else:
        table = Table("", "what", "found", show_header=False)
        topic = ""
        for fact in facts:
            if fact.topic != topic:
                table.add_section()
            style = _COLOURS[fact.state]
            table.add_row(
                fact.topic if fact.topic != topic else "", fact.name, Text(fact.value, style)
            )
            topic = fact.topic
        output_console().print(table)
    return 1 if any(fact.state == BAD for fact in facts) else 0
