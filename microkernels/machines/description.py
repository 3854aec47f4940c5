"""Reads descriptions of CPUs: numbers with their sources, and a parent for all other numbers.

    {"title": "AMD EPYC 9004", "inherits": "znver3",
     "numbers": {"l2_bytes": {"value": 1048576, "kind": "data sheet", "source": "..."},
                 "fork_us": {"value": [[1, 0], [2, 1.0]], "kind": "measured", "source": "..."}}}

A value is a number, or a curve over thread counts: linear between its points, constant after the
last one. Clocks are in MHz, times in microseconds or cycles, rates in bytes a microsecond or, for
L1 and L2, in vectors or bytes a cycle.
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

# CPUs without a description, and the described CPU that each is most like.
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
        One value for all thread counts, or values for rising thread counts.
    kind : str
        How it was found.
    source : str
        Where the value is stated, or how it was derived.
    error : float or None
        Relative error of a measured or fitted value, if known.
    """

    value: float | Curve
    kind: Kind
    source: str
    error: float | None = None

    def at(self, threads: int) -> float:
        """The value for `threads` threads."""
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
    """The numbers known of one CPU.

    Attributes
    ----------
    name : str
        LLVM's name of the CPU, or the path of a user's file.
    title : str
        The CPU's name in words.
    numbers : mapping from str to Number
        All numbers, inherited ones included.
    origins : mapping from str to str
        Number -> name of the description that states it.
    """

    name: str
    title: str
    numbers: Mapping[str, Number]
    origins: Mapping[str, str]

    def at(self, number: str, threads: int = 1) -> float:
        """The value of a number for `threads` threads."""
        return self.numbers[number].at(threads)

    def guesses(self, tiles: bool) -> list[str]:
        """Names of the guessed numbers; those of AMX tiles only if `tiles` is true."""
        return [
            name
            for name, number in self.numbers.items()
            if number.kind == "guess" and (tiles or "tile" not in name)
        ]

    def with_numbers(
        self, values: Mapping[str, float | Curve], kind: Kind, source: str
    ) -> Description:
        """A copy with other values of some numbers, all from one source."""
        changed = {name: Number(value, kind, source) for name, value in values.items()}
        return replace(
            self,
            numbers={**self.numbers, **changed},
            origins={**self.origins, **dict.fromkeys(changed, self.name)},
        )


def described() -> list[str]:
    """The names of all shipped descriptions."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


@functools.cache
def describe(name: str) -> Description:
    """The description for LLVM's name of a CPU, else of the nearest CPU, else of any x86-64."""
    return read_description(shipped_path(name))


def shipped_path(name: str) -> Path:
    """The file that `describe` reads."""
    names = (name, _NEAREST.get(name, BASE), BASE)
    return next(path for path in map(_shipped, names) if path.is_file())


def _shipped(name: str) -> Path:
    return FOLDER / f"{name}.json"


def read_description(path: Path) -> Description:
    """Reads a description from a file; it may inherit only from shipped descriptions.

    Raises
    ------
    TargetError
        If the file cannot be read or is no description, if it has an unknown number or an
        impossible value, or if a number is missing in it and in what it inherits.
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
        parent = describe(file.inherits)
        numbers, origins = {**parent.numbers, **numbers}, {**parent.origins, **origins}
    if own != BASE:
        read = describe(BASE).numbers.keys()
        if unknown := sorted(numbers.keys() - read):
            raise TargetError(f"{path}: there is no number {', '.join(unknown)}")
        if missing := sorted(read - numbers.keys()):
            raise TargetError(f"{path} does not state {', '.join(missing)}; let it inherit {BASE}")
    return Description(own, file.title, numbers, origins)


def _check(path: Path, name: str, number: Number) -> None:
    """Refuses malformed curves and impossible values."""
    points = number.value if isinstance(number.value, tuple) else ((1, number.value),)
    threads = [count for count, _ in points]
    if not threads or threads != sorted(set(threads)) or threads[0] < 1:
        raise TargetError(f"{path}: {name} is no curve over rising numbers of threads")
    # Only forking one thread takes no time.
    if not all(value > 0 or (value == 0 and name == "fork_us" and n == 1) for n, value in points):
        raise TargetError(f"{path}: {name} has to be above 0")
