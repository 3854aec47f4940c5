"""The walk over layouts finds changes that pay only together, asks once, and is repeatable."""

from __future__ import annotations

import itertools
import math

import pytest
from tvm import relax

from relay_passes.layout.minimum_cut import FIRST, LAST
from relay_passes.layout.search_space import LayoutProblem
from tests.relay_passes.graphs import module
from tests.relay_passes.layout.test_propagate_layout import X, bind, conv, kernel
from tests.relay_passes.layout.test_search_space import problem_of
from tvm_hybrid.tuning.joint_layout import Labelling, Walk, WalkResult

op = relax.op
CONVOLUTIONS = 8
PAIR = (3, 4)


@pytest.fixture(scope="module")
def problem() -> LayoutProblem:
    """1x1 convolutions in a row, between two convolutions with larger windows."""

    def body(x: relax.Expr) -> relax.Expr:
        y = conv(x)
        for seed in range(CONVOLUTIONS):
            y = bind(op.nn.relu(op.nn.conv2d(y, kernel(8, 8, 1, 1, seed=seed))))
        return conv(y)

    return problem_of(module(body, X))


class Prices:
    """A convolution that runs channels first costs 3 us, but two neighbours together save 20."""

    def __init__(self, problem: LayoutProblem) -> None:
        self.problem = problem
        self.names = [each.name for each in problem.operators if each.leads]
        self.asked: list[tuple[int, ...]] = []

    def __call__(self, labelling: Labelling) -> float:
        labels = labelling[self.problem.key]
        first = tuple(int(labels[name] == FIRST) for name in self.names)
        self.asked.append(tuple(labels.values()))
        return 100.0 + self.of(first)

    @staticmethod
    def of(first: tuple[int, ...]) -> float:
        return 3.0 * sum(first) - 20.0 * all(first[i] for i in PAIR)


def tried(problem: LayoutProblem, seed: int, tries: int = 60) -> tuple[WalkResult, Prices]:
    prices = Prices(problem)
    return Walk([problem], prices, seed).run(tries), prices


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(5))
def test_neighbours_that_must_turn_together_are_found(problem: LayoutProblem, seed: int) -> None:
    states = itertools.product((0, 1), repeat=CONVOLUTIONS)
    best = min(states, key=Prices.of)
    single = [tuple(int(i == j) for j in range(CONVOLUTIONS)) for i in range(CONVOLUTIONS)]
    assert all(Prices.of(state) > 0 > Prices.of(best) for state in single)
    found, prices = tried(problem, seed)
    labels = found.best[problem.key]
    assert tuple(int(labels[name] == FIRST) for name in prices.names) == best
    assert found.best_us == 100.0 + Prices.of(best)
    assert found.default_us == 100.0
    assert not found.is_default


def test_nothing_is_asked_twice_and_equal_seeds_make_equal_walks(problem: LayoutProblem) -> None:
    first, prices = tried(problem, 1)
    again, _ = tried(problem, 1)
    other, _ = tried(problem, 2)
    assert first == again
    assert first.steps != other.steps
    assert len(set(prices.asked)) == len(prices.asked) == len(first.steps) <= 60
    assert first.steps[0].changed == ()
    assert all(step.changed for step in first.steps[1:])


def test_it_stops_when_told_and_when_there_is_nothing_left(problem: LayoutProblem) -> None:
    prices = Prices(problem)
    assert len(Walk([problem], prices).run(60, lambda: len(prices.asked) >= 3).steps) == 3
    assert len(Walk([problem], Prices(problem)).run(1).steps) == 1
    two = problem_of(module(lambda x: op.nn.conv2d(conv(x), kernel(2, 8, 1, 1)), X))
    found = Walk([two], lambda labelling: 1.0).run(60)
    assert len(found.steps) == 2
    assert found.is_default
    assert found.best == {two.key: two.default}
    assert set(two.default.values()) == {LAST}


def test_a_model_that_cannot_be_measured_is_left_alone(problem: LayoutProblem) -> None:
    found = Walk([problem], lambda labelling: math.inf).run(60)
    assert len(found.steps) == 1
    assert found.is_default


def test_what_cannot_be_measured_is_not_chosen(problem: LayoutProblem) -> None:
    def cost(labelling: Labelling) -> float:
        return 100.0 if labelling[problem.key] == problem.default else math.inf

    assert Walk([problem], cost).run(10).is_default
