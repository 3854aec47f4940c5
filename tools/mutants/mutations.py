"""The list of mutations: what each replaces, and which tests should notice."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent / "mutations"


class MutationError(Exception):
    """A mutation or a list of mutations cannot be used."""


class Mutation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One change of a source.

    Attributes
    ----------
    name : str
        For the command line and the table.
    file : str
        The source, seen from the root of the project.
    old, new : str
        A piece of the source that occurs exactly once, and its replacement.
    why : str
        What goes wrong with the replacement.
    tests : tuple of str
        Files or names of tests, as pytest takes them. At least one test must fail.
    equivalent : str
        Why the replacement changes no result; "" if it does. An equivalent mutation runs only when
        it is named.
    torch : bool
        Whether the tests need PyTorch, and so run in the environment that has it.
    """

    name: str
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]
    equivalent: str = ""
    torch: bool = False

    def applied(self, source: str) -> str:
        """A source with the replacement; raises `MutationError` unless `old` is there once."""
        count = source.count(self.old)
        if count != 1:
            raise MutationError(
                f"{self.name}: {self.file} has the text to replace {count} times, not once: "
                f"{self.old!r}. Write the mutation anew for the source as it is now."
            )
        return source.replace(self.old, self.new)


def load(folder: Path = FOLDER) -> list[Mutation]:
    """All mutations of a folder's files, by file."""
    found: list[Mutation] = []
    for path in sorted(folder.glob("*.json")):
        try:
            found += msgspec.json.decode(path.read_bytes(), type=list[Mutation])
        except msgspec.DecodeError as error:
            raise MutationError(f"{path}: {error}") from error
    names = [each.name for each in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise MutationError(f"mutations share a name: {', '.join(twice)}")
    return found


def chosen(mutations: Sequence[Mutation], patterns: Sequence[str]) -> list[Mutation]:
    """The mutations whose names match a pattern; without patterns all that change a result."""
    if not patterns:
        return [each for each in mutations if not each.equivalent]
    for pattern in patterns:
        if not any(fnmatch(each.name, pattern) for each in mutations):
            raise MutationError(f"no mutation is named {pattern}; --list shows their names")
    return [each for each in mutations if any(fnmatch(each.name, p) for p in patterns)]
