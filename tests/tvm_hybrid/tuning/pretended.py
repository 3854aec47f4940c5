"""A simulated measurer, for tests of the search."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tir_schedules.core.config import Config
from tvm_hybrid.tuning.measuring.measure import Candidates, Effort, Measurement
from tvm_hybrid.tuning.tune_regions import FINAL_EFFORT
from tvm_hybrid.tuning.tuning_task import Plan

DEFAULT_US = 8.0
ALL = Plan("grid", min_gain=0.0)
"""Tries all configurations."""

GRID = [8, 16, 2, 64, 1, 32, 4]
"""Order in which a grid search tries the blocks."""


class Pretended:
    """A simulated measurer: times follow from the block size."""

    def __init__(self, time_us: Callable[[int, bool], float] = lambda block, final: 64 / block):
        self.time_us = time_us
        self.blocks: list[int] = []
        self.finals: list[int] = []
        self.baselines: list[Config | None] = []
        self.batches: list[int] = []
        self.interrupt_at = -1

    def measure(self, wanted: Candidates) -> Iterator[tuple[Config, Measurement]]:
        self.batches.append(len(wanted.configs))
        for config in wanted.configs:
            yield config, self.one(config, wanted.baseline, wanted.effort)

    def one(self, config: Config, baseline: Config | None, effort: Effort) -> Measurement:
        block, final = config.to_dict()["block"], effort == FINAL_EFFORT
        if len(self.blocks) + len(self.finals) == self.interrupt_at:
            raise KeyboardInterrupt
        (self.finals if final else self.blocks).append(block)
        self.baselines.append(baseline)
        time_us = self.time_us(block, final)
        if time_us < 0:
            return Measurement(status="runtime_error", error="pretended")
        count = effort.samples
        return Measurement(
            status="ok",
            times_us=[time_us] * count,
            baseline_times_us=[DEFAULT_US] * count if baseline is not None else [],
            baseline_us=DEFAULT_US if baseline is not None else None,
        )
