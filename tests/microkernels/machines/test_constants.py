"""Numbers of one CPU stand only in machine descriptions."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import microkernels
import relay_passes
import tir_schedules

FLOORS = [
    Path(package.__file__ or "").parent for package in (microkernels, tir_schedules, relay_passes)
]
# Names of times, rates and clocks, which were once measured on one CPU and kept in estimates.
FORBIDDEN = re.compile(
    r"MEASURED|DATA_SHEETS|SAPPHIRE_RAPIDS|.*(_US|_NS|NANOSECONDS|_RATE|_RATES|CLOCK|_MHZ|_GHZ)"
    r"|(FORK|BARRIER|THREAD|PARALLEL)_.*"
)


def constants(source: str) -> set[str]:
    """Names that a module assigns at its top level."""
    found = set()
    for statement in ast.parse(source).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        for target in targets:
            found |= {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
    return found


@pytest.mark.parametrize("folder", FLOORS, ids=lambda path: path.name)
def test_no_module_has_numbers_of_one_cpu(folder: Path) -> None:
    found = {
        f"{path.relative_to(folder.parent)}: {name}"
        for path in folder.rglob("*.py")
        for name in constants(path.read_text())
        if FORBIDDEN.fullmatch(name)
    }
    assert not found


def test_the_search_finds_what_there_was() -> None:
    before = "FORK_JOIN_US = 1.0\nMEASURED, (VECTOR_RATE, X) = 1, (2, 3)\nNORM_CYCLES = 7.0\n"
    found = {name for name in constants(before) if FORBIDDEN.fullmatch(name)}
    assert found == {"FORK_JOIN_US", "MEASURED", "VECTOR_RATE"}
