"""Model-guided search: legal, never twice, repeatable, and better than random if possible."""

from __future__ import annotations

import random
import statistics

import numpy as np
import pytest

from tests.tvm_hybrid.tuning.regions import MACHINE, matmul, records_of, scores_of, space_of
from tir_schedules.product.matmul import MATMUL
from tvm_hybrid.records.record import Record
from tvm_hybrid.tuning.recordings.simulate import random_median
from tvm_hybrid.tuning.search.model_search import ModelSearch
from tvm_hybrid.tuning.search.strategies import FAILED, SearchTask

pytestmark = pytest.mark.turns

SIZE = (64, 96, 128)
OTHERS = [(32, 128, 192), (128, 64, 96)]


def task_of(size: tuple[int, int, int] = SIZE, history: tuple[Record, ...] = ()) -> SearchTask:
    return SearchTask(matmul(*size), MATMUL, MACHINE, space_of(*size), lambda: history)


def search_of(seed: int = 0, task: SearchTask | None = None, **options: object) -> ModelSearch:
    search = ModelSearch(task or task_of(), random.Random(seed))
    vars(search).update(options)
    return search


def run(
    search: ModelSearch,
    scores: np.ndarray,
    trials: int = 10_000,
    batch: int = 8,
    until: float = 9e9,
) -> list[int]:
    """Proposals in order, until one has the score `until`."""
    order: list[int] = []
    while len(order) < trials and (proposed := search.propose(min(batch, trials - len(order)))):
        order += proposed
        search.observe([(index, float(scores[index])) for index in proposed])
        if scores[proposed].max() >= until:
            break
    return order


def trials_to_best(search: ModelSearch, scores: np.ndarray) -> int:
    enough = 0.98 * scores.max()
    order = run(search, scores, until=enough)
    return 1 + next(i for i, index in enumerate(order) if scores[index] >= enough)


def test_each_configuration_is_proposed_once(task: SearchTask) -> None:
    """In a space without features."""
    search = search_of(1, task, batch=16)
    scores = np.random.default_rng(0).uniform(0.5, 2, len(task.space))
    assert sorted(run(search, scores, 10_000, 16)) == list(range(len(task.space)))
    assert search.propose(5) == [] and search.predicted() is None


def test_the_default_is_first_where_nothing_is_known_then_others_differ(task: SearchTask) -> None:
    search = search_of(1, task, batch=4, epsilon=0.0)
    first = search.propose(4)
    assert first[0] == 0
    points = task.space.points[first]
    assert all(len(np.unique(column)) >= 3 for column in points.T)


def test_what_was_observed_or_is_pending_is_not_proposed() -> None:
    search, scores = search_of(), scores_of(*SIZE)
    known = list(range(0, 60))
    search.observe([(index, float(scores[index])) for index in known])
    pending = search.propose(4) + search.propose(4)
    assert len(set(pending)) == len(pending) and not set(pending) & set(known)


def test_equal_seeds_and_observations_give_equal_proposals() -> None:
    scores = scores_of(*SIZE)
    first, second, other = (run(search_of(seed), scores, 24) for seed in (7, 7, 8))
    assert first == second and first != other


def test_it_needs_few_of_the_trials_of_random_search() -> None:
    """The template's estimate, where it begins, is unrelated to these scores."""
    scores = scores_of(*SIZE)
    near = int((scores >= 0.98 * scores.max()).sum())
    needed = [trials_to_best(search_of(seed), scores) for seed in range(9)]
    assert statistics.median(needed) <= random_median(len(scores), near) / 3


def test_other_workloads_save_trials() -> None:
    history = tuple(record for size in OTHERS for record in records_of(*size))
    scores = scores_of(*SIZE)
    alone, informed = (
        [trials_to_best(search_of(seed, task), scores) for seed in range(4)]
        for task in (task_of(), task_of(history=history))
    )
    assert sum(informed) <= sum(alone) / 2


def test_records_that_say_nothing_change_nothing() -> None:
    records = records_of(*OTHERS[0])[:8]
    useless = [
        dataclass_replaced(records[0], isa="avx2"),
        dataclass_replaced(records[1], region=records[1].region.replace(op="nothing")),
        dataclass_replaced(records[2], version=999),
        dataclass_replaced(records[3], config={"rows": -1}),
        records_of(*SIZE)[0],
    ]
    scores = scores_of(*SIZE)
    informed = search_of(2, task_of(history=tuple(useless)))
    assert run(informed, scores, 16) == run(search_of(2), scores, 16)


def dataclass_replaced(record: Record, **changes: object) -> Record:
    import msgspec

    return msgspec.structs.replace(record, **changes)


def test_failures_are_avoided_but_stop_nothing() -> None:
    scores = scores_of(*SIZE).copy()
    rows = space_of(*SIZE).points[:, space_of(*SIZE).knobs.index("rows")]
    scores[rows == rows[0]] = FAILED
    order = run(search_of(1), scores, 40)
    assert len(order) == 40
    assert sum(scores[order[20:]] == FAILED) <= 4
    everything_fails = search_of(1)
    assert len(run(everything_fails, np.zeros(len(scores)), 20)) == 20
    predicted = everything_fails.predicted()
    assert predicted is not None and 0 <= predicted < 0.2


def test_the_prediction_falls_when_the_best_is_found() -> None:
    scores, search = scores_of(*SIZE), search_of(0)
    assert search.predicted() is None
    run(search, scores, 8)
    early, best_then = search.predicted(), scores.max()
    run(search, scores, 80)
    late = search.predicted()
    assert early is not None and late is not None
    assert 0.3 * best_then < early < 3 * best_then
    assert late < scores.max() * 1.02


def test_batches_are_as_small_as_the_options_say() -> None:
    assert len(search_of(batch=3).propose(10)) == 3
    assert search_of(batch=3).propose(0) == []
