"""Counts lines of code by room: without docstrings, comments and blank lines.

    python -m tools.lines
    python -m tools.lines --depth 3 --below 60

Lines of imports and of signatures (from "def" or "class" to the colon, with decorators) are shown
separately: they are the cost of division into files and functions.
"""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import dataclass
from pathlib import Path

import click
from rich.table import Table

from tvm_hybrid.cli.base.console import output_console, say

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("microkernels", "tir_schedules", "relay_passes", "tvm_hybrid", "tools")
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


@dataclass(frozen=True)
class Lines:
    """Counts of files and their lines."""

    files: int = 0
    code: int = 0  # including imports and signatures
    imports: int = 0
    signatures: int = 0

    def __add__(self, other: Lines) -> Lines:
        return Lines(
            self.files + other.files,
            self.code + other.code,
            self.imports + other.imports,
            self.signatures + other.signatures,
        )


def lines_of(source: str) -> Lines:
    """The counts for one file."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {
        line
        for token in tokens
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    imports: set[int] = set()
    signatures: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.update(_span(node))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min(each.lineno for each in (node, *node.decorator_list))
            signatures.update(range(first, max(node.body[0].lineno, node.lineno + 1)))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            code.difference_update(_span(node))  # a docstring, also of an attribute
    return Lines(1, len(code), len(imports & code), len(signatures & code))


def _span(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


@click.command(help=__doc__.partition("\n")[0])
@click.option(
    "--depth", default=2, show_default=True, help="Number of folders that form a room's name."
)
@click.option("--below", default=0, help="Also list files with fewer lines of code than this.")
def main(depth: int, below: int) -> None:
    rooms: dict[str, Lines] = {}
    short = []
    for floor in FLOORS:
        for path in sorted((ROOT / floor).rglob("*.py")):
            found = lines_of(path.read_text())
            name = path.relative_to(ROOT)
            room = "/".join(name.parts[:-1][:depth])
            rooms[room] = rooms.get(room, Lines()) + found
            if found.code < below:
                short.append((found.code, name))
    table = Table(box=None, pad_edge=False)
    table.add_column("room")
    for column in ("files", "code", "imports", "signatures", "share of both"):
        table.add_column(column, justify="right")
    for room, found in sorted(rooms.items()):
        table.add_row(room, *_cells(found))
    table.add_section()
    table.add_row("all", *_cells(sum(rooms.values(), Lines())))
    output_console().print(table)
    say(*(f"{count:4} {name}" for count, name in sorted(short)))


def _cells(found: Lines) -> tuple[str, ...]:
    share = (found.imports + found.signatures) / max(found.code, 1)
    numbers = (found.files, found.code, found.imports, found.signatures)
    return (*map(str, numbers), f"{share:.0%}")


if __name__ == "__main__":
    main()
