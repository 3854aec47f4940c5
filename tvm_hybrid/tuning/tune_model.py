"""`tvm_hybrid.tune`: searches fast configurations for every region of a model."""

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

    Contractions in programs without operators (docs/tensorization.md) come first: each is measured
    alone in its possible arrangements, in turns with the estimate's choice, with at most 20% of the
    time; not on servers or in a replay. Then come the regions' default configurations. All further
    trials go to the region where they are expected to shorten the model's time most. Each
    configuration is built, checked against the region's exact result and timed in a separate
    process, so that one that crashes, hangs or is wrong costs nothing but its time. In the end the
    fastest of each region are measured again, longer, in two fresh processes, in turns with the
    default. A compilation with these records uses one only if it is faster than the default by more
    than 1%, by a sign test at the level 0.01.

    Every finished measurement is in the file before the next one is read. So Ctrl-C, or any other
    end, loses none, and the same call continues where the last one stopped.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto or IRModule
        The model to tune.
    options : CompileOptions, optional
        How the model will be compiled. `compile` with another precision, fusion or fast_math finds
        only the records of regions that stay equal.
    trials : int or None
        Most configurations of the whole model (MetaSchedule's `max_trials_global`), including
        defaults and those that the file already holds, but not the finals, which are at most a few
        for each region. None: no limit.
    trials_per_region : int or None
        Most configurations of each region, counted like `trials`. None: no limit.
    time_limit : float or None
        Seconds for the search and its finals; a measurement that has begun is finished.
    min_gain : float
        The search ends when it is expected to shorten the model's time by less than this share; see
        `task_scheduler`. 0: never.
    records : path-like
        The file to append to; created if missing.
    strategy : str
        How to choose the next configuration: "model" learns what makes configurations fast, also
        from records of other regions; "evolutionary", "random", "grid".
    batch : int
        Configurations that a region gets at a time; the strategy learns after each batch.
    seed : int
        Seed of the search and of the kernels' arguments.
    timeout : float
        Seconds for building one configuration, and again for measuring it.
    resume : bool
        Whether configurations in the file are not measured again.
    replay : path-like or None
        A record file to simulate the search from: nothing is measured, and regions and
        configurations that the file lacks are left out. Then `records` is not written, and there
        are no finals.
    tracker : str or None
        HOST:PORT of a TVM RPC tracker: its servers measure instead of this machine; see
        `tvm_hybrid.tuning.rpc`. Records bear the name of their CPU.
    key : str
        The key that the servers were started with.
    rpc_timeout : float
        Most seconds that one configuration may occupy a server, in addition to those for its
        samples.
    layouts : {"fixed", "joint"}
        "joint": first searches layouts of activations together with the loops of the regions in
        these layouts, conversions counted, with at most 40% of the trials and the time; see
        `joint_layout`. "fixed": uses the layouts from the file, or else those that move the fewest
        bytes. "joint" times kernels of whole models on this machine: no tracker, no replay.
    callbacks : sequence of callable
        Called with a `tuning.Trial` after every measurement, at the beginning and at the end. A
        callback that raises `tuning.StopTuning` ends the search; finals are still made.
    **keywords
        Fields of `CompileOptions`, which override those of `options`: `target`, `machine`,
        `shapes`, `values`, `precision`, `fusion`, `fast_math`, `num_threads`, `threads`, `strict`,
        `dump_ir`.

    Notes
    -----
    This machine, or the servers, must be able to run the code of `target`; None is the CPU of the
    machine that measures. A record is used only with the number of threads it was measured with; if
    `num_threads` is None, servers use their own number. With a place in `threads`, this process
    runs only on the CPUs of that place while it tunes; servers and a replay take no place. `strict`
    refuses operators that cannot be tuned because no template takes them. `dump_ir` gets the passes
    until regions are formed.

    Returns
    -------
    TuneResult
        Default and best configuration of every region, and why the run ended; `interrupted` if
        Ctrl-C ended it.

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
        If there is no tracker, no server, or a server cannot run the target's code.
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
    """The tuning of one model.

    Parameters
    ----------
    mod : IRModule
        The imported model.
    options : PipelineOptions
        How to compile it.
    store : RecordStore
        Receives records and, if they are better, layouts and arrangements.
    measurer : Measurer
        Measures configurations of regions.
    plan : Plan
        Limits of the whole run.
    callbacks : sequence of callable
        Called after every measurement.
    """

    mod: IRModule
    options: PipelineOptions
    store: RecordStore
    measurer: Measurer
    plan: Plan
    callbacks: Sequence[Callback] = ()

    def run(self, machine: Machine, here: bool, joint: bool) -> TuneResult:
        """Tunes arrangements, if this machine measures; then layouts, if joint; then regions."""
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

        Callbacks get the measurements, but no beginning and no end. Returns None if a callback
        stopped the stage; KeyboardInterrupt passes through.
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
    """Adds the layouts that a compilation with this store would use."""
    return replace(options, layouts=layouts_of(RecordLookup(store), options))


def rest_of(plan: Plan, found: JointResult | None, keys: Collection[str], seconds: float) -> Plan:
    """Reduces a plan by what the joint stage used.

    Trials of regions in `keys` are not subtracted, as they count again when these are tuned.
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
