"""Strategies: within the space, without repetition, the default first, continuable."""

from __future__ import annotations

import random
from types import ModuleType

import pytest

from microkernels.errors import ConfigError
from tir_schedules.config import Config
from tvm_hybrid.tuning.search import STRATEGIES, candidates, strategy_named


@pytest.fixture
def space(toy: ModuleType) -> list[Config]:
    return [toy.ToyConfig(block=block) for block in range(1, 41)]


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("trials", [1, 2, 7, 39, 40, 41, 1000])
def test_every_strategy(name: str, trials: int, space: list[Config]) -> None:
    default = space[7]
    chosen = candidates(default, [*space, *space], STRATEGIES[name], trials, random.Random(1))
    assert chosen[0] == default
    assert len(chosen) == len(set(map(str, chosen))) == min(trials, len(space))
    assert all(config in space for config in chosen)


def test_grid_spans_the_space(space: list[Config], toy: ModuleType) -> None:
    chosen = STRATEGIES["grid"](space, 4, random.Random(1))
    assert chosen == [toy.ToyConfig(block=block) for block in (1, 11, 21, 31)]


def test_more_random_trials_begin_with_the_same(space: list[Config]) -> None:
    few, many = (
        candidates(space[0], space, STRATEGIES["random"], trials, random.Random("seed"))
        for trials in (10, 30)
    )
    assert many[:10] == few
    other = candidates(space[0], space, STRATEGIES["random"], 10, random.Random("another"))
    assert other != few


def test_a_default_outside_the_space_and_an_empty_space(
    space: list[Config], toy: ModuleType
) -> None:
    default = toy.ToyConfig(block=1000)
    chosen = candidates(default, space, STRATEGIES["grid"], 41, random.Random(1))
    assert chosen[0] == default and len(chosen) == 41
    assert candidates(default, [], STRATEGIES["grid"], 41, random.Random(1)) == [default]


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(ConfigError, match="'magic'; there are random, grid"):
        strategy_named("magic")
