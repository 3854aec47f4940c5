"""Footprints and traffic compared with counting every line, with caches as lists of lines."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator

import pytest

from tests.tvm_hybrid.bench.kernel_times.small_kernels import program_of, sums
from tvm_hybrid.bench.kernel_times.index import Index, apply
from tvm_hybrid.bench.kernel_times.nodes import Access, Body, Loop, Memory, Work
from tvm_hybrid.bench.kernel_times.traffic import (
    LINE,
    Traffic,
    dimensions_of,
    footprint,
    patterns_of,
)

X = Memory("x", 0, 1 << 20)
Y = Memory("y", 1, 1 << 20)
NEST = (4, 6, 8)


def nest(accesses: list[Access], extents: tuple[int, ...] = NEST) -> Body:
    """Loops around some accesses; the first is the outermost."""
    body = Body(Work(accesses=accesses))
    for number in reversed(range(len(extents))):
        body = Body(children=[Loop(number, Index(extents[number]), False, body)])
    return body


def lines(accesses: list[Access], extents: tuple[int, ...] = NEST) -> Iterator[tuple[str, int]]:
    """Every touched line in order."""
    for at in itertools.product(*map(range, extents)):
        environment = dict(enumerate(at))
        for access in accesses:
            start = access.start.evaluate(environment)
            for piece in range(access.pieces):
                first = start + piece * access.stride
                for line in range(first // LINE, (first + access.width - 1) // LINE + 1):
                    yield access.memory.name, line


def fetched(touched: Iterator[tuple[str, int]], size: int) -> int:
    """Bytes loaded into a cache that evicts the least recently used line."""
    cache: OrderedDict[tuple[str, int], None] = OrderedDict()
    misses = 0
    for line in touched:
        if line in cache:
            cache.move_to_end(line)
            continue
        misses += 1
        cache[line] = None
        if len(cache) > size // LINE:
            cache.popitem(last=False)
    return misses * LINE


def moving(*factors: int) -> Index:
    return Index(0, tuple((loop, factor) for loop, factor in enumerate(factors) if factor))


PATTERNS = {
    "a row": [Access(X, moving(0, 0, 64), 64)],
    "a matrix": [Access(X, moving(3072, 512, 64), 64)],
    "rows again": [Access(X, moving(0, 512, 64), 64)],
    "a window": [Access(X, moving(512, 512, 64), 64)],
    "a product": [Access(X, moving(1024, 0, 64), 64), Access(Y, moving(0, 512, 64), 64)],
    "columns": [Access(X, moving(64, 0, 4096), 64)],
    "neighbours": [Access(X, moving(4096, 512, 64).plus(Index(k)), 64) for k in (0, 64, 128)],
}


@pytest.mark.parametrize("name", PATTERNS)
def test_footprint_of_loops(name: str) -> None:
    accesses = PATTERNS[name]
    found = sum(footprint(Traffic([]).body(nest(accesses), {}).patterns).values())
    assert found == pytest.approx(len(set(lines(accesses))) * LINE, rel=0.05)


@pytest.mark.parametrize("size", [1024, 8192, 65536])
@pytest.mark.parametrize("name", PATTERNS)
def test_traffic_into_a_cache(name: str, size: int) -> None:
    accesses = PATTERNS[name]
    touched = Traffic([size]).body(nest(accesses), {})
    expected = fetched(lines(accesses), size)
    # Whether an iteration fits is yes or no in the model and gradual in a cache: they differ by at
    # most one iteration.
    assert expected / 2 <= sum(touched.fetched[0].values()) <= 2 * expected


def test_traffic_where_all_fits_and_where_nothing_does() -> None:
    accesses = PATTERNS["rows again"]
    whole = 6 * 512
    small, large = Traffic([1024, 65536]).body(nest(accesses), {}).fetched
    assert small == {X: 4 * whole} and large == {X: whole}


def test_an_index_that_is_not_linear() -> None:
    start = apply("FloorDiv", moving(1, 0, 0), Index(2)).times(64)
    accesses = [Access(X, start, 64)]
    found = sum(footprint(Traffic([]).body(nest(accesses), {}).patterns).values())
    assert found == len(set(lines(accesses))) * LINE == 2 * LINE


def test_dimensions_of_places() -> None:
    assert dimensions_of([0, 64, 128]) == [(64, 3)]
    assert dimensions_of([0, 64, 1000, 1064]) == [(64, 2), (1000, 2)]
    assert dimensions_of([7]) == []


def test_neighbours_are_one_pattern() -> None:
    (pattern,) = patterns_of(PATTERNS["neighbours"])
    assert pattern.width == 192 and pattern.dimensions == ()


def test_a_kernel_reads_all_of_its_input_once() -> None:
    program = program_of(sums(64, 10))
    touched = Traffic([1 << 20]).body(program.body, {})
    assert footprint(touched.patterns)[program.parameters[0]] == 64 * 10 * 4
    assert footprint(touched.patterns)[program.parameters[1]] == 64 * 4
