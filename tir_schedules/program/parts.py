"""Parts: what each thread touches of an array, and what of it lies in other cores' caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .nodes import Memory
from .traffic import LINE, Pattern, footprint

ROWS, COLUMNS, ALL = "rows", "columns", "all"


@dataclass(frozen=True)
class Part:
    """What the busiest thread touches of a parameter.

    Attributes
    ----------
    form : str
        A run of rows, columns, or all of it.
    threads : int
        That share it.
    """

    form: str
    threads: int


def parts_of(patterns: Sequence[Pattern], threads: int) -> dict[int, Part]:
    """What form the parts of the parameters have that a thread touches."""
    sizes, found = footprint(patterns), {}
    for pattern in patterns:
        memory = pattern.memory
        if not memory.shared:
            continue
        share = memory.size / threads
        hull = max(p.hull for p in patterns if p.memory is memory)
        if sizes[memory] > 0.75 * memory.size:
            form = ALL
        else:
            form = ROWS if hull <= 1.5 * share else COLUMNS
        found[memory.parameter] = Part(form, threads)
    return found


def foreign_bytes(touched: float, memory: Memory, part: Part | None, had: Part | None) -> float:
    """Bytes of what a thread touches that another core had."""
    if had is None or part is None:
        return 0.0
    if part == had and part.form != ALL:
        return max(0.0, touched - memory.size / part.threads)
    most = max(part.threads, had.threads)
    return touched * (most - 1) / most


def split_lines(patterns: Sequence[Pattern], parts: Mapping[int, Part]) -> float:
    """Lines at the borders of a thread's columns that a neighbour writes too."""
    found: dict[Memory, int] = {}
    for pattern in patterns:
        part = parts.get(pattern.memory.parameter)
        if not pattern.store or part is None or part.form != COLUMNS:
            continue
        if pattern.width % LINE or any(step % LINE for step, _ in pattern.dimensions):
            rows = pattern.dimensions[-1][1] if pattern.dimensions else 1
            found[pattern.memory] = max(rows, found.get(pattern.memory, 0))
    return float(sum(found.values()))
