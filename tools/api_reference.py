"""Writes docs/api.md from docstrings and the commands' help: `python -m tools.api_reference`."""

from __future__ import annotations

import inspect
from enum import Enum
from pathlib import Path
from typing import Any

import click

from tvm_hybrid.cli.group import cli

from .public_face import Docstring, public_commands, public_errors, public_objects

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"

INTRODUCTION = """\
<!-- Written by `python -m tools.api_reference`. Do not edit. -->
# API reference

[Python](#python) | [Errors](#errors) | [Command line](#command-line)

## Python
"""


def page() -> str:
    """The page as Markdown."""
    parts = [INTRODUCTION]
    parts += [_object(name, value) for name, value in public_objects().items()]
    parts.append("## Errors\n\nAll of them are in `tvm_hybrid.errors`.\n")
    parts.append(_errors())
    parts.append("## Command line\n")
    parts += [_command(name, command) for name, command in public_commands().items()]
    return "\n".join(parts)


def _object(name: str, value: Any) -> str:
    documented = Docstring.of(value)
    level = "####" if "." in name else "###"
    parts = [f"{level} {name}", f"```python\n{_signature(name, value)}\n```", documented.text]
    for title in documented.sections:
        parts.append(f"**{title}**")
        if title in ("Notes", "Examples"):
            parts.append(documented.sections[title])
        else:
            parts.append("\n".join(_entry(*entry) for entry in documented.entries(title)))
    return "\n\n".join(parts) + "\n"


def _signature(name: str, value: Any) -> str:
    if isinstance(value, property):
        return f"{name}  # property"
    if inspect.isclass(value) and issubclass(value, Enum):
        return f"{name}  # {', '.join(f'{each.name} = {each.value}' for each in value)}"
    signature = inspect.signature(value)
    plain = [
        parameter.replace(annotation=parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    return f"{name}{signature.replace(parameters=plain, return_annotation=signature.empty)}"


def _entry(head: str, text: str) -> str:
    name, colon, kind = head.partition(" : ")
    title = f"`{name}`" + (f" ({kind})" if colon else "")
    return f"- {title}" + (f": {' '.join(text.split())}" if text else "")


def _errors() -> str:
    rows = ["| error | is a | raised when |", "|---|---|---|"]
    for name, error in public_errors().items():
        bases = ", ".join(base.__name__ for base in error.__bases__)
        rows.append(f"| `{name}` | {bases} | {Docstring.of(error).text} |")
    return "\n".join(rows) + "\n"


def _command(name: str, command: click.Command) -> str:
    context = click.Context(
        command,
        info_name=name,
        max_content_width=100,
        terminal_width=100,
        # The real settings, because click keeps the first help option that a command gets.
        **cli.context_settings,
    )
    return f"### {name}\n\n```text\n{command.get_help(context)}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page())
