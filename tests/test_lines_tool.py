"""The tool counts lines of code, imports and signatures."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tools.lines import FLOORS, Lines, lines_of, main

SOURCE = '''"""A docstring
of two lines."""

from a import (
    b,
)


@cached  # a comment
def f(
    x: int,
) -> int:
    """A docstring."""
    # a comment
    import c

    text = """one
two
"""
    return x


class A(Base):
    y: int = 0
    """Of an attribute."""

    def g(self): return self.y
'''


def test_each_kind_of_line_is_counted() -> None:
    # Imports: 3 and 1. Signatures: 4 of f, 1 of A, 1 of g. Others: 3 of the text, return, y.
    assert lines_of(SOURCE) == Lines(files=1, code=15, imports=4, signatures=6)


@pytest.mark.parametrize("source", ["", "# a comment\n", '"""A docstring."""\n'])
def test_a_file_may_have_no_code(source: str) -> None:
    assert lines_of(source) == Lines(files=1)


def test_rooms_are_shown_with_their_sum() -> None:
    result = CliRunner().invoke(main, ["--depth", "1", "--below", "1"])
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line.split()[1:] for line in result.output.splitlines() if line}
    counts = [[int(each) for each in rows[floor][:4]] for floor in FLOORS]
    assert [int(each) for each in rows["all"][:4]] == [
        sum(column) for column in zip(*counts, strict=True)
    ]
    assert "   0 tools/__init__.py" in result.output
