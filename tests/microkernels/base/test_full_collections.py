"""When Python's garbage collector looks through all objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from tvm import relax

from microkernels.base.memory import without_full_collections
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


def test_passes_run_without_full_collections() -> None:
    mod = module(lambda x: relax.op.nn.relu(relax.op.exp(x)), ((4, 4), "float32"))
    thresholds: list[int] = []

    def note(_phase: str, _info: dict[str, Any]) -> None:  # young objects are looked through
        thresholds.append(gc.get_threshold()[2])

    gc.callbacks.append(note)
    try:
        lower_module(mod, PipelineOptions(TARGET))
    finally:
        gc.callbacks.remove(note)
    few = thresholds.count(OFTEN[2])  # before and afterwards
    assert few < 0.25 * len(thresholds)
    assert gc.get_threshold() == OFTEN


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
