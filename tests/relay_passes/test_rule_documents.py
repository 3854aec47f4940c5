"""Every rule shows an example of what it does, and has its own test."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def rules_of(path: Path) -> Iterator[tuple[str, str]]:
    """The name of each rule in a file, and the docstrings of the rule and of its factory."""

    def inside(nodes: list[ast.stmt], above: str) -> Iterator[tuple[str, str]]:
        for node in nodes:
            if isinstance(node, ast.FunctionDef):
                text = above + (ast.get_docstring(node) or "")
                calls = (each for each in node.decorator_list if isinstance(each, ast.Call))
                if any(
                    isinstance(each.func, ast.Name) and each.func.id == "rule" for each in calls
                ):
                    yield node.name, text
                yield from inside(node.body, text)

    return inside(ast.parse(path.read_text()).body, "")


RULES = {
    name: (path.parent.name, text)
    for path in sorted(ROOT.glob("relay_passes/*/*.py"))
    for name, text in rules_of(path)
}


@pytest.mark.parametrize("name", RULES)
def test_before_and_after(name: str) -> None:
    room, text = RULES[name]
    lines = [line.strip() for line in text.splitlines()]
    assert any(line.startswith("Before") for line in lines)
    assert any(line.startswith("After") for line in lines)
    tests = ROOT.glob(f"tests/relay_passes/{room}/test_*.py")
    assert any(name in path.stem + path.read_text() for path in tests)


def test_rules_are_found() -> None:
    assert len(RULES) > 45
