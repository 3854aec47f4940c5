"""The labels of a minimum cut cost as little as the best of all assignments."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from relay_passes.layout.minimum_cut import FIRST, LAST, LayoutCut
from tests.examples import examples

COSTS = st.integers(0, 5)
LABELS = st.sampled_from([FIRST, LAST])


@dataclass(frozen=True)
class Problem:
    """Nodes FIRST, LAST, 2, 3, ...; prices (node, label, cost), forbidden labels by node, reorders
    (tensor, readers, cost)."""

    count: int
    prices: list[tuple[int, int, int]]
    forbidden: dict[int, int]
    reorders: list[tuple[int, set[int], int]]

    def cost(self, labels: tuple[int, ...]) -> int:
        """The cost of an assignment of labels."""
        paid = sum(cost for node, label, cost in self.prices if labels[node] == label)
        return paid + sum(
            cost
            for tensor, readers, cost in self.reorders
            if any(labels[reader] != labels[tensor] for reader in readers)
        )

    def best(self) -> list[tuple[int, ...]]:
        """All assignments of least cost."""
        allowed = [
            (FIRST, LAST, *rest)
            for rest in itertools.product((FIRST, LAST), repeat=self.count - 2)
            if not any(rest[node - 2] == label for node, label in self.forbidden.items())
        ]
        least = min(map(self.cost, allowed))
        return [labels for labels in allowed if self.cost(labels) == least]

    def solve(self) -> tuple[int, ...]:
        """The labels of a cut."""
        cut = LayoutCut()
        for _ in range(2, self.count):
            cut.node()
        for node, label, cost in self.prices:
            cut.price(node, label, cost)
        for node, label in self.forbidden.items():
            cut.forbid(node, label)
        for tensor, readers, cost in self.reorders:
            cut.reorder(tensor, readers, cost)
        return tuple(cut.solve()[: self.count])


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    count = 2 + draw(st.integers(1, 7))
    any_node, free = st.integers(0, count - 1), st.integers(2, count - 1)
    readers = st.sets(any_node, min_size=1, max_size=4)
    return Problem(
        count,
        draw(st.lists(st.tuples(free, LABELS, COSTS), max_size=6)),
        draw(st.dictionaries(free, LABELS, max_size=2)),
        draw(st.lists(st.tuples(any_node, readers, COSTS), max_size=10)),
    )


@examples(300)
@given(problems())
def test_no_assignment_costs_less(problem: Problem) -> None:
    best = problem.best()
    labels = problem.solve()
    assert labels in best
    assert sum(labels) == max(map(sum, best))  # LAST wherever it costs no more


def test_a_reorder_is_paid_once() -> None:
    """Three readers want LAST: one reorder for 3 is cheaper than making the tensor LAST for 4."""
    readers = {2, 3, 4}
    forbidden = dict.fromkeys(readers, FIRST)
    problem = Problem(6, [(5, LAST, 4)], forbidden, [(5, readers, 3)])
    assert problem.solve()[5] == FIRST
    assert Problem(6, [(5, LAST, 2)], forbidden, [(5, readers, 3)]).solve()[5] == LAST


def test_a_long_chain() -> None:
    """The cut is at the cheapest of many places."""
    cut = LayoutCut()
    nodes = [FIRST, *(cut.node() for _ in range(500)), LAST]
    for place, (tensor, reader) in enumerate(itertools.pairwise(nodes)):
        cut.reorder(tensor, [reader], 7 if place != 321 else 6)
    labels = cut.solve()
    assert [labels[node] for node in nodes] == [FIRST] * 322 + [LAST] * 180
