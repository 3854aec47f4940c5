"""Footprints: how many lines of an array instructions touch while the loops around them run.

A pattern is a run of bytes, repeated along some dimensions. A loop around it adds a dimension, or
makes an existing one longer where its steps fit: rows of a window that moves by rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

from .index import Atom, Environment, Index
from .nodes import Access, Memory

LINE = 64
_TRIED = 64  # values of a variable in an index that is not linear

Dimension = tuple[int, int]  # bytes from one to the next, how many


@dataclass(frozen=True)
class Pattern:
    """Bytes of an array.

    Attributes
    ----------
    memory : Memory
        Which array.
    moves : Index
        By what it moves with loops that are not yet counted in.
    width : int
        Bytes in a row.
    dimensions : tuple of (bytes, count)
        How often, by rising distance.
    store : bool
        Whether anything of it is written.
    """

    memory: Memory
    moves: Index
    width: int
    dimensions: tuple[Dimension, ...] = ()
    store: bool = False

    @property
    def size(self) -> float:
        """Bytes of the lines that it touches."""
        pieces = 1
        for _, count in self.dimensions:
            pieces *= count
        return min(pieces * _lines(self.width) * LINE, max(self.memory.size, LINE))

    @property
    def hull(self) -> int:
        """Bytes from the first to the last."""
        return self.width + sum(step * (count - 1) for step, count in self.dimensions)

    def along(self, loop: int, count: int, environment: Environment) -> Pattern:
        """What it touches while a loop runs so often."""
        if loop not in self.moves.loops or count <= 1:
            return replace(self, moves=_without(self.moves, loop))
        factors = dict(self.moves.terms)
        if all(isinstance(atom, int) or loop not in _loops(atom) for atom in factors):
            added = [(abs(factors[loop]), count)]
        else:
            added = _steps(self.moves, loop, count, environment)
        width, dimensions = _merged(self.width, [*self.dimensions, *added])
        moves = _without(self.moves, loop)
        return replace(self, moves=moves, width=width, dimensions=dimensions)


def _lines(width: int) -> float:
    """Lines that so many bytes lie in, by the mean over where they begin."""
    return ceil(width / LINE) if width % LINE == 0 else (width + LINE - 4) / LINE


def _loops(atom: Atom) -> frozenset[int]:
    """The loops on which an atom depends."""
    return Index(0, ((atom, 1),)).loops


def _without(moves: Index, loop: int) -> Index:
    """Without what moves with a loop."""
    return Index(0, tuple(term for term in moves.terms if loop not in _loops(term[0])))


def _steps(moves: Index, loop: int, count: int, environment: Environment) -> list[Dimension]:
    """The places to which an index that is not linear moves, as one or two dimensions."""
    values = range(count) if count <= _TRIED else [count * i // _TRIED for i in range(_TRIED)]
    places = sorted({moves.evaluate({**environment, loop: value}) for value in values})
    if count > _TRIED:
        distinct = max(1, round(len(places) * count / _TRIED))
        hull = places[-1] - places[0]
        return [(max(1, hull // max(1, distinct - 1)), distinct)]
    return dimensions_of(places)


def dimensions_of(places: Sequence[int]) -> list[Dimension]:
    """Sorted places as dimensions: exact if they are a grid, else a row of as many."""
    if len(places) <= 1:
        return []
    gaps = [b - a for a, b in pairwise(places)]
    step = gaps[0]
    if all(gap == step for gap in gaps):
        return [(step, len(places))]
    run = next(i for i, gap in enumerate(gaps) if gap != step) + 1
    starts = places[::run]
    if len(places) % run == 0 and all(
        places[i + j] == start + j * step
        for i, start in zip(range(0, len(places), run), starts, strict=True)
        for j in range(run)
    ):
        return [(step, run), *dimensions_of(starts)]
    return [(max(1, (places[-1] - places[0]) // (len(places) - 1)), len(places))]


def _merged(width: int, dimensions: Iterable[Dimension]) -> tuple[int, tuple[Dimension, ...]]:
    """The same bytes with as few dimensions as possible."""
    merged: list[Dimension] = []
    for step, count in sorted(d for d in dimensions if d[0] > 0 and d[1] > 1):
        if not merged and step <= max(width, LINE):
            width = width + step * (count - 1)
            continue
        if merged:
            last, times = merged[-1]
            if step % last == 0 and step // last <= times:
                merged[-1] = (last, times + step // last * (count - 1))
                continue
        merged.append((step, count))
    return width, tuple(merged)


def patterns_of(accesses: Iterable[Access]) -> list[Pattern]:
    """The accesses of some instructions, those to neighbouring places together."""
    groups: dict[tuple[Memory, Index, int, int, int], dict[int, bool]] = {}
    for access in accesses:
        moves = Index(0, access.start.terms)
        key = (access.memory, moves, access.width, access.pieces, access.stride)
        places = groups.setdefault(key, {})
        at = access.start.constant
        places[at] = places.get(at, False) or access.store
    found = []
    for (memory, moves, width, pieces, stride), places in groups.items():
        own = [(stride, pieces)] if pieces > 1 else []
        if not moves.known:
            own = [(LINE, min(len(places) * max(pieces, 1), max(1, memory.size // LINE)))]
        dimensions = dimensions_of(sorted(places)) if moves.known else []
        merged, kept = _merged(width, [*own, *dimensions])
        found.append(Pattern(memory, moves, merged, kept, any(places.values())))
    return found
