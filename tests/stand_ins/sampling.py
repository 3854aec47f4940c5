"""Chooses the tests that only `make test-all` runs, because similar tests run.

Of each test marked `sampled` every eighth set of parameters runs, separately for each instruction
set; the first one differs between tests and between days. The rule applies also to each test of
code for instruction sets that the CPU lacks, with all these sets together: code by stand-ins
compiles and runs more slowly. Exempt are tests of microkernels, where a parameter is a kernel, and
those of the AMX emulator, which are quick.

A file of templates runs many tests for each instruction set, its parameter `isa`. Every third one
runs, with another start per test and day, so that each file still runs all its instruction sets.

Of the tests that remain in a file of long tests, marked `turns`, every third one runs, and of the
notebooks, too.

Within `tests.examples.DAYS` days each test runs at least once.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence

import pytest

from microkernels.isa import LADDER
from tests.examples import EVERY_CASE, EVERY_ISA, EVERY_SAMPLE, in_turn, today, turns_of
from tests.microkernels.isa_targets import target_of

from .building import lacks

_NAMES = {isa.name for isa in LADDER}
_WHOLE = ("tests/microkernels/", "tests/amx_emulator/")
_TEMPLATES = "tests/tir_schedules/"


def left_out(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """The tests that a run without slow tests leaves out."""
    lacking = {name for name in _NAMES if lacks(target_of(name))}
    groups: dict[tuple[str, str], list[pytest.Item]] = {}
    of_templates: list[pytest.Item] = []
    for item in items:
        isa = _isa_of(item)
        by_stand_ins = isa in lacking and not item.nodeid.startswith(_WHOLE)
        if by_stand_ins or item.get_closest_marker("sampled"):
            key = (_name(item), "stand-ins" if by_stand_ins else isa)
            groups.setdefault(key, []).append(item)
        if not by_stand_ins and item.nodeid.startswith(_TEMPLATES) and isa_parameter(item):
            of_templates.append(item)
    turns = turns_of(today())
    kept = kept_isas(((_name(item), isa_parameter(item)) for item in of_templates), turns.isa)
    left = {item for item in of_templates if (_name(item), isa_parameter(item)) not in kept}
    for key, group in groups.items():
        first = zlib.crc32(" ".join(key).encode())
        stay = in_turn(len(group), EVERY_SAMPLE, first + turns.sample)
        left.update(item for n, item in enumerate(group) if n not in stay)
    yield from left
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item not in left and _has_turns(item):
            files.setdefault(_file(item), []).append(item)
    for file, long in files.items():
        stay = in_turn(len(long), EVERY_CASE, zlib.crc32(file.encode()) + turns.case)
        yield from (item for n, item in enumerate(long) if n not in stay)


def kept_isas(pairs: Iterable[tuple[str, str]], turn: int) -> set[tuple[str, str]]:
    """Pairs of a test's name and an ISA that run in this turn.

    Each test keeps one ISA or more, and each file keeps every ISA of its tests.
    """
    tests: dict[str, list[str]] = {}
    for name, isa in pairs:
        if isa not in tests.setdefault(name, []):
            tests[name].append(isa)
    files: dict[str, list[str]] = {}
    for name in tests:
        files.setdefault(name.split("::")[0], []).append(name)
    kept = set()
    for names in files.values():
        left = {isa: name for name in reversed(names) for isa in tests[name]}
        for first, name in enumerate(names):
            for n in in_turn(len(tests[name]), EVERY_ISA, first + turn):
                isa = tests[name][n]
                kept.add((name, isa))
                left.pop(isa, None)
        kept.update((name, isa) for isa, name in left.items())
    return kept


def isa_parameter(item: pytest.Item) -> str:
    """The value of a test's parameter `isa`; "" if it is missing or not an ISA's name."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return ""
    isa = item.callspec.params.get("isa")
    return isa if isinstance(isa, str) and isa in _NAMES else ""


def _has_turns(item: pytest.Item) -> bool:
    """Whether an item is a notebook or marked `turns`, and not slow: a third of these run."""
    if item.get_closest_marker("slow"):
        return False
    return item.path.suffix == ".ipynb" or item.get_closest_marker("turns") is not None


def _file(item: pytest.Item) -> str:
    """Name of the group that takes turns: a file, or all notebooks."""
    return "notebooks" if item.path.suffix == ".ipynb" else str(item.path)


def _name(item: pytest.Item) -> str:
    """A test's name without parameters."""
    return item.nodeid.split("[")[0]


def _isa_of(item: pytest.Item) -> str:
    """The highest ISA that a test names, in a mark or a parameter; "" if it names none."""
    names = [mark.args[0] for mark in item.iter_markers("isa")]
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        names += [value for value in item.callspec.params.values() if isinstance(value, str)]
    return next((isa.name for isa in reversed(LADDER) if isa.name in names), "")
