"""Every public name is documented, and the API reference agrees with the docstrings."""

import ast
import dataclasses
import inspect
import textwrap
from typing import Any

import click
import pytest

from tools.api_reference import PAGE, page
from tools.public_face import Docstring, function_of, public_commands, public_errors, public_objects

OBJECTS = public_objects()


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


def test_the_reference_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run `python -m tools.api_reference`"


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
