"""Search strategies by name."""

from __future__ import annotations

import importlib
import random

from microkernels.base.errors import ConfigError

from .strategy import MakeStrategy, SearchStrategy, SearchTask

# Imported on use: one of them needs xgboost, which costs a second.
_CLASSES = {
    "model": "ModelSearch",
    "evolutionary": "EvolutionarySearch",
    "random": "RandomSearch",
    "grid": "GridSearch",
}

STRATEGIES = tuple(_CLASSES)
DEFAULT_STRATEGY = "model"


def check_strategy(name: str) -> None:
    """Raises ConfigError, naming those that there are, unless there is a strategy of that name."""
    if name not in _CLASSES:
        raise ConfigError(f"no search strategy {name!r}; there are {', '.join(STRATEGIES)}")


def make_strategy(name: str, task: SearchTask, seed: int) -> SearchStrategy:
    """A strategy for one search.

    Parameters
    ----------
    name : str
        One of STRATEGIES; each is the file of that name.
    task : SearchTask
        What is searched.
    seed : int
        Equal seeds and equal observations give equal proposals; regions draw apart.

    Raises
    ------
    ConfigError
        If there is no such strategy.
    """
    check_strategy(name)
    module = importlib.import_module(f".{name}", __package__)
    make: MakeStrategy = getattr(module, _CLASSES[name])
    return make(task, random.Random(f"{seed} {task.region.key}"))
