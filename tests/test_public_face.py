"""Every public name is documented, and the site's reference shows it."""

import ast
import dataclasses
import inspect
import re
import textwrap
from typing import Any

import click
import pytest

import tvm_hybrid
from tools.api_reference import COMMANDS, ERRORS, INDEX, TOPICS, anchor, pages, signature
from tools.public_face import Docstring, function_of, public_commands, public_errors, public_objects

OBJECTS = public_objects()
REFERENCE = pages()


def raises(value: Any) -> bool:
    """Whether a function's source has a `raise`; a dataclass's constructor has no source."""
    if dataclasses.is_dataclass(value):
        return False
    tree = ast.parse(textwrap.dedent(inspect.getsource(function_of(value))))
    return any(isinstance(node, ast.Raise) for node in ast.walk(tree))


@pytest.mark.parametrize("name", OBJECTS)
def test_parameters_and_errors_are_documented(name: str) -> None:
    value = OBJECTS[name]
    documented = Docstring.of(value)
    assert documented.text
    parameters = set(inspect.signature(function_of(value)).parameters) - {"self", "cls"}
    assert documented.names("Parameters") == parameters
    if raises(value):
        assert documented.entries("Raises")


@pytest.mark.parametrize("name", public_errors())
def test_errors_say_when_they_are_raised(name: str) -> None:
    # A class without a docstring would show its base's docstring.
    assert public_errors()[name].__doc__


def test_commands_and_their_options_have_help() -> None:
    silent = [
        f"{name} {parameter.name}"
        for name, command in public_commands().items()
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.help
    ]
    assert not silent
    assert all(command.help for command in public_commands().values())


def test_every_public_name_has_one_place_in_the_reference() -> None:
    names = [name for _, _, names in TOPICS.values() for name in names]
    assert sorted([*names, "errors"]) == sorted(tvm_hybrid.__all__)
    for topic, (title, _, inside) in TOPICS.items():
        assert f"## [{title}]({topic}.md)" in REFERENCE[INDEX].splitlines()
        for name in inside:
            assert f"| [`{name}`]({topic}.md#{anchor(name)}) |" in REFERENCE[INDEX], name


@pytest.mark.parametrize("name", OBJECTS)
def test_the_reference_shows_the_docstring(name: str) -> None:
    owner = name.partition(".")[0]
    (page,) = (f"reference/{topic}.md" for topic, (_, _, names) in TOPICS.items() if owner in names)
    (section,) = re.findall(
        rf"^##+ {re.escape(name)}\n(.*?)(?=^##+ |\Z)", REFERENCE[page], re.M | re.S
    )
    documented = Docstring.of(OBJECTS[name])
    assert documented.text in section
    assert f"```python\n{signature(name, OBJECTS[name])}\n```" in section
    for title in documented.sections:
        assert f"\n**{title}**\n" in section
        if title in ("Parameters", "Raises"):
            assert all(f"- `{head.partition(' : ')[0]}`" in section
                       for head, _ in documented.entries(title))  # fmt: skip


def test_the_reference_shows_errors_and_commands() -> None:
    for name, error in public_errors().items():
        assert f"| `{name}` | " in REFERENCE[ERRORS]
        assert f" | {Docstring.of(error).text} |" in REFERENCE[ERRORS]
    for name, command in public_commands().items():
        assert f"\n## {name}\n" in REFERENCE[COMMANDS]
        options = [
            each.opts[-1]
            for each in command.params
            if isinstance(each, click.Option) and not each.hidden
        ]
        assert all(option in REFERENCE[COMMANDS] for option in options)


def test_a_long_signature_has_a_line_for_each_parameter() -> None:
    def short(a: int, *, b: int = 1) -> int:
        return a + b

    def long(first: str = "x" * 60, *, second: str = "y" * 60, **rest: str) -> None: ...

    assert signature("short", short) == "short(a, *, b=1)"
    lines = ["long(", f"    first='{'x' * 60}',", "    *,", f"    second='{'y' * 60}',"]
    assert signature("long", long).splitlines() == [*lines, "    **rest,", ")"]


def test_a_docstring_is_read_by_its_sections() -> None:
    def documented() -> None:
        """Does it.

        More.

        Parameters
        ----------
        a, b : int
            Two numbers.

            A second paragraph.
        *rest

        Raises
        ------
        ValueError
            If not.
        """

    read = Docstring.of(documented)
    assert read.text == "Does it.\n\nMore."
    assert read.names("Parameters") == {"a", "b", "rest"}
    assert read.entries("Raises") == [("ValueError", "If not.")]
    assert read.entries("Parameters")[0][1] == "Two numbers.\n\nA second paragraph."
    assert read.names("Returns") == set()
