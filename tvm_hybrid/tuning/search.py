"""In which order configurations are tried: plain strategies over a finite space.

A strategy orders the space; the tuner takes configurations from its front. It is a function
(space, trials, generator) -> the configurations to try, at most `trials`, without repetition.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from microkernels.errors import ConfigError
from tir_schedules.config import Config

from .records import config_key

Strategy = Callable[[Sequence[Config], int, random.Random], list[Config]]


def grid(space: Sequence[Config], trials: int, generator: random.Random) -> list[Config]:
    """Evenly spaced over the space in its own order; all of it if there are trials enough."""
    del generator
    count = min(trials, len(space))
    return [space[i * len(space) // count] for i in range(count)]


def uniform(space: Sequence[Config], trials: int, generator: random.Random) -> list[Config]:
    """Drawn at random without replacement.

    More trials with the same seed begin with the same configurations, so that a search can be
    continued.
    """
    shuffled = list(space)
    generator.shuffle(shuffled)
    return shuffled[:trials]


STRATEGIES: dict[str, Strategy] = {"random": uniform, "grid": grid}


def strategy_named(name: str) -> Strategy:
    """The strategy of that name.

    Raises
    ------
    ConfigError
        If there is none.
    """
    if name not in STRATEGIES:
        raise ConfigError(f"no search strategy {name!r}; there are {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


def candidates(
    default: Config,
    space: Iterable[Config],
    strategy: Strategy,
    trials: int,
    generator: random.Random,
) -> list[Config]:
    """What to try: the default first, then what the strategy takes from the rest of the space."""
    rest = {config_key(config.to_dict()): config for config in space}
    rest.pop(config_key(default.to_dict()), None)
    if trials <= 1 or not rest:
        return [default]
    return [default, *strategy(list(rest.values()), trials - 1, generator)]
