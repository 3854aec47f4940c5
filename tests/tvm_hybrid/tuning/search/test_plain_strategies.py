"""Random, grid and evolutionary search: legal, never twice, complete, repeatable."""

from __future__ import annotations

import dataclasses
import importlib.util
import random
import statistics

import numpy as np
import pytest

from microkernels.base.errors import ConfigError
from tvm_hybrid.records.record_store import ConfigSpace
from tvm_hybrid.tuning.search.strategies import (
    FAILED,
    STRATEGIES,
    EvolutionarySearch,
    SearchStrategy,
    SearchTask,
    check_strategy,
    evenly_spread,
    make_strategy,
)

from .conftest import GridConfig

PLAIN = ("random", "grid", "evolutionary")


def score(task: SearchTask, index: int) -> float:
    """Best at x = 3, y = 5, z = 1; y = 7 fails."""
    config = task.space.configs[index].to_dict()
    if config["y"] == 7:
        return FAILED
    away = (config["x"] - 3) ** 2 + (config["y"] - 5) ** 2 + 4 * (config["z"] - 1) ** 2
    return 2.0 / (1 + 0.1 * away)


def run(task: SearchTask, search: SearchStrategy, trials: int, batch: int = 4) -> list[int]:
    """Proposals in order; each batch is observed before the next."""
    order: list[int] = []
    while len(order) < trials:
        proposed = search.propose(min(batch, trials - len(order)))
        if not proposed:
            break
        order += proposed
        search.observe([(index, score(task, index)) for index in proposed])
    return order


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_each_configuration_is_proposed_once(name: str, batch: int, task: SearchTask) -> None:
    search = make_strategy(name, task, 1)
    order = run(task, search, 10_000, batch)
    assert sorted(order) == list(range(len(task.space)))
    assert search.propose(5) == []


@pytest.mark.parametrize("name", PLAIN)
def test_what_was_observed_before_is_not_proposed(name: str, task: SearchTask) -> None:
    search = make_strategy(name, task, 1)
    known = list(range(0, len(task.space), 3))
    search.observe([(index, score(task, index)) for index in known])
    assert sorted(run(task, search, 10_000) + known) == list(range(len(task.space)))


@pytest.mark.parametrize("name", PLAIN)
def test_equal_seeds_give_equal_proposals(name: str, task: SearchTask) -> None:
    first, second = (run(task, make_strategy(name, task, 3), 60) for _ in range(2))
    assert first == second
    if name != "grid":
        assert run(task, make_strategy(name, task, 4), 60) != first


@pytest.mark.parametrize("name", ["random", "grid"])
def test_more_trials_begin_with_the_same(name: str, task: SearchTask) -> None:
    few = run(task, make_strategy(name, task, 3), 10, batch=10)
    assert run(task, make_strategy(name, task, 3), 40, batch=7)[:10] == few


def test_regions_draw_apart(task: SearchTask) -> None:
    region = task.region.replace(attrs={"another": True})
    other = dataclasses.replace(task, region=region)
    assert run(task, make_strategy("random", task, 0), 20) != run(
        other, make_strategy("random", other, 0), 20
    )


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8, 100, 1023])
def test_every_beginning_of_the_grid_is_spread(count: int) -> None:
    order = evenly_spread(count)
    assert sorted(order) == list(range(count))
    for taken in (2, 4, 16, 64):
        if taken < count:
            gaps = np.diff([0, *sorted(order[:taken]), count - 1])
            # Van der Corput: no gap exceeds two of the intervals made by halving.
            assert max(gaps) <= 2 * (1 << count.bit_length()) / taken


def test_evolution_climbs(task: SearchTask) -> None:
    """It needs fewer trials than random search to find the optimum: medians of 20 seeds."""
    best = max(range(len(task.space)), key=lambda index: score(task, index))
    medians = {}
    for name in ("evolutionary", "random"):
        orders = [run(task, make_strategy(name, task, seed), 1000) for seed in range(20)]
        medians[name] = statistics.median(order.index(best) for order in orders)
    assert medians["evolutionary"] < 0.8 * medians["random"]


def test_children_are_near_their_parents(task: SearchTask) -> None:
    """Bred proposals share all but one or two knobs with a member of the elite."""
    search = EvolutionarySearch(task, random.Random(1))
    vars(search).update(population=8, mutation=1.0, epsilon=0.0)
    order = run(task, search, 8, batch=8)
    elite = sorted(order, key=lambda index: -score(task, index))[:8]
    for child in search.propose(6):
        points = task.space.points
        changed = [(points[child] != points[index]).sum() for index in elite]
        assert min(changed) in (1, 2)


def test_knobs_that_go_together_change_together(task: SearchTask) -> None:
    """A space in which x and y are equal: changing one is legal only with the other."""
    configs = [GridConfig(x=x, y=x, z=z) for x in range(6) for z in range(6)]
    coupled = dataclasses.replace(task, space=ConfigSpace(configs[0], configs))
    search = EvolutionarySearch(coupled, random.Random(1))
    vars(search).update(population=1, mutation=1.0, two_knobs=0.0, epsilon=0.0)
    search.observe([(0, 1.0)])
    points = coupled.space.points[search.propose(8)]
    assert ((points != 0).sum(axis=1) <= 2).all()
    assert (points[:, 0] > 0).any() and (points[:, 2] > 0).any()


def test_crossing_takes_every_knob_from_a_parent(task: SearchTask) -> None:
    search = EvolutionarySearch(task, random.Random(1))
    vars(search).update(population=2, mutation=0.0, epsilon=0.0)
    parents = [task.space.points.tolist().index(point) for point in ([0, 1, 1], [3, 4, 0])]
    search.observe([(parents[0], 1.0), (parents[1], 1.1)])
    mother, father = (task.space.points[index] for index in parents)
    crossed = 0
    for child in search.propose(4):
        point = task.space.points[child]
        crossed += bool(((point == mother) | (point == father)).all())
    assert crossed >= 1  # two draws of one parent give a mutation


def test_evolution_goes_on_when_all_failed(task: SearchTask) -> None:
    search = make_strategy("evolutionary", task, 0)
    for _ in range(10):
        search.observe([(index, FAILED) for index in search.propose(4)])
    assert len(search.propose(4)) == 4


@pytest.mark.parametrize("name", PLAIN)
def test_a_space_of_one(name: str, task: SearchTask) -> None:
    config = task.space.configs[0]
    alone = dataclasses.replace(task, space=ConfigSpace(config, [config]))
    search = make_strategy(name, alone, 0)
    assert search.propose(3) == [0]
    assert search.propose(3) == []
    assert search.predicted() is None


def test_an_unknown_strategy_is_refused(task: SearchTask) -> None:
    with pytest.raises(ConfigError, match=f"'magic'; there are {', '.join(STRATEGIES)}"):
        make_strategy("magic", task, 0)
    for name in STRATEGIES:
        check_strategy(name)
    assert statistics.mode(STRATEGIES) == STRATEGIES[0]  # no name twice


def test_a_missing_package_is_named_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"'model' needs xgboost.* pip install xgboost-cpu"):
        check_strategy("model")
    check_strategy("evolutionary")
