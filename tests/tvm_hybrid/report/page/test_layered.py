"""Boxes do not overlap; edges connect boxes and point downwards, also in columns."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tvm_hybrid.report.page.layered import Layout, layered

Edges = list[tuple[int, int]]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[tuple[float, float]], Edges]:
    """Sizes of up to forty boxes, and edges to boxes with higher numbers."""
    count = draw(st.integers(1, 40))
    sizes = draw(
        st.lists(st.sampled_from([(60.0, 20.0), (90.0, 50.0)]), min_size=count, max_size=count)
    )
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    drawn = draw(st.lists(pairs, max_size=60))
    return sizes, list(dict.fromkeys((min(p), max(p)) for p in drawn if p[0] != p[1]))


def check(layout: Layout, sizes: list[tuple[float, float]], edges: Edges) -> None:
    corners = list(zip(layout.places, sizes, strict=True))
    for (x, y), (width, height) in corners:
        assert x >= -1e-6 and x + width <= layout.width + 1e-6
        assert y >= -1e-6 and y + height <= layout.height + 1e-6
    for ((x, y), (w, h)), ((u, v), (r, s)) in combinations(corners, 2):
        assert x + w <= u + 1e-6 or u + r <= x + 1e-6 or y + h <= v + 1e-6 or v + s <= y + 1e-6
    for (source, target), line in zip(edges, layout.lines, strict=True):
        (x, y), (u, v) = corners[source][0], corners[target][0]
        (width, height), (other, _) = corners[source][1], corners[target][1]
        assert line[0] == pytest.approx((x + width / 2, y + height))
        assert line[-1] == pytest.approx((u + other / 2, v))
        assert v >= y + height or u > x  # below, or in a later column


@examples(40)
@given(graphs())
def test_any_graph(graph: tuple[list[tuple[float, float]], Edges]) -> None:
    sizes, edges = graph
    check(layered(sizes, edges), sizes, edges)


def test_a_chain_with_a_residual_is_straight() -> None:
    sizes, edges = [(100.0, 20.0)] * 4, [(0, 1), (1, 2), (2, 3), (0, 3)]
    layout = layered(sizes, edges)
    check(layout, sizes, edges)
    assert [y for _, y in layout.places] == sorted(y for _, y in layout.places)
    assert len(layout.lines[3]) == 6  # bends around the two boxes between


def test_a_long_chain_stands_in_columns() -> None:
    sizes = [(100.0, 40.0)] * 60
    edges = [(k, k + 1) for k in range(59)]
    layout = layered(sizes, edges)
    check(layout, sizes, edges)
    columns = {x for x, _ in layout.places}
    assert 3 <= len(columns) <= 7
    assert 0.5 < layout.width / layout.height < 3


def test_a_crossing_is_undone() -> None:
    # Two chains whose second boxes are numbered in the opposite order.
    edges = [(0, 3), (1, 2)]
    layout = layered([(50.0, 20.0)] * 4, edges)
    (a, _), (b, _), (c, _), (d, _) = layout.places
    assert (a < b) == (d < c)


def test_nothing_takes_no_room() -> None:
    assert layered([], []) == Layout([], [], 0.0, 0.0)
