"""When Python's garbage collector runs full collections."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from tvm import relax

from microkernels.base.memory import without_full_collections
from relay_passes.ir.decisions import Decision
from relay_passes.lower_module import lower_module
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import TARGET, module

OFTEN = (1, 1, 1)


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*OFTEN)
    yield
    gc.set_threshold(*before)


class Log(list[Decision]):
    """Decisions, and the collector's thresholds at the time each one is added."""

    def __init__(self) -> None:
        super().__init__()
        self.thresholds: list[tuple[int, int, int]] = []

    def append(self, decision: Decision) -> None:
        self.thresholds.append(gc.get_threshold())
        super().append(decision)


def test_passes_run_without_full_collections() -> None:
    mod, log = module(lambda x: relax.op.nn.relu(relax.op.exp(x)), ((4, 4), "float32")), Log()
    lower_module(mod, PipelineOptions(TARGET), log)
    assert log.thresholds and min(full for _, _, full in log.thresholds) > 1 << 20
    assert min(young for young, _, _ in log.thresholds) > 1
    assert gc.get_threshold() == OFTEN


def test_young_objects_are_looked_through() -> None:
    generations: list[int] = []

    def note(_phase: str, info: dict[str, Any]) -> None:
        generations.append(info["generation"])

    gc.callbacks.append(note)
    try:
        with without_full_collections():
            kept = [[number] for number in range(1 << 17)]
    finally:
        gc.callbacks.remove(note)
    assert len(kept) == 1 << 17 and generations


def test_who_wants_no_collections_gets_none() -> None:
    gc.set_threshold(0, 1, 1)
    with without_full_collections():
        assert gc.get_threshold()[0] == 0
    assert gc.get_threshold() == (0, 1, 1)


def test_the_last_who_leaves_puts_the_threshold_back() -> None:
    one, other = without_full_collections(), without_full_collections()
    with one:
        other.__enter__()
    assert gc.get_threshold()[2] > 1
    other.__exit__(None, None, None)
    assert gc.get_threshold() == OFTEN


def test_an_error_puts_it_back() -> None:
    with pytest.raises(KeyError), without_full_collections():
        raise KeyError
    assert gc.get_threshold() == OFTEN


def test_a_threshold_that_somebody_chose_meanwhile_stays() -> None:
    with without_full_collections():
        gc.set_threshold(5, 6, 7)
    assert gc.get_threshold() == (5, 6, 7)
