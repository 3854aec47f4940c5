"""Traffic: the bytes that a thread gets from every level of the memory.

The layer conditions of Kerncraft's Execution-Cache-Memory model (Treibig and Hager 2010; Hammer,
Eitzinger, Hager and Wellein 2017), for any nest of loops. If the bytes that one iteration touches
fit into a cache, data common to iterations stays there, and the loop fetches its footprint once.
Else every iteration fetches everything that it touches again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

from .index import Atom, Environment, Index
from .nodes import Access, Body, Loop, Memory, Walk

Bytes = dict[Memory, float]


@dataclass(frozen=True)
class Touched:
    """What a part of a kernel touches and fetches.

    Attributes
    ----------
    patterns : list of Pattern
        The footprint.
    fetched : tuple of dict
        For every cache: array -> bytes that enter the cache.
    """

    patterns: list[Pattern]
    fetched: tuple[Bytes, ...]

    @property
    def size(self) -> float:
        """Bytes of the footprint."""
        return sum(footprint(self.patterns).values())


def footprint(patterns: Sequence[Pattern]) -> Bytes:
    """Bytes that patterns touch, by array; at most the size of the array."""
    found: Bytes = {}
    for pattern in patterns:
        size = found.get(pattern.memory, 0.0) + pattern.size
        found[pattern.memory] = min(size, max(pattern.memory.size, pattern.size))
    return found


def _distinct(patterns: Sequence[Pattern]) -> list[Pattern]:
    """Removes patterns that differ only in being read or written; a write is kept."""
    found: dict[object, Pattern] = {}
    for pattern in patterns:
        key = (pattern.memory, pattern.moves, pattern.width, pattern.dimensions)
        if key not in found or pattern.store:
            found[key] = pattern
    return list(found.values())


class Traffic(Walk[Touched]):
    """Computes the traffic of a kernel's loops; `caches` are a thread's cache sizes, L1 first."""

    def __init__(self, caches: Sequence[int]) -> None:
        super().__init__()
        self.caches = tuple(caches)

    def inside(self, body: Body, environment: Environment) -> Touched:
        """Traffic of a body, with all parts one after the other."""
        own = patterns_of(body.work.accesses)
        parts = [Touched(own, tuple(footprint(own) for _ in self.caches))]
        parts += [self.child(child, environment) for child in body.children]
        if len(parts) == 1:
            return parts[0]
        patterns = _distinct([p for part in parts for p in part.patterns])
        return self._touched(patterns, parts, 1.0, sum(footprint(patterns).values()))

    def loop(self, loop: Loop, count: int, environment: Environment, first: int = 0) -> Touched:
        """Traffic of some iterations of a loop."""
        if count <= 0:
            return Touched([], tuple({} for _ in self.caches))
        varies = loop.number in loop.body.controls
        rounds = list(range(first, first + count)) if varies else [first]
        if len(rounds) > 64:
            rounds = [first + count * i // 64 for i in range(64)]
        each = [self.body(loop.body, {**environment, loop.number: i}) for i in rounds]
        share = count / len(rounds)
        middle = max(each, key=lambda touched: touched.size)
        inside = {**environment, loop.number: first}
        patterns = _distinct([p.along(loop.number, count, inside) for p in middle.patterns])
        return self._touched(patterns, each, share, middle.size)

    def _touched(
        self, patterns: list[Pattern], parts: Sequence[Touched], share: float, size: float
    ) -> Touched:
        """Sums up the parts' fetches, `share` times each; only once if a cache holds `size`."""
        fetched = []
        for level, cache in enumerate(self.caches):
            total: Bytes = {}
            for part in parts:
                for memory, moved in part.fetched[level].items():
                    total[memory] = total.get(memory, 0.0) + share * moved
            if size <= cache:
                whole = footprint(patterns).items()
                total = {memory: min(once, total.get(memory, once)) for memory, once in whole}
            fetched.append(total)
        return Touched(patterns, tuple(fetched))


# Footprints: how many lines of an array instructions touch while the loops around them run.
#
# A pattern is a run of bytes, repeated along some dimensions. A loop around it adds a dimension, or
# extends an existing one if the steps fit: rows of a window that moves by rows.


LINE = 64
_TRIED = 64  # sampled values of a variable in a nonlinear index

Dimension = tuple[int, int]  # distance in bytes, and count


@dataclass(frozen=True)
class Pattern:
    """Bytes of an array.

    Attributes
    ----------
    memory : Memory
        The array.
    moves : Index
        How the pattern moves with outer loops that are not counted yet.
    width : int
        Consecutive bytes.
    dimensions : tuple of (bytes, count)
        Repetitions, by rising distance.
    store : bool
        Whether any of the bytes is written.
    """

    memory: Memory
    moves: Index
    width: int
    dimensions: tuple[Dimension, ...] = ()
    store: bool = False

    @property
    def size(self) -> float:
        """Bytes of the touched lines."""
        pieces = 1
        for _, count in self.dimensions:
            pieces *= count
        return min(pieces * _lines(self.width) * LINE, max(self.memory.size, LINE))

    @property
    def hull(self) -> int:
        """Bytes from the first to the last touched one."""
        return self.width + sum(step * (count - 1) for step, count in self.dimensions)

    def along(self, loop: int, count: int, environment: Environment) -> Pattern:
        """The pattern of all `count` iterations of a loop."""
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
    """Mean number of lines that `width` bytes touch, over all start addresses."""
    return ceil(width / LINE) if width % LINE == 0 else (width + LINE - 4) / LINE


def _loops(atom: Atom) -> frozenset[int]:
    """Loops that an atom depends on."""
    return Index(0, ((atom, 1),)).loops


def _without(moves: Index, loop: int) -> Index:
    """Drops the terms that move with a loop."""
    return Index(0, tuple(term for term in moves.terms if loop not in _loops(term[0])))


def _steps(moves: Index, loop: int, count: int, environment: Environment) -> list[Dimension]:
    """Positions of a nonlinear index, as one or two dimensions."""
    values = range(count) if count <= _TRIED else [count * i // _TRIED for i in range(_TRIED)]
    places = sorted({moves.evaluate({**environment, loop: value}) for value in values})
    if count > _TRIED:
        distinct = max(1, round(len(places) * count / _TRIED))
        hull = places[-1] - places[0]
        return [(max(1, hull // max(1, distinct - 1)), distinct)]
    return dimensions_of(places)


def dimensions_of(places: Sequence[int]) -> list[Dimension]:
    """Describes sorted positions as dimensions: exact for a grid, else an even row."""
    if len(places) <= 1:
        return []
    gaps = [b - a for a, b in pairwise(places)]
    step = gaps[0]
    if all(gap == step for gap in gaps):
        return [(step, len(places))]
    run = next(i for i, gap in enumerate(gaps) if gap != step) + 1
    starts = places[::run]
    if list(places) == [start + j * step for start in starts for j in range(run)]:
        return [(step, run), *dimensions_of(starts)]
    return [(max(1, (places[-1] - places[0]) // (len(places) - 1)), len(places))]


def _merged(width: int, dimensions: Iterable[Dimension]) -> tuple[int, tuple[Dimension, ...]]:
    """Describes a pattern by as few dimensions as possible."""
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
    """Patterns of the accesses of some instructions; neighbouring places become one pattern."""
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


ROWS, COLUMNS, ALL = "rows", "columns", "all"


@dataclass(frozen=True)
class Part:
    """The part of a parameter that the busiest thread touches.

    Attributes
    ----------
    form : str
        A run of rows, columns, or all of it.
    threads : int
        Threads that share the parameter.
    """

    form: str
    threads: int


def parts_of(patterns: Sequence[Pattern], threads: int) -> dict[int, Part]:
    """Finds the form of the parts that a thread touches of the shared arrays."""
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
    """Bytes of a thread's footprint that lie in another core's caches."""
    if had is None or part is None:
        return 0.0
    if part == had and part.form != ALL:
        return max(0.0, touched - memory.size / part.threads)
    most = max(part.threads, had.threads)
    return touched * (most - 1) / most


def split_lines(patterns: Sequence[Pattern], parts: Mapping[int, Part]) -> float:
    """Lines at the borders of a thread's columns that a neighbour writes, too."""
    found: dict[Memory, int] = {}
    for pattern in patterns:
        part = parts.get(pattern.memory.parameter)
        if not pattern.store or part is None or part.form != COLUMNS:
            continue
        if pattern.width % LINE or any(step % LINE for step, _ in pattern.dimensions):
            rows = pattern.dimensions[-1][1] if pattern.dimensions else 1
            found[pattern.memory] = max(rows, found.get(pattern.memory, 0))
    return float(sum(found.values()))
