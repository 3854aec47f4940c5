"""Predicts how a model's time falls with threads, without generating or running code.

For every number of threads the model is lowered as for a real run. `kernel_times` reads its kernels
and estimates their time from the machine's description.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from rich.table import Table
from rich.text import Text
from tvm import IRModule, tirx

from microkernels.machines.description import shipped_path
from microkernels.machines.machine import Machine
from relay_passes.ir.decisions import DecisionLog
from relay_passes.lower_module import lower_shared
from relay_passes.pipeline_options import PipelineOptions
from tvm_hybrid.bench.kernel_times.read import read
from tvm_hybrid.bench.kernel_times.time import FAR, NEAR, SHARED, KernelTime, Origin, kernel_time
from tvm_hybrid.bench.kernel_times.traffic import ALL, Part

from ..executable.executable import Executable
from ..explain.program_graph import WEIGHT, named_graph
from ..frontend.model_input import import_model
from ..options import CompileOptions, passes_options, records_of, target_of
from ..targets.resolve import cpu_name, resolve_target

LABEL = "prediction, not measured"
# A region counts as slower if doubling the threads makes it slower by this factor.
_SLOWER = 1.02


class RegionTime(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted time of one call of a kernel.

    Attributes
    ----------
    node : str
        The value that the call computes.
    op : str
        The operators; "" if unknown.
    function, kernel : str
        The kernel, and its microkernel or schedule.
    predicted_us : float
        Microseconds.
    limit : str
        The largest loss beyond evenly shared computing; "compute" if all losses are small.
    parts : dict
        Microseconds by cause; they add up to the time.
    busy_threads : int
        Threads with work to do in the longest phase.
    """

    node: str
    op: str
    function: str
    kernel: str
    predicted_us: float
    limit: str
    parts: dict[str, float]
    busy_threads: int


class ScaleRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of the model with one number of threads.

    Attributes
    ----------
    threads : int
        Number of threads.
    predicted_us : float
        Microseconds of a run.
    efficiency : float
        The time on one thread, divided by this run's time and by its threads.
    regions : list of RegionTime
        Times in the order of calls.
    measured_us : float or None
        Measured microseconds of a run on this machine; None if not measured.
    measured : dict
        Kernel -> measured microseconds of all its calls in a run; empty if not measured.
    """

    threads: int
    predicted_us: float
    efficiency: float
    regions: list[RegionTime]
    measured_us: float | None = None
    measured: dict[str, float] = {}


class ScaleReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a model's time falls with threads.

    Attributes
    ----------
    label : str
        Says that these are predictions.
    cpu, machine, model : str
        LLVM's name of the CPU, the description's title, and the model's name.
    runs : list of ScaleRun
        By rising number of threads, from one thread on.
    slower : list of str
        Regions that take longer with some number of threads than with half of it.
    """

    label: str = LABEL
    cpu: str
    machine: str
    model: str
    runs: list[ScaleRun]
    slower: list[str]


def scale_model(
    model: Any, threads: Iterable[int], options: CompileOptions, name: str = "model"
) -> ScaleReport:
    """Predicts a model's time for one thread and for the given numbers of threads.

    Parameters
    ----------
    model : Any
        See `tvm_hybrid.compile`.
    threads : iterable of int
        Numbers of threads.
    options : CompileOptions
        How the model is compiled. A named target always gets its shipped description, even if this
        machine has such a CPU.
    name : str
        Name of the model in the report.

    Raises
    ------
    TvmHybridError
        See `tvm_hybrid.compile`.
    """
    resolved = target_of(options)
    described = str(resolved.attrs.get("model", "")).startswith("/")
    if options.target is not None and not described:
        resolved = resolve_target(resolved, shipped_path(cpu_name(resolved)))
    mod = import_model(model, options.shapes, options.values).mod
    runs: list[ScaleRun] = []
    for count in sorted({1, *threads}):
        passes = passes_options(options, resolved, count, records_of(options))
        decisions: DecisionLog = []
        lowered = lower_shared(mod, passes, decisions)
        regions = predict_regions(lowered, passes, decisions)
        total = sum(region.predicted_us for region in regions)
        alone = runs[0].predicted_us if runs else total
        efficiency = alone / (total * count) if total else 1.0
        runs.append(
            ScaleRun(threads=count, predicted_us=total, efficiency=efficiency, regions=regions)
        )
    return ScaleReport(
        cpu=cpu_name(resolved),
        machine=Machine.from_target(resolved).description.title,
        model=name,
        runs=runs,
        slower=slower_regions(runs),
    )


def predict_regions(
    mod: IRModule, options: PipelineOptions, decisions: DecisionLog
) -> list[RegionTime]:
    """Predicts the time of every kernel call of a lowered module."""
    machine, bits = options.machine, options.machine.isa.vector_bits
    programs = {}
    for gvar, function in mod.functions_items():
        if isinstance(function, tirx.PrimFunc):
            name = str(gvar.name_hint)
            programs[name] = read(function, options.target, bits, name)
    calls = model_calls(mod)
    parts = {name: kernel_time(program, machine).parts for name, program in programs.items()}
    by_function = {decision.function: decision for decision in decisions if decision.function}
    found = []
    known: dict[Any, KernelTime] = {}
    for call, where in zip(calls, origins(calls, machine, parts), strict=True):
        key = call.function, tuple(where.items())
        if key not in known:
            known[key] = kernel_time(programs[call.function], machine, where)
        time, decision = known[key], by_function.get(call.function)
        found.append(
            RegionTime(
                node=call.node,
                op=decision.op if decision else "",
                function=call.function,
                kernel=decision.kernel if decision else "",
                predicted_us=time.time,
                limit=time.limit,
                parts=time.named,
                busy_threads=time.busy,
            )
        )
    return found


def slower_regions(runs: Sequence[ScaleRun]) -> list[str]:
    """Describes regions that take longer with some number of threads than with half of it."""
    by_threads = {run.threads: run for run in runs}
    found = []
    for run in runs:
        half = by_threads.get(run.threads // 2)
        if half is None or run.threads % 2:
            continue
        before = {region.node: region for region in half.regions}
        for region in run.regions:
            other = before.get(region.node)
            if other is None or other.op != region.op:
                continue  # another region, fused differently
            if region.predicted_us > _SLOWER * other.predicted_us:
                what = f"{region.node} ({region.op or region.function})"
                mine = f"{region.predicted_us:.1f} us on {run.threads} threads"
                theirs = f"{other.predicted_us:.1f} on {half.threads}"
                found.append(f"{what}: {mine}, {theirs}; {region.limit}")
    return found


def scale_table(report: ScaleReport, rows: int = 0) -> Table:
    """Makes a table of the times of the model and of its regions, by threads.

    Parameters
    ----------
    report : ScaleReport
        The predictions. Regions that use equal kernels for all numbers of threads share a row.
    rows : int
        Most regions to show, the longest first; 0: all.
    """
    title = f"{report.model} on {report.machine}: {LABEL}"
    table = Table(title=title, title_justify="left", caption=LABEL)
    table.add_column("region", overflow="fold")
    for run in report.runs:
        table.add_column(f"{run.threads}\nus", justify="right", no_wrap=True)
    table.add_column("efficiency", justify="right")
    table.add_column(f"limit, {report.runs[-1].threads} threads", overflow="fold")
    total = [f"{run.predicted_us:.0f}" for run in report.runs]
    table.add_row("model", *total, f"{report.runs[-1].efficiency:.0%}", "", end_section=True)
    efficiencies = [f"{run.efficiency:.0%}" for run in report.runs]
    table.add_row("efficiency", *efficiencies, "", "", end_section=True)
    # Groups regions by their kernels for every number of threads. Regions that are fused
    # differently for some number of threads are left out.
    by_node = [{region.node: region for region in run.regions} for run in report.runs]
    by_kernels: dict[tuple[str, ...], list[list[RegionTime]]] = {}
    for node, first in by_node[0].items():
        regions = [each[node] for each in by_node if node in each]
        if len(regions) == len(by_node) and all(region.op == first.op for region in regions):
            functions = tuple(region.function for region in regions)
            by_kernels.setdefault(functions, []).append(regions)
    groups = sorted(by_kernels.values(), key=lambda each: -sum(r[-1].predicted_us for r in each))
    for group in groups[: rows or len(groups)]:
        last = group[0][-1]
        times = [sum(regions[i].predicted_us for regions in group) for i in range(len(report.runs))]
        efficiency = times[0] / (times[-1] * report.runs[-1].threads)
        cells = [*(f"{time:.1f}" for time in times), f"{efficiency:.0%}"]
        table.add_row(_name(last, len(group)), *cells, Text(_limit(last)))
    # Regions of the last run that are in no group, with the number of their calls.
    shown = {regions[-1].node for group in groups for regions in group}
    others: dict[str, list[RegionTime]] = {}
    for region in report.runs[-1].regions:
        if region.node not in shown:
            others.setdefault(region.function, []).append(region)
    for regions in sorted(others.values(), key=lambda each: -each[-1].predicted_us * len(each)):
        region, count = regions[-1], len(regions)
        gaps = [""] * (len(report.runs) - 1)
        time = f"{region.predicted_us * count:.1f}"
        table.add_row(_name(region, count), *gaps, time, "", Text(_limit(region)))
    return table


def _name(region: RegionTime, count: int) -> Text:
    name = f"{region.op or region.function}, {region.kernel or 'generic'}"
    return Text(f"{count} x {name}" if count > 1 else name)


def _limit(region: RegionTime) -> str:
    """Names a region's limit, with its share of the time."""
    share = region.parts.get(region.limit, 0.0) / region.predicted_us
    return f"{region.limit} ({share:.0%}), {region.busy_threads} busy"


def measured_table(run: ScaleRun, rows: int = 0) -> Table:
    """Makes a table of predicted and measured times of a run and of its kernels.

    Parameters
    ----------
    run : ScaleRun
        A measured run.
    rows : int
        Most kernels to show, the longest first; 0: all.
    """
    table = Table(title=f"{run.threads} threads: predicted and measured", title_justify="left")
    table.add_column("kernel", overflow="fold")
    for column in ("calls", "predicted us", "measured us", "ratio"):
        table.add_column(column, justify="right")
    measured = run.measured_us or 0.0
    table.add_row("model", "", *_compared(run.predicted_us, measured), end_section=True)
    predicted: dict[str, list[float]] = {}
    for region in run.regions:
        predicted.setdefault(region.function, []).append(region.predicted_us)
    names = sorted(predicted, key=lambda name: -run.measured.get(name, 0.0))
    for name in names[: rows or len(names)]:
        times = predicted[name]
        compared = _compared(sum(times), run.measured.get(name, 0.0))
        table.add_row(Text(name), str(len(times)), *compared)
    return table


def _compared(predicted: float, measured: float) -> tuple[str, str, str]:
    ratio = f"{predicted / measured:.2f}" if measured else ""
    return f"{predicted:.1f}", f"{measured:.1f}", ratio


TURNS = 6
SLICE_US = 1e5


def with_measured(
    report: ScaleReport, executables: Mapping[int, Executable], feeds: Mapping[str, np.ndarray]
) -> ScaleReport:
    """Adds measured times of the model and its kernels to a report.

    Parameters
    ----------
    report : ScaleReport
        Predictions for this machine.
    executables : mapping from int to Executable
        Number of threads -> compiled model.
    feeds : mapping
        The model's inputs.
    """
    runs = []
    for run in report.runs:
        if run.threads in executables:
            total, kernels = measure(executables[run.threads], feeds)
            run = msgspec.structs.replace(run, measured_us=total, measured=kernels)
        runs.append(run)
    return msgspec.structs.replace(report, runs=runs)


def measure(executable: Executable, feeds: Mapping[str, Any]) -> tuple[float, dict[str, float]]:
    """Measures microseconds of a run, and of each kernel in it, as the least of several turns.

    The profiling instrument makes all kernels together slower than the run. This overhead is
    subtracted in equal parts from each call.
    """
    repeat = max(2, int(SLICE_US / executable.profile(feeds, 2).total_us))
    profiles = [executable.profile(feeds, repeat) for _ in range(TURNS)]
    total = min(profile.total_us for profile in profiles)
    calls = {row.function: row.calls for row in profiles[0].rows}
    least = dict.fromkeys(calls, math.inf)
    for profile in profiles:
        for name in calls:
            times = (row.microseconds for row in profile.rows if row.function == name)
            least[name] = min(least[name], sum(times))
    surplus = max(0.0, sum(least.values()) - total) / sum(calls.values())
    return total, {name: max(0.0, time - surplus * calls[name]) for name, time in least.items()}


# The kernels that a lowered model calls, in order, and the location of their arguments.
#
# An argument was touched before, by the kernel that wrote it, or, like weights, in the previous
# run. The bytes touched since then tell which cache still holds it (least recently used).


# Usable share of a cache, as its replacement is not exactly least recently used.
USED_CACHE = 0.75


@dataclass(frozen=True)
class Tensor:
    """An argument: its memory, its size in bytes, and whether it is a weight."""

    memory: int
    size: int
    weight: bool


@dataclass(frozen=True)
class ModelCall:
    """One call of a kernel.

    node : str
        The value that the call computes.
    function : str
        The kernel.
    arguments : tuple of Tensor
        Arguments in the order of the kernel's parameters.
    """

    node: str
    function: str
    arguments: tuple[Tensor, ...]


def model_calls(mod: IRModule) -> list[ModelCall]:
    """Lists the calls of `main`; freed memory is reused as soon as possible, as at run time."""
    main = mod["main"]
    graph, _ = named_graph(main, [each for block in main.body.blocks for each in block.bindings])
    kernels = {str(gvar.name_hint) for gvar in mod.get_global_vars()}
    last = {number: place for place, call in enumerate(graph.calls) for number in call.reads}
    memories: dict[int, int] = {}
    free: dict[int, list[int]] = {}

    def tensor(number: int) -> Tensor:
        value = graph.values[number]
        weight = value.kind == WEIGHT
        if number not in memories:
            unused = free.get(value.nbytes)
            memories[number] = unused.pop() if unused and not weight else number
        return Tensor(memories[number], value.nbytes, weight)

    calls: list[ModelCall] = []
    for place, call in enumerate(graph.calls):
        inputs = [tensor(number) for number in call.reads]
        for number, updated in zip(call.writes, call.updates, strict=False):
            memories[number] = memories[updated]
        outputs = [tensor(number) for number in call.writes[len(call.updates) :]]
        if call.function in kernels:
            calls.append(ModelCall(call.node, call.function, (*inputs, *outputs)))
        for number in {*call.reads} - {*call.updates, *graph.outputs}:
            if last[number] == place and graph.values[number].kind != WEIGHT:
                free.setdefault(graph.values[number].nbytes, []).append(memories[number])
    return calls


def origins(
    calls: Sequence[ModelCall], machine: Machine, parts: Mapping[str, Mapping[int, Part]]
) -> list[dict[int, Origin]]:
    """Finds the location of every call's arguments, as input of `kernel_time`.

    Parameters
    ----------
    calls : sequence of ModelCall
        The calls in order.
    machine : Machine
        The machine with its number of threads.
    parts : mapping
        Kernel -> parameter -> part that a thread touches.
    """
    threads = machine.threads
    sockets = max(1, -(-threads // int(machine.description.at("cores"))))
    touched: dict[int, int] = {}
    had: dict[int, Part] = {}
    found: list[dict[int, Origin]] = []
    for _ in range(2):  # the second run finds everything touched before
        found = []
        for call in calls:
            levels: dict[int, Origin] = {}
            order = list(touched)
            for parameter, tensor in enumerate(call.arguments):
                seen = order.index(tensor.memory) + 1 if tensor.memory in touched else 0
                since = order[seen:]
                distance = tensor.size + sum(touched[memory] for memory in since)
                part = parts[call.function].get(parameter)
                near, far = machine.l2_bytes * USED_CACHE, machine.l3_bytes * sockets
                levels[parameter] = Origin(FAR if distance > far else SHARED)
                if tensor.weight and part is not None and part.form == ALL:
                    # Every core that reads all of a weight has a copy, if it fits.
                    if distance <= min(near, far):
                        levels[parameter] = Origin(NEAR)
                elif distance <= near * threads:
                    levels[parameter] = Origin(NEAR, had.get(tensor.memory))
            for parameter, tensor in enumerate(call.arguments):
                touched.pop(tensor.memory, None)
                touched[tensor.memory] = tensor.size
                part = parts[call.function].get(parameter)
                if part is not None:
                    had[tensor.memory] = part
            found.append(levels)
    return found
