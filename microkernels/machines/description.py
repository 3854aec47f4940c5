"""Reads descriptions of CPUs: numbers, where they come from, and an elder that states the rest.

    {"title": "AMD EPYC 9004", "inherits": "znver3",
     "numbers": {"l2_bytes": {"value": 1048576, "kind": "data sheet", "source": "..."},
                 "fork_us": {"value": [[1, 0], [2, 1.0]], "kind": "measured", "source": "..."}}}

A value is a number, or a curve: values for rising numbers of threads, with straight lines between
them, and the last one from there on. Clocks are in MHz, times in microseconds or cycles, rates in
bytes a microsecond or, from L1 and L2, vectors or bytes a cycle.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec

from microkernels.base.errors import TargetError

FOLDER = Path(__file__).parent
BASE = "x86-64"

# CPUs without a description that are much like one that has one.
_NEAREST = {
    "core-avx2": "haswell",
    "skylake": "broadwell",
    "cannonlake": "icelake-server",
    "icelake-client": "icelake-server",
    "tigerlake": "icelake-server",
    "rocketlake": "icelake-server",
    "graniterapids-d": "graniterapids",
    "diamondrapids": "graniterapids",
    "raptorlake": "alderlake",
    "meteorlake": "alderlake",
    "arrowlake": "alderlake",
    "arrowlake-s": "alderlake",
    "lunarlake": "alderlake",
    "sierraforest": "alderlake",
    "znver1": "znver2",
}

Kind = Literal["data sheet", "manual", "measured", "fitted", "guess"]
Curve = tuple[tuple[int, float], ...]


class Number(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One number and where it comes from.

    Attributes
    ----------
    value : float or tuple of (int, float)
        For any number of threads, or for rising ones.
    kind : str
        How it was found.
    source : str
        Who says so, or by what reasoning.
    error : float or None
        Relative error of what was measured or fitted, if known.
    """

    value: float | Curve
    kind: Kind
    source: str
    error: float | None = None

    def at(self, threads: int) -> float:
        """The value for so many threads."""
        if not isinstance(self.value, tuple):
            return self.value
        first, last = self.value[0], self.value[-1]
        if threads <= first[0] or len(self.value) == 1:
            return first[1]
        for (low, below), (high, above) in pairwise(self.value):
            if threads <= high:
                return below + (above - below) * (threads - low) / (high - low)
        return last[1]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    title: str
    numbers: dict[str, Number]
    inherits: str = ""


@dataclass(frozen=True, eq=False)
class Description:
    """What is known of one CPU.

    Attributes
    ----------
    name : str
        LLVM's name of the CPU, or the path of a user's file.
    title : str
        In words.
    numbers : mapping from str to Number
        All of them, inherited ones too.
    origins : mapping from str to str
        Number -> the name of the description that states it.
    """

    name: str
    title: str
    numbers: Mapping[str, Number]
    origins: Mapping[str, str]

    def at(self, number: str, threads: int = 1) -> float:
        """A number's value for so many threads."""
        return self.numbers[number].at(threads)

    def guesses(self, tiles: bool) -> list[str]:
        """Numbers that nobody stated or measured; those of AMX tiles only with `tiles`."""
        return [
            name
            for name, number in self.numbers.items()
            if number.kind == "guess" and (tiles or "tile" not in name)
        ]

    def with_numbers(
        self, values: Mapping[str, float | Curve], kind: Kind, source: str
    ) -> Description:
        """The same but for some numbers, all from one source."""
        changed = {name: Number(value, kind, source) for name, value in values.items()}
        return replace(
            self,
            numbers={**self.numbers, **changed},
            origins={**self.origins, **dict.fromkeys(changed, self.name)},
        )


def described() -> list[str]:
    """The names of all descriptions that come along."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


@functools.cache
def describe(name: str) -> Description:
    """The description of a CPU by LLVM's name; if there is none, the nearest one or the base's."""
    return read_description(shipped_path(name))


def shipped_path(name: str) -> Path:
    """The file of `describe`."""
    names = (name, _NEAREST.get(name, BASE), BASE)
    return next(path for path in map(_shipped, names) if path.is_file())


def _shipped(name: str) -> Path:
    return FOLDER / f"{name}.json"


def read_description(path: Path) -> Description:
    """A description from a file; its elders are among those that come along.

    Raises
    ------
    TargetError
        If the file cannot be read or is no description; if it states a number that there is not or
        that cannot be; if neither it nor an elder states one.
    """
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except (OSError, msgspec.MsgspecError) as error:
        raise TargetError(f"{path} is no description of a machine: {error}") from error
    for name, number in file.numbers.items():
        _check(path, name, number)
    own = path.stem if path == _shipped(path.stem) else str(path)
    numbers, origins = dict(file.numbers), dict.fromkeys(file.numbers, own)
    if file.inherits:
        if file.inherits not in described():
            known = ", ".join(described())
            raise TargetError(f"{path} inherits {file.inherits}; there are {known}")
        elder = describe(file.inherits)
        numbers, origins = {**elder.numbers, **numbers}, {**elder.origins, **origins}
    if own != BASE:
        read = describe(BASE).numbers.keys()
        if unknown := sorted(numbers.keys() - read):
            raise TargetError(f"{path}: there is no number {', '.join(unknown)}")
        if missing := sorted(read - numbers.keys()):
            raise TargetError(f"{path} does not state {', '.join(missing)}; let it inherit {BASE}")
    return Description(own, file.title, numbers, origins)


def _check(path: Path, name: str, number: Number) -> None:
    """Refuses what is no curve, and values that cannot be."""
    points = number.value if isinstance(number.value, tuple) else ((1, number.value),)
    threads = [count for count, _ in points]
    if not threads or threads != sorted(set(threads)) or threads[0] < 1:
        raise TargetError(f"{path}: {name} is no curve over rising numbers of threads")
    # Only forking one thread takes no time.
    if not all(value > 0 or (value == 0 and name == "fork_us" and n == 1) for n, value in points):
        raise TargetError(f"{path}: {name} has to be above 0")
