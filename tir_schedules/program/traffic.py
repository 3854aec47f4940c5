"""Traffic: the bytes that a thread gets from every level of the memory.

The layer conditions of Kerncraft's Execution-Cache-Memory model (Treibig and Hager 2010; Hammer,
Eitzinger, Hager and Wellein 2017), for any nest of loops: if what one round of a loop touches fits
into a cache, what rounds have in common is there, and the loop fetches its footprint once. If it
does not, every round fetches what it touches again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .footprint import Pattern, patterns_of
from .index import Environment
from .nodes import Body, Branch, Loop, Memory

Bytes = dict[Memory, float]


@dataclass(frozen=True)
class Touched:
    """What something touches and fetches.

    Attributes
    ----------
    patterns : list of Pattern
        Its footprint.
    fetched : tuple of dict
        For every cache: array -> bytes that come into it.
    """

    patterns: list[Pattern]
    fetched: tuple[Bytes, ...]

    @property
    def size(self) -> float:
        """Bytes of the footprint."""
        return sum(footprint(self.patterns).values())


def footprint(patterns: Sequence[Pattern]) -> Bytes:
    """Bytes that patterns touch, by array; no more than it has."""
    found: Bytes = {}
    for pattern in patterns:
        size = found.get(pattern.memory, 0.0) + pattern.size
        found[pattern.memory] = min(size, max(pattern.memory.size, pattern.size))
    return found


def stored(patterns: Sequence[Pattern]) -> Bytes:
    """Bytes that are written, by array."""
    return footprint([pattern for pattern in patterns if pattern.store])


def _distinct(patterns: Sequence[Pattern]) -> list[Pattern]:
    """Patterns once that are the same but for being read or written."""
    found: dict[object, Pattern] = {}
    for pattern in patterns:
        key = (pattern.memory, pattern.moves, pattern.width, pattern.dimensions)
        if key not in found or pattern.store:
            found[key] = pattern
    return list(found.values())


class Traffic:
    """Follows a kernel's loops.

    Parameters
    ----------
    caches : sequence of int
        Bytes of the caches of a thread, the nearest first.
    """

    def __init__(self, caches: Sequence[int]) -> None:
        self.caches = tuple(caches)
        self._known: dict[tuple[int, tuple[int, ...]], Touched] = {}
        self._kept: list[Body] = []

    def body(self, body: Body, environment: Environment) -> Touched:
        """Of instructions, loops and branches, for some values of the loops around them."""
        controls = tuple(environment[loop] for loop in sorted(body.controls))
        key = (id(body), controls)
        found = self._known.get(key)
        if found is None:
            self._kept.append(body)
            own = patterns_of(body.work.accesses)
            parts = [Touched(own, tuple(footprint(own) for _ in self.caches))]
            parts += [self.child(child, environment) for child in body.children]
            found = self._known[key] = self._together(parts)
        return found

    def child(self, child: Loop | Branch, environment: Environment) -> Touched:
        """Of a loop, or of a branch."""
        if isinstance(child, Branch):
            taken = child.condition.known and child.condition.evaluate(environment)
            return self.body(child.then if taken else child.otherwise, environment)
        return self.loop(child, child.extent.evaluate(environment), environment)

    def loop(self, loop: Loop, count: int, environment: Environment, first: int = 0) -> Touched:
        """Of some rounds of a loop."""
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
        whole = footprint(patterns)
        fetched: list[Bytes] = []
        for level, cache in enumerate(self.caches):
            if middle.size <= cache:
                fetched.append(_least(whole, _sum(each, level, share)))
            else:
                fetched.append(_sum(each, level, share))
        return Touched(patterns, tuple(fetched))

    def _together(self, parts: list[Touched]) -> Touched:
        """One after the other."""
        if len(parts) == 1:
            return parts[0]
        patterns = _distinct([p for part in parts for p in part.patterns])
        whole, fetched = footprint(patterns), []
        size = sum(whole.values())
        for level, cache in enumerate(self.caches):
            total = _sum(parts, level, 1.0)
            fetched.append(_least(whole, total) if size <= cache else total)
        return Touched(patterns, tuple(fetched))


def _sum(parts: Sequence[Touched], level: int, share: float) -> Bytes:
    found: Bytes = {}
    for part in parts:
        for memory, size in part.fetched[level].items():
            found[memory] = found.get(memory, 0.0) + share * size
    return found


def _least(a: Bytes, b: Bytes) -> Bytes:
    return {memory: min(size, b.get(memory, size)) for memory, size in a.items()}
