"""Finds the public names of tvm_hybrid: functions, classes and methods, errors, commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import click

import tvm_hybrid
from tvm_hybrid.cli.group import cli

SECTIONS = ("Parameters", "Attributes", "Returns", "Yields", "Raises", "Notes", "Examples")


@dataclass(frozen=True)
class Docstring:
    """A NumPy-style docstring: the text before the first section, and sections by title."""

    text: str
    sections: dict[str, str]

    @classmethod
    def of(cls, owner: Any) -> Docstring:
        """Reads the docstring of a function, class or property; it is empty if there is none."""
        pieces = re.split(
            rf"^({'|'.join(SECTIONS)})\n-+\n", inspect.getdoc(owner) or "", flags=re.M
        )
        sections = dict(zip(pieces[1::2], (text.strip("\n") for text in pieces[2::2]), strict=True))
        return cls(pieces[0].strip(), sections)

    def entries(self, section: str) -> list[tuple[str, str]]:
        """The entries of a section: each line without indentation, with the text below it."""
        pieces = re.split(r"^(\S.*)\n?", self.sections.get(section, ""), flags=re.M)
        return [
            (head, inspect.cleandoc("\n" + text).strip())
            for head, text in zip(pieces[1::2], pieces[2::2], strict=True)
        ]

    def names(self, section: str) -> set[str]:
        """The names that the entries of a section describe; one entry may have several."""
        heads = [head.partition(" : ")[0] for head, _ in self.entries(section)]
        return {name.strip(" *") for head in heads for name in head.split(",")}


def public_objects() -> dict[str, Any]:
    """Functions and classes of `tvm_hybrid.__all__`, and their public members, by dotted name."""
    found: dict[str, Any] = {}
    for name in tvm_hybrid.__all__:
        value = getattr(tvm_hybrid, name)
        if inspect.ismodule(value):
            continue
        found[name] = value
        if inspect.isclass(value):
            found |= {f"{name}.{key}": member for key, member in _members(value).items()}
    return found


def _members(owner: type) -> dict[str, Any]:
    """Public methods and properties of a class, in the order of the source."""
    found: dict[str, Any] = {}
    package = owner.__module__.partition(".")[0]
    for base in reversed(owner.__mro__[:-1]):
        if base.__module__.partition(".")[0] != package:  # for example int, of an enumeration
            continue
        for key, value in vars(base).items():
            member = getattr(value, "__func__", value)
            if not key.startswith("_") and (callable(member) or isinstance(member, property)):
                found[key] = member
    return found


def function_of(value: Any) -> Callable[..., Any]:
    """The function whose parameters and errors are those of a function, class or property."""
    if isinstance(value, property):
        assert value.fget is not None
        return value.fget
    if inspect.isclass(value) and issubclass(value, Enum):  # users do not construct its members
        return _no_parameters
    found: Callable[..., Any] = value.__init__ if inspect.isclass(value) else value
    return inspect.unwrap(found)


def _no_parameters() -> None:
    """Stands for the constructor of an enumeration, which users do not call."""


def public_errors() -> dict[str, type[Exception]]:
    """The error classes in `tvm_hybrid.errors`, by name."""
    return {name: getattr(tvm_hybrid.errors, name) for name in tvm_hybrid.errors.__all__}


def public_commands() -> dict[str, click.Command]:
    """The commands of the command line, also those in groups, by what users type."""
    return _commands("tvm-hybrid", cli)


def _commands(name: str, command: click.Command) -> dict[str, click.Command]:
    found = {name: command}
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name)
        for key in command.list_commands(context):
            inner = command.get_command(context, key)
            assert inner is not None
            found |= _commands(f"{name} {key}", inner)
    return found
