"""Half a minute of fuzzing with fixed seeds; `make fuzz` draws new graphs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.examples import examples

from .drawing import UnsuitableError
from .generate import generate
from .motifs import KINDS, TURNS
from .worker import Worker

pytestmark = pytest.mark.turns

GRAPHS = examples(240).max_examples
FIRST = 1_000_000


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as started:
        yield started


@pytest.mark.parametrize("kind", KINDS)
def test_random_graphs(kind: str, worker: Worker) -> None:
    """Every kind gets a share of the graphs; a message names the seed for `tests.fuzz.generate`."""
    found = []
    for seed in range(FIRST, FIRST + GRAPHS * TURNS.count(kind) // len(TURNS)):
        try:
            case = generate(kind, seed)
        except UnsuitableError:
            continue
        outcome = worker.examine(case)
        if outcome.state.is_finding:
            found.append(f"{case.origin}: {outcome.state.value}: {outcome.message}")
    assert not found, "\n".join(found)
