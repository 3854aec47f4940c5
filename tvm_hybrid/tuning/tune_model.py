"""`tvm_hybrid.tune`: searches configurations for every region of a model, into a record file."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm import IRModule

from microkernels.base.errors import Argument, ConfigError
from microkernels.base.logs import logger
from microkernels.isa import require_on_host
from microkernels.machines.machine import Machine
from relay_passes.ir.constants import bytes_of, constants_of
from relay_passes.lower_module import count_regions
from relay_passes.pipeline_options import PipelineOptions
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for

from ..frontend.model_input import import_model
from ..options import (
    CompileOptions,
    TuneKeywords,
    chosen_options,
    dump_folder,
    passes_options,
    setting_of,
    target_of,
)
from ..records.record_file import require_appendable
from ..records.record_lookup import RecordLookup, arrangements_of, layouts_of
from ..records.record_store import RecordStore
from ..runtime.places import on_cpus
from .joint_layout import SHARE as LAYOUTS_SHARE
from .joint_layout import JointPlan, JointResult, JointStage
from .measuring.kernel_clock import KernelClock
from .measuring.local_measurer import LocalMeasurer
from .measuring.measure import Measurer, Replay
from .measuring.model_race import race
from .rpc.measurer import RpcMeasurer, find_servers
from .rpc.worker import Address
from .search.strategies import DEFAULT_STRATEGY, check_strategy
from .tune_arrangements import SHARE, ArrangementResult, tune_arrangements
from .tune_regions import tune_regions
from .tune_result import Callback, StopTuning, Trial, TuneResult
from .tuning_task import Plan

if TYPE_CHECKING:
    from typing_extensions import Unpack


LAYOUTS = ("fixed", "joint")


def tune(
    model: Any,
    options: CompileOptions | None = None,
    *,
    trials: int | None = 1000,
    trials_per_region: int | None = None,
    time_limit: float | None = None,
    min_gain: float = 0.005,
    records: str | os.PathLike[str] = "records.jsonl",
    strategy: str = DEFAULT_STRATEGY,
    batch: int = 8,
    seed: int = 0,
    timeout: float = 30.0,
    resume: bool = True,
    replay: str | os.PathLike[str] | None = None,
    tracker: str | None = None,
    key: str = "",
    rpc_timeout: float = 10.0,
    layouts: str = "fixed",
    callbacks: Sequence[Callback] = (),
    **keywords: Unpack[TuneKeywords],
) -> TuneResult:
    """Measures configurations of the regions of a model, and writes records of them.

    Contractions in programs without operators (docs/tensorization.md) come first: the ways to
    arrange them, each by itself, in turns with the estimate's, with at most 20% of the time; not
    at servers or in a replay. Then the regions' default configurations; what follows is spent where
    it is expected to shorten the model's time most. Each configuration is built, checked against
    the region's meaning and timed in a process of its own, so that one that crashes, hangs or is
    wrong costs nothing but its own time. In the end the fastest of each region are measured again,
    longer, in two fresh processes, in turns with the default: only one that is faster by more than
    1%, by a sign test at the level 0.01, takes its place when the model is compiled with these
    records.

    Every finished measurement is in the file before the next is looked at: Ctrl-C, or any other
    end, loses none, and the same call continues where the last one stopped.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto or IRModule
        What to tune.
    options : CompileOptions, optional
        How the model is to be compiled. `compile` finds records of another precision or level of
        fusion or fast_math only where the regions agree.
    trials : int or None
        Configurations of the whole model (what MetaSchedule calls `max_trials_global`): the default
        ones, and those that the file holds already, included; the finals, at most a few for each
        region, are not. None: as many as there are.
    trials_per_region : int or None
        The same for each region.
    time_limit : float or None
        Seconds that the search and its finals may take; what is being measured then is finished.
    min_gain : float
        The search ends when going on is expected to shorten the model's time by less than this
        share; see `task_scheduler`. 0: never.
    records : path-like
        The file to append to; made if it is not there.
    strategy : str
        Which configuration is tried next: "model" learns what makes them fast, also from records
        of other regions; "evolutionary", "random", "grid".
    batch : int
        Configurations that a region gets at a time; the strategy learns after each batch.
    seed : int
        Of the search and of the kernels' arguments.
    timeout : float
        Seconds that one configuration may take.
    resume : bool
        Whether to leave out what the file holds already.
    replay : path-like or None
        A record file to simulate the search from: nothing is measured, regions and configurations
        that the file lacks do not exist. Then `records` is not written, and there are no finals.
    tracker : str or None
        HOST:PORT of a TVM RPC tracker: its servers measure, and not this machine; see
        `tvm_hybrid.tuning.rpc`. Records bear the name of their CPU.
    key : str
        What the servers were started with.
    rpc_timeout : float
        Seconds that one configuration may occupy a server, besides those of its samples.
    layouts : {"fixed", "joint"}
        "joint": before the rest, layouts of activations are searched together with the loops of the
        regions that there are in them, conversions counted, with at most 40% of the trials and the
        time; see `joint_layout`. "fixed": layouts are those that the file holds, or else move the
        fewest bytes. Kernels of whole models are timed on this machine: no tracker, no replay.
    callbacks : sequence of callable
        Called with a `tuning.Trial` after every measurement, at the beginning and at the end. One
        that raises `tuning.StopTuning` ends the search; finals are still made.
    **keywords
        Fields of `CompileOptions`, which go before those of `options`: `target`, `machine`,
        `shapes`, `values`, `precision`, `fusion`, `fast_math`, `num_threads`, `threads`, `strict`,
        `dump_ir`.

    Notes
    -----
    This machine, or the servers, must be able to run the code of `target`; None is the CPU of
    whoever measures. A record is used only with the number of threads it was measured with;
    `num_threads` of None is, with servers, as many as they have. With a place in `threads`, this
    process runs on the CPUs of that place alone while it tunes; servers and a replay take none.
    `strict` refuses what could not be tuned, as no template takes it. `dump_ir` gets the passes
    until regions are formed.

    Returns
    -------
    TuneResult
        Default and best configuration of every region, and why it ended; `interrupted` if Ctrl-C
        ended it.

    Raises
    ------
    CompileError
        If there is no such precision, level of fusion or of fast_math, or nothing can be measured.
    ConfigError
        If another parameter is out of range.
    IsaError
        If this CPU cannot run the target's code.
    RecordError
        If the record file cannot be written.
    ServerError
        If there is no tracker, no server, or one that cannot run the target's code.
    """
    check_strategy(strategy)
    plan = Plan(strategy, trials, trials_per_region, batch, min_gain, time_limit, seed, resume)
    _check(plan, timeout, layouts, here=tracker is None and replay is None)
    chosen = chosen_options(options, keywords, TuneKeywords)
    if replay is None:
        require_appendable(Path(records))
    servers = None
    if tracker is not None or key:
        if replay is not None:
            raise ConfigError("a replay measures nothing, at servers neither: name one of the two")
        servers = find_servers(Address.parse(tracker or "", key))
    here = servers is None and replay is None
    if not isinstance(chosen.threads, int | None) and not here:
        raise ConfigError(
            "a place of threads is one of this machine: give servers a number", argument="threads"
        )
    dump_folder(chosen)
    if servers and chosen.num_threads is None and chosen.threads is None:
        chosen = replace(chosen, num_threads=servers.threads)
    setting = setting_of(chosen, here)
    if servers and chosen.target is None:
        chosen = replace(chosen, target=servers.cpu)
    passes = passes_options(chosen, target_of(chosen), setting.count)
    mod = import_model(model, chosen.shapes, chosen.values).mod
    tuned = passes.machine
    if replay is not None:
        counted = count_regions(mod, passes, passes.strict)
        known = Replay(replay, tuned)
        plan = replace(plan, finals=False, space=known.space)
        recorded = [one for one in counted if known.knows(one[0], template_for(one[0].op))]
        with tempfile.TemporaryDirectory() as folder:
            scratch = RecordStore(Path(folder) / "replay.jsonl", must_exist=False)
            return tune_regions(recorded, tuned, known, scratch, plan, callbacks)
    if servers is not None:
        tuned = replace(tuned, name=servers.cpu)
    else:
        require_on_host(tuned.isa)
    target, footprint = str(passes.target), footprint_of(mod)
    with (
        on_cpus(setting.cpus),
        LocalMeasurer(tuned, target, timeout, footprint, seed)
        if servers is None
        else RpcMeasurer(
            tuned, target, servers.address, timeout, rpc_timeout, footprint, seed
        ) as measurer,
    ):
        store = RecordStore(records, must_exist=False)
        tuning = ModelTuning(mod, passes, store, measurer, plan, callbacks)
        return tuning.run(tuned, here, layouts == "joint")


def _check(plan: Plan, timeout: float, layouts: str, here: bool) -> None:
    if layouts not in LAYOUTS:
        raise ConfigError(f"no way {layouts!r} to choose layouts; there are {', '.join(LAYOUTS)}")
    if layouts == "joint" and not here:
        raise ConfigError(
            "joint layouts need kernels of a whole model to be timed on this machine: name no "
            "tracker and no replay, or leave layouts fixed"
        )
    for name, least in {"trials": 1, "trials_per_region": 1, "batch": 1, "min_gain": 0}.items():
        value = getattr(plan, name)
        if value is not None and not value >= least:
            raise ConfigError(Argument(name), f" must be at least {least}, not {value}")
    for name, seconds in {"timeout": timeout, "time_limit": plan.time_limit}.items():
        if seconds is not None and not seconds > 0:
            raise ConfigError(Argument(name), f" must be more than 0 seconds, not {seconds}")


@dataclass(frozen=True)
class ModelTuning:
    """How one model is tuned.

    Parameters
    ----------
    mod : IRModule
        As imported.
    options : PipelineOptions
        How it is compiled.
    store : RecordStore
        Receives records and, if they are better, layouts and arrangements.
    measurer : Measurer
        Measures configurations of regions.
    plan : Plan
        Of the whole run.
    callbacks : sequence of callable
        Told every measurement.
    """

    mod: IRModule
    options: PipelineOptions
    store: RecordStore
    measurer: Measurer
    plan: Plan
    callbacks: Sequence[Callback] = ()

    def run(self, machine: Machine, here: bool, joint: bool) -> TuneResult:
        """Arrangements, if this machine measures, then layouts if they are joint, then regions."""
        begin, found, plan, options = time.monotonic(), None, self.plan, self.options
        arrangements: list[ArrangementResult] = []
        try:
            if here:
                limit = None if plan.time_limit is None else SHARE * plan.time_limit
                arrangements = tune_arrangements(self.mod, options, self.store, plan.resume, limit)
                known = arrangements_of(RecordLookup(self.store), options)
                options = replace(options, arrange=known)
            if joint:
                found = replace(self, options=options).joint_layouts()
        except KeyboardInterrupt:
            return TuneResult([], True, "interrupted", time.monotonic() - begin)
        counted = count_regions(self.mod, with_layouts(options, self.store), options.strict)
        logger.info("%d distinct regions to tune", len(counted))
        keys = {region.key for region, _ in counted}
        plan = rest_of(plan, found, keys, time.monotonic() - begin)
        result = tune_regions(counted, machine, self.measurer, self.store, plan, self.callbacks)
        return replace(
            result, layouts=found, arrangements=arrangements, seconds=time.monotonic() - begin
        )

    def joint_layouts(self) -> JointResult | None:
        """Runs the joint stage with at most `joint_layout.SHARE` of a run's trials and time.

        Callbacks are told every measurement of a configuration, but no beginning and no end.

        Returns
        -------
        JointResult or None
            None if a callback stopped it. KeyboardInterrupt passes through.
        """

        def loops(
            counted: Sequence[tuple[Region, int]], rounds: int, seconds: float
        ) -> Mapping[str, int]:
            stops: list[StopTuning] = []

            def tell(trial: Trial) -> None:
                if trial.stage != "search":
                    return
                try:
                    for callback in self.callbacks:
                        callback(trial)
                except StopTuning as stop:
                    stops.append(stop)
                    raise

            few = replace(self.plan, trials=None, trials_per_region=rounds, finals=False)
            few = replace(few, batch=min(few.batch, rounds), min_gain=0.0)
            few = replace(few, time_limit=seconds if math.isfinite(seconds) else None)
            found = tune_regions(
                counted, self.options.machine, self.measurer, self.store, few, [tell]
            )
            if found.interrupted:
                raise KeyboardInterrupt
            if stops:
                raise stops[0]
            return {each.region.key: each.trials for each in found.regions}

        plan = self.plan
        share = JointPlan(
            trials=None if plan.trials is None else max(1, round(LAYOUTS_SHARE * plan.trials)),
            time_limit=None if plan.time_limit is None else LAYOUTS_SHARE * plan.time_limit,
            seed=plan.seed,
            resume=plan.resume,
        )
        with KernelClock(self.options, footprint_of(self.mod)) as clock:
            try:
                stage = JointStage(self.mod, self.options, self.store, loops, clock, race)
                return stage.run(share)
            except StopTuning as stop:
                logger.info("the joint stage ends: %s", stop)
                return None


def footprint_of(mod: IRModule) -> int:
    """Bytes of all constants of a model."""
    return sum(bytes_of(constant.value) for constant in constants_of(mod))


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
