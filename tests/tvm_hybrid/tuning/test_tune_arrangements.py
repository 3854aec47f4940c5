"""Arrangements of contractions by records: which are measured, written, and used."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from tvm import IRModule, relax

import tvm_hybrid
from relay_passes.ir.decisions import TENSORIZE
from relay_passes.lower_module import arrangement_problems
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import module
from tvm_hybrid.records.choice_record import ArrangementRecord
from tvm_hybrid.records.record_store import RecordStore
from tvm_hybrid.targets.resolve import resolve_target
from tvm_hybrid.tuning import tune_model
from tvm_hybrid.tuning.measuring.model_race import Program, Race
from tvm_hybrid.tuning.measuring.model_race import race as run_race
from tvm_hybrid.tuning.measuring.sampling import Effort
from tvm_hybrid.tuning.tune_arrangements import tune_arrangements

op = relax.op
F = "float32"
INPUTS = ((8, 3, 4), F), ((8, 2, 16), F)


def einsum() -> IRModule:
    return module(lambda x, y: op.einsum((x, y), "kmi,knj->mnij"), *INPUTS)


@pytest.fixture
def options() -> PipelineOptions:
    return PipelineOptions(resolve_target(None))


@dataclass
class Says:
    """Stands for `race`: candidates take the given times, in their order."""

    microseconds: list[float]
    same: bool = True
    asked: int = 0

    def __call__(self, one: Program, other: Program, effort: Effort) -> Race:
        mine = self.microseconds[self.asked]
        self.asked += 1
        return Race([mine] * effort.samples, [10.0] * effort.samples, self.same)


def test_the_fastest_is_written_and_used(
    options: PipelineOptions, store: RecordStore, tmp_path: Path
) -> None:
    (problem,) = arrangement_problems(einsum(), options)
    others = len(problem.candidates) - 1
    race = Says([9.0, *[8.0] * (others - 1)])
    (found,) = tune_arrangements(einsum(), options, store, race=race)
    assert race.asked == others and found.tried == others + 1
    wanted = problem.candidates[1 if others == 1 else 2]
    assert found.speedup == pytest.approx(10 / (9 if others == 1 else 8))
    assert found.chosen == wanted.text() and found.contraction == problem.key

    executable = tvm_hybrid.compile(einsum(), num_threads=1, records=tmp_path / "r.jsonl")
    (note,) = [each for each in executable.explain() if each.op == TENSORIZE]
    assert note.reason.startswith(f"{wanted.contraction.text()}; {wanted.text()}")
    assert note.reason.endswith(f"by record {tmp_path / 'r.jsonl'}:1")
    arrays = [np.random.default_rng(i).random(shape, F) for i, (shape, _) in enumerate(INPUTS)]
    expected = np.einsum("kmi,knj->mnij", *arrays)
    np.testing.assert_allclose(executable.run(*arrays)[0].numpy(), expected, 1e-4)


@pytest.mark.parametrize("race", [Says([10.0] * 9), Says([5.0] * 9, same=False)])
def test_else_the_estimate_stays(race: Says, options: PipelineOptions, store: RecordStore) -> None:
    (problem,) = arrangement_problems(einsum(), options)
    (found,) = tune_arrangements(einsum(), options, store, race=race)
    assert found.chosen == problem.candidates[0].text() and found.speedup == 1.0
    known = ArrangementRecord.find(store.files, problem.key, options)
    assert known is not None and known[0].choice == problem.choice(problem.candidates[0])


def test_what_is_known_is_not_measured_again(options: PipelineOptions, store: RecordStore) -> None:
    tune_arrangements(einsum(), options, store, race=Says([5.0] * 9))
    again = Says([])
    (found,) = tune_arrangements(einsum(), options, store, race=again)
    assert again.asked == 0 and found.source.endswith("r.jsonl:1") and found.speedup == 2.0
    tune_arrangements(einsum(), options, store, resume=False, race=Says([5.0] * 9))
    assert len(store.files[0].of_kind(ArrangementRecord)) == 2


def test_no_time_measures_nothing(options: PipelineOptions, store: RecordStore) -> None:
    assert tune_arrangements(einsum(), options, store, seconds=0.0, race=Says([])) == []


def test_records_of_others_do_not_fit(options: PipelineOptions, store: RecordStore) -> None:
    (found,) = tune_arrangements(einsum(), options, store, race=Says([5.0] * 9))
    key = found.contraction
    assert ArrangementRecord.find(store.files, key, options) is not None
    others = replace(options, threads=7), replace(options, precision="bf16")
    assert all(ArrangementRecord.find(store.files, key, each) is None for each in others)
    assert ArrangementRecord.find(store.files, f"{key} constant left", options) is None


def test_modules_are_raced(options: PipelineOptions) -> None:
    times, other, same = run_race(
        (einsum(), options), (einsum(), options), Effort(samples=3, seconds=0.1)
    )
    assert same and len(times) == len(other) > 0


def test_tune_begins_with_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def measured(*arguments: object) -> list[object]:
        return tune_arrangements(*arguments, race=Says([5.0] * 9))

    monkeypatch.setattr(tune_model, "tune_arrangements", measured)
    records = tmp_path / "r.jsonl"
    result = tvm_hybrid.tune(einsum(), records=records, num_threads=1, trials=1)
    (found,) = result.arrangements
    assert found.speedup == 2.0 and str(found) in str(result)
    # Tuning uses the regions of the module arranged in this way.
    executable = tvm_hybrid.compile(einsum(), num_threads=1, records=records)
    keys = {each.workload for each in executable.explain() if each.workload}
    assert {each.region.key for each in result.regions} == keys
