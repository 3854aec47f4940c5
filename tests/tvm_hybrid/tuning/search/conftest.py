"""A task over a synthetic space: three knobs, some corners of the grid illegal."""

from __future__ import annotations

from types import ModuleType

import pytest

from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config
from tvm_hybrid.records.record_store import ConfigSpace
from tvm_hybrid.tuning.search.strategies import SearchTask


class GridConfig(Config, frozen=True):
    """Three numbers."""

    x: int
    y: int
    z: int


@pytest.fixture
def task(toy: ModuleType, machine: Machine) -> SearchTask:
    configs = [
        GridConfig(x=x, y=y, z=z)
        for x in range(8)
        for y in range(8)
        for z in range(3)
        if x * y < 40 and (x + z) % 7
    ]
    return SearchTask(toy.region(), toy.TOY, machine, ConfigSpace(configs[5], configs))
