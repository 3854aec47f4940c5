"""Tunes a list of regions: measure, record, continue where it helps most, confirm the best.

Every measurement is on disk before the next one is read. The records alone decide what a run does
next, so the next run can continue one that ended at any moment.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import msgspec

from microkernels.base.errors import CompileError
from microkernels.base.logs import logger
from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region

from ..records.record import Record, make_record
from ..records.record_store import RecordStore
from .measuring.measure import Candidates, Effort, Measurement, Measurer
from .measuring.sampling import is_faster
from .task_scheduler import Halt, TaskScheduler
from .tune_result import Callback, Stage, StopTuning, Trial, TuneResult
from .tuning_task import FINALISTS, Plan, TuningTask

SEARCH_EFFORT = Effort(samples=15, seconds=0.1, accuracy=0.01)
FINAL_EFFORT = Effort(samples=42, seconds=4.0, processes=2)
FINAL_ROUNDS = 3  # of up to FINALISTS measurements each
_FINAL_COST = 15.0  # estimated time of a final, in measurements of the search, until one is timed


def tune_regions(
    counted: Sequence[tuple[Region, int]],
    machine: Machine,
    measurer: Measurer,
    store: RecordStore,
    plan: Plan,
    callbacks: Sequence[Callback] = (),
) -> TuneResult:
    """Tunes regions, in the order in which that shortens the model's time most.

    Parameters
    ----------
    counted : sequence of (Region, int)
        The distinct regions, and how often the model runs each.
    machine : Machine
        The machine to tune for.
    measurer : Measurer
        Measures candidates.
    store : RecordStore
        Holds known records; receives all new ones.
    plan : Plan
        How to search, and when to stop.
    callbacks : sequence of callable
        Called at every step; see `tune_result`. StopTuning ends the run in order, other exceptions
        pass through.

    Returns
    -------
    TuneResult
        What was found, also if Ctrl-C ended the run.

    Raises
    ------
    CompileError
        If no region can be measured. A single one is left out, with a warning.
    RecordError
        If the record file cannot be written.
    """
    tasks = [TuningTask(i, *each, machine, store, plan) for i, each in enumerate(counted)]
    return _Run(tasks, machine, measurer, store, plan, callbacks).run()


@dataclass
class _Run:
    tasks: list[TuningTask]
    machine: Machine
    measurer: Measurer
    store: RecordStore
    plan: Plan
    callbacks: Sequence[Callback]

    def __post_init__(self) -> None:
        plan = self.plan
        self.scheduler = TaskScheduler(
            plan.trials, plan.trials_per_region, plan.batch, plan.min_gain
        )
        self.interruption = Interruption()
        self.unmeasurable: dict[int, CompileError] = {}
        self.records = [record for task in self.tasks for record, _ in task.found]
        self.start = time.monotonic()
        self.deadline = float("inf") if plan.time_limit is None else self.start + plan.time_limit
        self.costs: dict[Stage, list[float]] = {"search": [], "final": []}

    def run(self) -> TuneResult:
        reason, interrupted = "", False
        with self.interruption:
            try:
                reason = self._stoppable(self._search)
                if self.plan.finals:
                    reason = self._stoppable(self._finals) or reason
            except KeyboardInterrupt:
                reason, interrupted = "interrupted", True
                logger.warning("interrupted; what was measured is kept")
        with contextlib.suppress(StopTuning):
            self._show("end", 0, None)
        logger.info("tuning ended: %s", reason)
        results = [task.result() for task in self.tasks if task.known or task.measured]
        seconds = time.monotonic() - self.start
        return TuneResult(results, interrupted, reason, seconds, self.records)

    def _stoppable(self, step: Callable[[], str]) -> str:
        try:
            return step()
        except StopTuning as stop:
            return str(stop) or "a callback stopped it"

    def _search(self) -> str:
        self._show("begin", 0, None)
        while True:
            states = [task.state() for task in self.tasks]
            choice = self.scheduler.next(states)
            for task, reason in zip(self.tasks, self.scheduler.stopped(states), strict=True):
                task.stopped = reason or ""
            if isinstance(choice, Halt):
                return choice.reason
            if time.monotonic() + self._reserve() >= self.deadline:
                return f"{self.plan.time_limit:g} s are over"
            # Measure the chosen trials; fewer if the task runs out of them or the time is over.
            task, count = self.tasks[choice.task], choice.count
            while count:
                configs = task.propose(count)
                records = self._attempt(task, configs, "search") if configs else []
                task.observe(records)
                if not configs or len(records) < len(configs):
                    break
                count -= len(configs)

    def _finals(self) -> str:
        """Measures the best few again, as the fastest of many measurements is partly luck."""

        def gain_us(task: TuningTask) -> float:
            state = task.state()
            return state.weight * ((state.reference_us or 0.0) - (state.best_us or 0.0))

        # Begin with the tasks whose best configuration would shorten the model's time most.
        for task in sorted(self.tasks, key=gain_us, reverse=True):
            default = task.default_record
            if default is not None and default.confirmed is None and default.times_us:
                # Tuned by an earlier version: from now on only confirmed configurations are chosen.
                self._keep(task, msgspec.structs.replace(default, confirmed=True))
            for _ in range(FINAL_ROUNDS):
                configs = task.finalists()
                if not configs or task.number in self.unmeasurable:
                    break
                if time.monotonic() >= self.deadline:
                    return f"{self.plan.time_limit:g} s are over"
                self._attempt(task, configs, "final")
        return ""

    def _attempt(self, task: TuningTask, configs: Sequence[Config], stage: Stage) -> list[Record]:
        """Measures configurations; a region that cannot be measured ends only its own search."""
        try:
            return list(self._measured(task, configs, stage))
        except CompileError as error:
            task.end(f"cannot be measured: {error}")
            self.unmeasurable[task.number] = error
            if len(self.unmeasurable) == len(self.tasks):
                raise
            logger.warning("region %s %s", task.region.key, task.state().ended)
            return []

    def _measured(
        self, task: TuningTask, configs: Sequence[Config], stage: Stage
    ) -> Iterator[Record]:
        """Measures configurations and yields their records once written; stops at the deadline."""
        effort, expected = FINAL_EFFORT, {}
        if stage == "search":
            best = max(task.state().scores, default=0.0)
            effort = msgspec.structs.replace(SEARCH_EFFORT, best_ratio=1 / best if best else None)
            expected = {config: task.expected(config) for config in configs}
        self.interruption.check()
        wanted = Candidates(task.region, task.template, configs, task.baseline, effort)
        running = self.measurer.measure(wanted)
        with contextlib.ExitStack() as closing:
            if isinstance(running, Generator):
                closing.callback(running.close)
            for done in itertools.count(1):
                began = time.monotonic()
                with self.interruption.at_once():
                    found = next(running, None)
                if found is None:
                    return
                config, measured = found
                record = self._record(task, config, measured, stage)
                record = msgspec.structs.replace(record, predicted=expected.get(config))
                self._keep(task, record)
                self.costs[stage].append(time.monotonic() - began)
                self._show(stage, task.number, record)
                yield record
                self.interruption.check()
                reserve = self._reserve() if stage == "search" else 0.0
                if time.monotonic() + reserve >= self.deadline and done < len(configs):
                    return

    def _record(
        self, task: TuningTask, config: Config, measured: Measurement, stage: Stage
    ) -> Record:
        if measured.status != "ok":
            logger.info("%s: %s: %s", measured.status, config, measured.error)
        confirmed = None
        if stage == "final" and task.baseline is None:
            confirmed = measured.status == "ok"  # it runs, and the default does not
        elif stage == "final":
            confirmed = is_faster(measured.times_us, measured.baseline_times_us, FINALISTS)
        about = task.region, task.template, self.machine, config
        found = measured.status, measured.times_us, measured.baseline_us
        record = make_record(*about, *found, error=measured.error, confirmed=confirmed)
        if task.is_default(record) and record.times_us:
            confirmed = True if self.plan.finals else None
            baseline_us = record.baseline_us or record.median_us
            record = msgspec.structs.replace(record, baseline_us=baseline_us, confirmed=confirmed)
        return record

    def _keep(self, task: TuningTask, record: Record) -> None:
        self.store.append(record)
        self.records.append(record)
        task.take(record)

    def _seconds(self, stage: Stage) -> float:
        """Mean seconds of one measurement."""
        costs = self.costs[stage]
        if costs:
            return sum(costs) / len(costs)
        return 0.0 if stage == "search" else _FINAL_COST * self._seconds("search")

    def _reserve(self) -> float:
        """Expected seconds of the finals."""
        if not self.plan.finals:
            return 0.0
        return self._seconds("final") * sum(len(task.finalists()) for task in self.tasks)

    def _show(self, stage: Stage, number: int, record: Record | None) -> None:
        if not self.callbacks or not self.tasks:
            return
        infos = tuple(task.info() for task in self.tasks)
        done = sum(info.tried for info in infos)
        left = None if self.plan.trials is None else max(0, self.plan.trials - done)
        untried = sum(info.size - info.tried for info in infos if not info.stopped)
        trials = untried if left is None else min(untried, left)
        seconds = self._seconds("search") * trials + self._reserve()
        limit = max(0.0, self.deadline - time.monotonic())
        known = self.costs["search"] or limit < float("inf")
        trial = Trial(
            stage, infos, number, record, done, left, min(limit, seconds) if known else None
        )
        for callback in self.callbacks:
            callback(trial)


class Interruption:
    """Handles Ctrl-C without losing results: inside `at_once` it raises immediately, elsewhere only
    at the next `check`.

    Python would raise KeyboardInterrupt anywhere: between a measurement and its record, or inside a
    destructor, which swallows it. The handler is active inside the context. It is not installed
    outside the main thread, or if the program has a SIGINT handler of its own.
    """

    def __init__(self) -> None:
        self.requested = False
        self._may_raise = False
        self._former: Any = None

    def __enter__(self) -> Interruption:
        def handle(_number: int, _frame: FrameType | None) -> None:
            self.requested = True
            if self._may_raise:
                raise KeyboardInterrupt

        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._former = signal.signal(signal.SIGINT, handle)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, Ctrl-C raises KeyboardInterrupt immediately."""
        self._may_raise = True
        try:
            yield
        finally:
            self._may_raise = False

    def check(self) -> None:
        """Raises KeyboardInterrupt if Ctrl-C was pressed."""
        if self.requested:
            raise KeyboardInterrupt
