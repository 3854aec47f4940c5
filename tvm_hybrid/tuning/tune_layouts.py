"""The joint stage as part of a tuning run: who measures, how much of the budget it may take."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tvm import IRModule

from relay_passes.pipeline_options import PipelineOptions
from tir_schedules.core.region import Region

from ..records.record_lookup import RecordLookup, layouts_of
from ..records.record_store import RecordStore
from .joint_layout import SHARE, JointPlan, JointResult, JointStage, Loops
from .measuring.kernel_clock import KernelClock
from .measuring.measure import Measurer
from .measuring.model_race import race
from .tune_regions import tune_regions
from .tune_result import Callback, StopTuning, Trial
from .tuning_task import Plan

logger = logging.getLogger("tvm_hybrid")


def joint_layouts(
    mod: IRModule,
    options: PipelineOptions,
    store: RecordStore,
    measurer: Measurer,
    plan: Plan,
    footprint_bytes: int = 0,
    callbacks: Sequence[Callback] = (),
) -> JointResult | None:
    """Runs the joint stage with at most `SHARE` of a run's trials and time.

    Parameters
    ----------
    mod : IRModule
        As imported.
    options : PipelineOptions
        How it is compiled.
    store : RecordStore
        Receives records and, if they are better, layouts.
    measurer : Measurer
        Measures configurations of regions.
    plan : Plan
        Of the whole run.
    footprint_bytes : int
        Bytes of all constants of the model.
    callbacks : sequence of callable
        Told every measurement of a configuration, but no beginning and no end.

    Returns
    -------
    JointResult or None
        None if a callback stopped it. KeyboardInterrupt passes through.
    """
    loops = _loops(options, store, measurer, plan, callbacks)
    share = JointPlan(
        trials=None if plan.trials is None else max(1, round(SHARE * plan.trials)),
        time_limit=None if plan.time_limit is None else SHARE * plan.time_limit,
        seed=plan.seed,
        resume=plan.resume,
    )
    with KernelClock(options, footprint_bytes) as clock:
        try:
            return JointStage(mod, options, store, loops, clock, race).run(share)
        except StopTuning as stop:
            logger.info("the joint stage ends: %s", stop)
            return None


def with_layouts(options: PipelineOptions, store: RecordStore) -> PipelineOptions:
    """The layouts that compilation with this store will have."""
    return replace(options, layouts=layouts_of(RecordLookup(store), options))


def rest_of(plan: Plan, found: JointResult | None, keys: Collection[str], seconds: float) -> Plan:
    """What a run may still do after the joint stage.

    Parameters
    ----------
    plan : Plan
        Of the whole run.
    found : JointResult or None
        What the joint stage did.
    keys : collection of str
        The regions that are left; their trials count when they are tuned.
    seconds : float
        That have passed.
    """
    if found is None:
        return plan
    elsewhere = sum(count for key, count in found.measured.items() if key not in keys)
    trials, limit = plan.trials, plan.time_limit
    return replace(
        plan,
        trials=None if trials is None else max(1, trials - elsewhere),
        time_limit=None if limit is None else max(1.0, limit - seconds),
    )


def _loops(
    options: PipelineOptions,
    store: RecordStore,
    measurer: Measurer,
    plan: Plan,
    callbacks: Sequence[Callback],
) -> Loops:
    """Makes a few trials for each of some regions, by the run's own strategy."""

    def loops(
        counted: Sequence[tuple[Region, int]], rounds: int, seconds: float
    ) -> Mapping[str, int]:
        stops: list[StopTuning] = []

        def tell(trial: Trial) -> None:
            if trial.stage != "search":
                return
            try:
                for callback in callbacks:
                    callback(trial)
            except StopTuning as stop:
                stops.append(stop)
                raise

        few = replace(
            plan,
            trials=None,
            trials_per_region=rounds,
            batch=min(plan.batch, rounds),
            min_gain=0.0,
            time_limit=seconds if math.isfinite(seconds) else None,
            finals=False,
        )
        regions, counts = [region for region, _ in counted], [count for _, count in counted]
        found = tune_regions(regions, options.machine, measurer, store, few, [tell], counts)
        if found.interrupted:
            raise KeyboardInterrupt
        if stops:
            raise stops[0]
        return {each.region.key: each.trials for each in found.regions}

    return loops
