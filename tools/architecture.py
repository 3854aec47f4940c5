"""Reads the rooms of the code: `python -m tools.architecture` prints a line for each.

The site's page Architecture (`make docs`) has each room's whole text and what it imports.

A floor is one of the four packages. A room is a folder of a floor, with all folders inside it. A
room's text is the docstring of its `__init__`. An import anywhere in a file counts, unless it is
under `if TYPE_CHECKING:`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("microkernels", "tir_schedules", "relay_passes", "tvm_hybrid")
PURPOSES = {
    "microkernels": "a register tile for one instruction set",
    "tir_schedules": "loops around microkernels",
    "relay_passes": "which operators form a region",
    "tvm_hybrid": "the public face",
}

INTRODUCTION = """\
# Architecture

The compiler has four floors, one package each. A floor imports only from the floors above it in
this table. A floor consists of rooms, one folder each. Rooms do not import each other in a circle.
Files at the top of a floor belong to no room.
"""


@dataclass
class Room:
    """A folder of a floor, or the files at the top of a floor."""

    name: str  # `floor.folder`, or `floor` alone
    text: str  # the docstring of its `__init__`
    folders: dict[str, str] = field(default_factory=dict)  # name of a folder -> its docstring
    uses: set[str] = field(default_factory=set)  # rooms that it imports from


def read_rooms(root: Path = ROOT) -> dict[str, Room]:
    """The rooms of all floors in the folder `root`, by name, with floors from left to right."""
    sources = _sources(root)
    rooms: dict[str, Room] = {}
    for path, tree in sources.items():
        if path.name == "__init__.py":
            folder, text = ".".join(path.parts[:-1]), ast.get_docstring(tree) or ""
            name = _room_of(path.parts)
            if name == folder:
                rooms[name] = Room(name, text)
            else:
                rooms[name].folders[folder.removeprefix(f"{name}.")] = text
    for path, tree in sources.items():
        name = _room_of(path.parts)
        for module in _imported(tree, path):
            used = _room_of((*module, "?"), rooms)
            if module[0] in FLOORS and used != name:
                rooms[name].uses.add(used)
    return rooms


def read_imports(root: Path = ROOT) -> dict[str, set[str]]:
    """The modules that each module imports from; a package has the name of its folder."""
    sources = _sources(root)
    names = {path: ".".join(path.with_suffix("").parts) for path in sources}
    names = {path: name.removesuffix(".__init__") for path, name in names.items()}
    modules = set(names.values())
    imports: dict[str, set[str]] = {}
    for path, tree in sources.items():
        found = {".".join(parts) for parts in _imported(tree, path)}
        found = {name if name in modules else name.rpartition(".")[0] for name in found}
        imports[names[path]] = found & modules - {names[path]}
    return imports


def _sources(root: Path) -> dict[Path, ast.Module]:
    return {
        path.relative_to(root): ast.parse(path.read_text())
        for floor in FLOORS
        for path in sorted((root / floor).rglob("*.py"))
    }


def _room_of(parts: tuple[str, ...], rooms: dict[str, Room] | None = None) -> str:
    """The room of a file, or of a module followed by a name."""
    folder = ".".join(parts[: min(2, len(parts) - 1)])
    return folder if rooms is None or folder in rooms else parts[0]


def _imported(tree: ast.Module, path: Path) -> list[tuple[str, ...]]:
    """The modules that a file imports, each perhaps followed by an imported name."""
    found = []
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            found += [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = path.parts[: len(path.parts) - node.level] if node.level else ()
            base = (*package, *(node.module or "").split(".")) if node.module else package
            found += [(*base, alias.name) for alias in node.names]
    return found


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements in a node that run; imports are statements, so expressions are not visited."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield child
            yield from _statements(child)


def page(rooms: dict[str, Room]) -> str:
    """The page in Markdown: a table of floors, then a table of rooms and their texts by floor."""
    parts = [INTRODUCTION, "| floor | purpose | rooms |\n|---|---|---|"]
    for floor in FLOORS:
        links = ", ".join(
            f"[{name.partition('.')[2]}](#{name.replace('.', '')})"
            for name in _inside(floor, rooms)
        )
        parts.append(f"| [{floor}](#{floor}) | {PURPOSES[floor]} | {links} |")
    for floor in FLOORS:
        inside = _inside(floor, rooms)
        parts.append(f"\n## {floor}\n\n{_paragraphs(rooms[floor].text)}\n")
        parts.append("| room | what it contains | imports from this floor |\n|---|---|---|")
        for name, room in inside.items():
            used = _names([each.partition(".")[2] for each in sorted(room.uses & inside.keys())])
            link = f"[{name.partition('.')[2]}](#{name.replace('.', '')})"
            parts.append(f"| {link} | {first_line(room)} | {used} |")
        parts += ["", *(_section(room, rooms) for room in inside.values())]
    return "\n".join(parts)


def listing(rooms: dict[str, Room]) -> str:
    """A line for each floor and room: its folder, and the first line of its docstring."""
    folders = {name: name.replace(".", "/") for name in rooms}
    width = max(map(len, folders.values()))
    return "\n".join(f"{folders[name]:{width}}  {first_line(room)}" for name, room in rooms.items())


def first_line(room: Room) -> str:
    """The first line of a room's docstring."""
    return room.text.partition("\n")[0]


def _inside(floor: str, rooms: dict[str, Room]) -> dict[str, Room]:
    return {name: room for name, room in rooms.items() if name.startswith(f"{floor}.")}


def _section(room: Room, rooms: dict[str, Room]) -> str:
    users = sorted(name for name, other in rooms.items() if room.name in other.uses)
    folder = room.name.replace(".", "/")
    parts = [
        f"### {folder}",
        _paragraphs(room.text),
        *(f"- `{name}`: {_prose(text)}" for name, text in room.folders.items()),
        f"Imports from: {_names(sorted(room.uses))}. Imported by: {_names(users)}.",
    ]
    return "\n\n".join(parts) + "\n"


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _paragraphs(docstring: str) -> str:
    """A docstring with each paragraph on one line; literal blocks stay unchanged."""
    blocks = re.split(r"\n{2,}", docstring)
    return "\n\n".join(
        block if block.startswith("    ") else " ".join(block.split()) for block in blocks
    )


def _prose(docstring: str) -> str:
    """The text of a docstring before its first literal block, on one line."""
    return " ".join(docstring.split("\n    ")[0].split())


if __name__ == "__main__":
    print(listing(read_rooms()))
