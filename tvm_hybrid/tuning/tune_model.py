"""`tvm_hybrid.tune`: searches configurations for every region of a model, into a record file."""

from __future__ import annotations

import logging
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tvm import IRModule, relax
from tvm.ir import GenericConst
from tvm.runtime import Tensor

from microkernels.errors import ConfigError
from microkernels.isa import require_on_host
from relay_passes.pipeline import (
    PipelineOptions,
    check_fusion,
    check_precision,
    collect_regions,
)
from relay_passes.select_winograd import check_fast_math
from tir_schedules.machine import Machine
from tir_schedules.region import Region

from ..model_input import import_model
from ..targets import resolve_target
from ..threads import resolve_threads
from .records import RecordStore
from .replay import Replay
from .search import strategy_named
from .tune_regions import Plan, Progress, TuneResult, tune_regions
from .worker_process import WorkerProcess

logger = logging.getLogger("tvm_hybrid")


def tune(
    model: Any,
    *,
    target: Any = None,
    shapes: Mapping[str, Any] | None = None,
    precision: str = "auto",
    fusion: str = "coarse",
    fast_math: str = "default",
    trials: int = 64,
    records: str | os.PathLike[str] = "records.jsonl",
    num_threads: int | None = None,
    strategy: str = "random",
    seed: int = 0,
    timeout: float = 30.0,
    resume: bool = True,
    replay: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> TuneResult:
    """Measures configurations for every distinct region of a model.

    Each one is built, checked against the region's meaning and timed in a process of its own, so
    that one that crashes, hangs or is wrong costs nothing but its own time. Every finished
    measurement is in the file before the next begins: Ctrl-C, or any other end, loses none, and
    the same call continues where the last one stopped.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto or IRModule
        What to tune.
    target : str, dict, tvm.target.Target or None
        As for `compile`; this machine must be able to run its code.
    shapes : mapping or None
        As for `compile`.
    precision : {"auto", "f32", "bf16"}
    fusion : {"coarse", "fine", "none"}
    fast_math : {"off", "default", "on"}
        As for `compile`, which finds records of another precision or level of fusion or fast_math
        only where the regions agree.
    trials : int
        Configurations of each region, the default one (always first) and those that the file holds
        already included.
    records : path-like
        The file to append to; made if it is not there.
    num_threads : int or None
        As for `compile`; a record is used only with the number of threads it was measured with.
    strategy : str
        "random" or "grid".
    seed : int
        Of the search and of the kernels' arguments.
    timeout : float
        Seconds that one configuration may take.
    resume : bool
        Whether to leave out what the file holds already.
    replay : path-like or None
        A record file to simulate the search from: nothing is measured, configurations that the
        file lacks do not exist. Then `records` is not written.
    progress : callable or None
        Called with a `Trial` after every measurement.

    Returns
    -------
    TuneResult
        Default and best configuration of every region; `interrupted` if Ctrl-C ended it.

    Raises
    ------
    CompileError
        If there is no such precision, level of fusion or of fast_math.
    ConfigError
        If another parameter is out of range.
    IsaError
        If this CPU cannot run the target's code.
    RecordError
        If the record file cannot be written.
    """
    if trials < 1 or timeout <= 0:
        raise ConfigError(f"trials must be at least 1 and timeout positive: {trials}, {timeout}")
    order = strategy_named(strategy)
    check_precision(precision)
    check_fusion(fusion)
    check_fast_math(fast_math)
    options = PipelineOptions(
        target=resolve_target(target),
        threads=resolve_threads(num_threads),
        precision=precision,
        fusion=fusion,
        fast_math=fast_math,
    )
    regions, footprint = _regions(model, shapes, options)
    machine = options.machine
    if replay is not None:
        return _replayed(regions, machine, replay, Plan(order, trials, seed), progress)
    require_on_host(machine.isa)
    store = RecordStore(records, must_exist=False)
    plan = Plan(order, trials, seed, resume)
    with WorkerProcess(machine, str(options.target), timeout, footprint, seed) as worker:
        return tune_regions(regions, machine, worker, store, plan, progress)


def _regions(
    model: Any, shapes: Mapping[str, Any] | None, options: PipelineOptions
) -> tuple[list[Region], int]:
    """Distinct regions, and the bytes of all constants."""
    mod, _, _ = import_model(model, shapes)
    regions = collect_regions(mod, options)
    logger.info("%d distinct regions to tune", len(regions))
    return regions, _constant_bytes(mod)


def _constant_bytes(mod: IRModule) -> int:
    sizes: dict[relax.Expr, int] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, GenericConst) and isinstance(expr.value, Tensor):
            sizes[expr] = math.prod(expr.value.shape) * expr.value.dtype.itemsize

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return sum(sizes.values())


def _replayed(
    regions: list[Region],
    machine: Machine,
    replay: str | os.PathLike[str],
    plan: Plan,
    progress: Progress | None,
) -> TuneResult:
    known = Replay(RecordStore(replay), machine)
    plan = replace(plan, finals=False, space=known.space)
    recorded = [region for region in regions if known.store.of_workload(region.key)]
    with tempfile.TemporaryDirectory() as folder:
        scratch = RecordStore(Path(folder) / "replay.jsonl", must_exist=False)
        return tune_regions(recorded, machine, known, scratch, plan, progress)
