"""The joint stage: the layouts it finds are written, found again, applied, or ignored."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tvm import IRModule, relax

from relay_passes.ir.decisions import LAYOUTS
from relay_passes.layout.minimum_cut import FIRST, LAST
from relay_passes.layout.search_space import LayoutChoice
from relay_passes.lower_module import count_regions, layout_problems
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import constant, module
from tests.relay_passes.layout.test_propagate_layout import X, conv, kernel
from tests.relay_passes.layout.test_search_space import pooled
from tir_schedules.core.region import Region
from tvm_hybrid import api
from tvm_hybrid.records.choice_record import LayoutRecord
from tvm_hybrid.records.record_file import RecordFile
from tvm_hybrid.records.record_store import RecordStore
from tvm_hybrid.targets.resolve import resolve_target
from tvm_hybrid.tuning.joint_layout import JointPlan, JointResult, JointStage, chooser
from tvm_hybrid.tuning.measuring.model_race import Program, ProgramKernel, Race
from tvm_hybrid.tuning.tune_model import rest_of, with_layouts
from tvm_hybrid.tuning.tuning_task import Plan

pytestmark = pytest.mark.turns

op = relax.op
PLANE_US, OTHER_US = 1.0, 10.0
PLAN = JointPlan(tries=3)


@pytest.fixture
def options() -> PipelineOptions:
    return PipelineOptions(target=resolve_target(None))


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    return RecordStore(tmp_path / "records.jsonl", must_exist=False)


class Planes:
    """A clock by which kernels that write planes of pixels are fast."""

    def microseconds(self, kernel: ProgramKernel) -> float:
        return PLANE_US if len(kernel.function.params[-1].shape) == 3 else OTHER_US


class Trials:
    """Records who gets trials, and makes none."""

    def __init__(self) -> None:
        self.given: dict[str, int] = {}

    def __call__(
        self, counted: Sequence[tuple[Region, int]], rounds: int, seconds: float
    ) -> Mapping[str, int]:
        assert seconds > 0
        keys = [region.key for region, _ in counted]
        assert not set(keys) & set(self.given)
        self.given |= dict.fromkeys(keys, rounds)
        return dict.fromkeys(keys, rounds)


class Races:
    """Returns a fixed ratio of the times of two programs."""

    def __init__(self, ratio: float = 0.8, same: bool = True) -> None:
        self.ratio, self.same, self.count = ratio, same, 0

    def __call__(self, one: Program, other: Program) -> Race:
        assert one[0] is other[0]
        assert one[1].layouts is not None and other[1].layouts is None
        assert one[1].lookup is other[1].lookup is not None
        self.count += 1
        return Race([100.0 * self.ratio] * 41, [100.0] * 41, self.same)


def staged(
    options: PipelineOptions, store: RecordStore, races: Races, plan: JointPlan = PLAN
) -> tuple[JointResult, Trials]:
    trials = Trials()
    stage = JointStage(pooled(), options, store, trials, Planes(), races)
    return stage.run(plan), trials


def lines(store: RecordStore) -> list[LayoutRecord]:
    """Layout records in a store, oldest first."""
    return [record for record, _ in store.files[0].of_kind(LayoutRecord)]


def test_better_layouts_are_written_and_found_again(
    options: PipelineOptions, store: RecordStore
) -> None:
    result, trials = staged(options, store, Races())
    assert result.chosen
    assert result.best_us < result.default_us
    assert any("conv2d" in name for name in result.changed)
    assert result.to_dict()["speedup"] == pytest.approx(1.25)
    assert "1.250x as fast" in str(result)
    (record,) = lines(store)
    assert record.speedup == pytest.approx(1.25)
    assert record.trials == sum(trials.given.values()) > 0
    (problem,) = layout_problems(pooled(), options)
    found = LayoutRecord.find(store.files, problem.key, options)
    assert found is not None and found[0] == record
    assert problem.differences(record.numbers) == list(result.changed)

    again, trials = staged(options, store, Races())
    assert (again.source, trials.given) == (found[1], {})
    keys = {region.key for region, _ in count_regions(pooled(), with_layouts(options, store))}
    assert keys != {region.key for region, _ in count_regions(pooled(), options)}
    assert keys <= set(result.measured)


@pytest.mark.parametrize("races", [Races(0.995), Races(1.2), Races(same=False)])
def test_what_is_not_faster_for_certain_is_not_written(
    options: PipelineOptions, store: RecordStore, races: Races
) -> None:
    result, _ = staged(options, store, races)
    assert races.count == 1
    assert result.changed and not result.chosen
    assert lines(store) == []


def test_what_is_not_better_any_more_is_taken_back(
    options: PipelineOptions, store: RecordStore
) -> None:
    staged(options, store, Races())
    result, _ = staged(options, store, Races(1.1), JointPlan(resume=False))
    assert not result.chosen
    (problem,) = layout_problems(pooled(), options)
    assert [record.numbers == problem.default for record in lines(store)] == [False, True]
    found = LayoutRecord.find(store.files, problem.key, options)
    assert found is not None and found[0].numbers == problem.default


def test_trials_are_limited_and_every_region_gets_its_own_once(
    options: PipelineOptions, store: RecordStore
) -> None:
    _, trials = staged(options, store, Races(), JointPlan(tries=4, rounds=3))
    assert set(trials.given.values()) == {3}
    result, trials = staged(options, store, Races(), JointPlan(rounds=5, trials=12, resume=False))
    assert sum(trials.given.values()) <= 12
    assert result.measured == trials.given


def test_without_a_choice_nothing_is_measured(options: PipelineOptions, store: RecordStore) -> None:
    mod = module(lambda x: op.matmul(x, constant(8, 4)), ((3, 8), "float32"))
    trials, races = Trials(), Races()
    result = JointStage(mod, options, store, trials, Planes(), races).run(JointPlan())
    assert (result.choices, trials.given, races.count) == (0, {}, 0)
    assert "no choice" in str(result)


def test_what_is_left_of_a_run() -> None:
    plan = Plan(trials=100, time_limit=60.0)
    found = JointResult(3, measured={"kept": 8, "left": 5})
    rest = rest_of(plan, found, {"kept", "new"}, 12.0)
    assert (rest.trials, rest.time_limit) == (95, 48.0)
    assert rest_of(plan, None, {"new"}, 12.0) == plan


def convolved() -> IRModule:
    """A pool window and a 1x1 convolution to two channels."""
    return module(lambda x: op.nn.conv2d(conv(x), kernel(2, 8, 1, 1)), X)


def write_first(path: Path, options: PipelineOptions, **changes: object) -> None:
    """Writes records that everything in `convolved` that can runs channels first."""
    import msgspec

    (problem,) = layout_problems(convolved(), options)
    labels = {name: FIRST for name in problem.default}
    assert set(problem.default.values()) == {LAST}
    names = LayoutRecord.names_of(labels)
    record = LayoutRecord.made(options, [8.0], [9.0], graph=problem.key, labels=names)
    record = msgspec.structs.replace(record, **changes)
    RecordStore(path, must_exist=False).append(record)


def test_compilation_applies_what_a_file_holds(tmp_path: Path) -> None:
    """Sums of 72 numbers near 1 in another order differ by less than 1e-5."""
    options = PipelineOptions(target=resolve_target(None))
    path = tmp_path / "r.jsonl"
    write_first(path, options)
    tuned = api.compile(convolved(), records=path, num_threads=1)
    plain = api.compile(convolved(), records=[], num_threads=1)
    (decision,) = [each for each in tuned.explain() if each.op == LAYOUTS]
    assert decision.source == f"record {path}:1"
    assert "conv2d 1x2x6x5" in decision.reason
    assert not [each for each in plain.explain() if each.op == LAYOUTS]
    assert any("batch_matmul" in each.op for each in tuned.explain().taken)
    (use,) = [each for each in tuned.manifest.records if each.workload.startswith("layouts ")]
    assert (use.file, use.line, use.how) == (str(path), 1, "exact")
    x = np.random.default_rng(0).standard_normal((1, 8, 6, 5)).astype(np.float32)
    one, two = (each.run({"x0": x})[0].numpy() for each in (tuned, plain))
    np.testing.assert_allclose(one, two, rtol=0, atol=1e-5 * np.abs(two).max())


@pytest.mark.parametrize(
    "changes",
    [
        {"graph": "0123456789abcdef"},
        {"machine": "elsewhere"},
        {"threads": 64},
        {"precision": "bf16"},
        {"version": 0},
    ],
)
def test_what_was_measured_otherwise_is_not_used(
    tmp_path: Path, options: PipelineOptions, changes: dict[str, object]
) -> None:
    path = tmp_path / "r.jsonl"
    write_first(path, options, **changes)
    found = count_regions(convolved(), with_layouts(options, RecordStore(path)))
    assert found == count_regions(convolved(), options)


def test_labels_of_other_operators_and_lines_that_make_no_sense_are_passed_over(
    tmp_path: Path, options: PipelineOptions, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "r.jsonl"
    write_first(path, options, labels={"7 conv2d 1x2x3x4": "first"})
    path.write_text(path.read_text() + '{"schema": 1, "kind": "layout", "graph": 3}\n')
    with caplog.at_level(logging.WARNING, "tvm_hybrid"):
        found = count_regions(convolved(), with_layouts(options, RecordStore(path)))
    assert found == count_regions(convolved(), options)
    assert f"{path}:2: this layout line is not used" in caplog.text
    assert f"record {path}:1: these layouts are not used: they belong to other" in caplog.text
    assert RecordFile(path).refresh() == []


def test_labels_for_a_block(options: PipelineOptions) -> None:
    (problem,) = layout_problems(convolved(), options)
    labels = {name: FIRST for name in problem.default}
    choose = chooser({problem.key: labels}, "here")
    assert choose(problem) == LayoutChoice(labels, "here")
    assert chooser({"other": labels}, "here")(problem) is None
    regions = [each for each, _ in count_regions(convolved(), replace(options, layouts=choose))]
    assert "batch_matmul" in [region.op for region in regions]
