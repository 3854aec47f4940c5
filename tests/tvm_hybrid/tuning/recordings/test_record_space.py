"""Recording a whole space: all once, then the fastest again until luck decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from click.testing import CliRunner

from microkernels.machines.machine import Machine
from relay_passes.pipeline_options import PipelineOptions
from tir_schedules.core.config import Config
from tir_schedules.core.template import template_for
from tvm_hybrid.bench.layer_models import public_regions
from tvm_hybrid.cli.simulate import record_spaces as command
from tvm_hybrid.records.record_store import ConfigSpace, RecordStore, ranked
from tvm_hybrid.targets.resolve import resolve_target
from tvm_hybrid.tuning.measuring.measure import Candidates, Measurement, measured
from tvm_hybrid.tuning.recordings.record_space import CAREFUL_EFFORT, SpaceRecorder

DEFAULT_US = 10.0
LUCKY, FASTEST = 2, 32
"""Blocks: LUCKY is measured too fast at first, FASTEST really is the fastest."""


class Luck:
    """Measures all blocks near the default's time; the exceptions test luck."""

    def __init__(self) -> None:
        self.quick: list[int] = []
        self.careful: list[int] = []

    def measure(self, wanted: Candidates) -> Iterator[tuple[Config, Measurement]]:
        for config in wanted.configs:
            block, careful = config.to_dict()["block"], wanted.effort == CAREFUL_EFFORT
            (self.careful if careful else self.quick).append(block)
            relative = {FASTEST: 0.9, LUCKY: 1.0 if careful else 0.5, 8: 1.1}.get(block, 1.0)
            time_us = relative * DEFAULT_US
            yield config, measured([time_us] * 5, [DEFAULT_US] * 5)


def test_what_was_only_lucky_does_not_stay_the_best(
    toy: ModuleType, machine: Machine, tmp_path: Path
) -> None:
    store = RecordStore(tmp_path / "space.jsonl", must_exist=False)
    measurer, told = Luck(), list[str]()
    SpaceRecorder(toy.region(), machine, measurer, store, told.append).run()
    assert sorted(measurer.quick) == [1, 2, 4, 8, 16, 32, 64]
    assert measurer.quick[0] == 8, "the default comes first"
    assert measurer.careful[:2] == [LUCKY, FASTEST]
    tried = store.tried(toy.region(), toy.TOY, machine)
    best = ranked(tried)[0].record
    assert best.config["block"] == FASTEST and best.relative == 0.9
    defaults = [item.record.relative for item in tried if item.record.config["block"] == 8]
    assert set(defaults) == {1.0}, "whatever two copies of it take"
    assert told[0] == "7 configurations, 7 of them measured now"


def test_a_finished_space_is_not_measured_again_but_its_best(
    toy: ModuleType, machine: Machine, tmp_path: Path
) -> None:
    store = RecordStore(tmp_path / "space.jsonl", must_exist=False)
    SpaceRecorder(toy.region(), machine, Luck(), store).run()
    again = Luck()
    SpaceRecorder(toy.region(), machine, again, store).run()
    assert not again.quick and again.careful[0] == FASTEST


def test_the_command_knows_the_public_regions() -> None:
    listed = CliRunner().invoke(command, ["--list", "matmul_f32_small"])
    options = PipelineOptions(target=resolve_target(None), threads=1)
    (region,) = public_regions(options, ["matmul_f32_small"]).values()
    size = len(ConfigSpace.of(region, template_for(region.op), options.machine))
    assert listed.exit_code == 0 and f" {size} configurations  {region.key}" in listed.output
    refused = CliRunner().invoke(command, ["resnet18_c99"])
    assert refused.exit_code == 2 and "no public region resnet18_c99" in refused.output
