"""Collects what the page shows: of an executable, a profile of it, and the machine's limits."""

from __future__ import annotations

import datetime
import math
import platform
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from tvm import DataType

from microkernels.base.errors import IsaError
from microkernels.base.host_cpu import processor
from relay_passes.ir.decisions import REORDER, Decision

from ...explain.origins import decisions_of
from ...explain.profile import Profile
from ...explain.program_graph import NO_PLAN, VALUE, KernelCall, ProgramGraph
from ...library.manifest import RecordUse
from ...runtime.tensors import numpy_dtype
from ...targets.cpu_features import require_host
from ..kernel_speed import Roof, measure_roof
from .advice import advice_for
from .data import Head, KernelRow, Limits, Memory, Note, PageData, RecordLine
from .picture import RegionCard, Work, parts_of, picture_of, reasons_of, tensor_of

if TYPE_CHECKING:
    from ...executable.executable import Executable


def collect(
    executable: Executable,
    inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    model: str = "model",
    repeat: int = 10,
    roof: Roof | None = None,
) -> PageData:
    """Runs a model with the instrument, and puts together what there is to say about it.

    Parameters
    ----------
    executable : Executable
        The model. If it cannot run on this CPU, the page has no times.
    inputs : mapping or sequence, optional
        As for `Executable.profile`.
    model : str
        What it is called; the size of the file, if it is the path of one, is told too.
    repeat : int
        Number of runs.
    roof : Roof or None
        The machine's limits; None: they are measured, which takes some seconds.

    Raises
    ------
    FeedError
        If the inputs do not fit the model, or `repeat` is not positive.
    """
    program = executable.for_host()
    manifest, graph = program.manifest, program.graph
    unmeasured = ""
    profile = None
    try:
        require_host(manifest.features, model, manifest.cpu)
    except IsaError as error:
        unmeasured = str(error)
    else:
        profile = program.profile(inputs, repeat)
    calls = _calls(graph, manifest.decisions)
    times = call_times(profile, [call.function for call in calls])
    chosen = decisions_of(calls, manifest.decisions)
    if profile is not None and roof is None:
        types = {operand_type(each) for each in chosen if each is not None and each.flops}
        roof = measure_roof(sorted(types | {"float32"}), manifest.threads)
    everything = sum(each for each in times if each is not None)
    regions = [
        _region(number, call, decision, graph, manifest.records, us, everything, roof)
        for number, (call, decision, us) in enumerate(zip(calls, chosen, times, strict=True))
    ]
    kernels = _kernels(regions, everything, roof)
    head = _head(executable, model, profile, unmeasured, regions, roof)
    used = {id(decision) for decision in chosen}
    path = Path(model)
    data = PageData(
        head=head,
        regions=regions,
        kernels=kernels,
        picture=None if graph is None else picture_of(graph, regions),
        limits=None if roof is None else _limits(roof),
        memory=memory_of(program, path.stat().st_size if path.is_file() else None),
        reorders=[each.number for each in regions if each.op == REORDER],
        left=_by_time(each for each in regions if not each.taken),
        notes=[
            Note(node=each.node, op=each.op, taken=each.taken, reason=each.reason)
            for each in manifest.decisions
            if id(each) not in used
        ],
        records=[_record(each) for each in manifest.records],
        advice=[],
    )
    return msgspec.structs.replace(data, advice=advice_for(data, manifest))


def _calls(graph: ProgramGraph | None, decisions: Sequence[Decision]) -> list[KernelCall]:
    """The calls of a program; of a library, which keeps no graph, one for each decision."""
    if graph is not None:
        return list(graph.calls)
    return [KernelCall(each.node, each.function, (), ()) for each in decisions if each.function]


def _region(
    number: int,
    call: KernelCall,
    decision: Decision | None,
    graph: ProgramGraph | None,
    records: Sequence[RecordUse],
    us: float | None,
    everything: float,
    roof: Roof | None,
) -> RegionCard:
    """One call with all that is known of it; `everything` is the time of all calls."""
    known = decision or Decision(
        node=call.node,
        op=call.function,
        taken=False,
        function=call.function,
        kernel="runtime",
        reason="a function of the runtime",
    )
    record = next((each for each in records if each.workload == known.workload), None)
    reads = [] if graph is None else [tensor_of(graph.values[each]) for each in call.reads]
    writes = [] if graph is None else [tensor_of(graph.values[each]) for each in call.writes]
    return RegionCard(
        number=number,
        node=known.node if known.taken else call.node,
        op=known.op,
        function=call.function,
        kernel=known.kernel,
        taken=known.taken,
        parts=parts_of(known.op),
        origins=list(call.origins or known.origins),
        config=known.config,
        source=known.source,
        record=f"{record.file}:{record.line}" if record else "",
        reasons=reasons_of(known.reason),
        on_vectors=known.on_vectors,
        at_run_time=known.at_run_time,
        workload=known.workload,
        reads=reads,
        writes=writes,
        work=work_of(known, call, graph, us, everything, roof),
    )


def _kernels(
    regions: Sequence[RegionCard], everything: float, roof: Roof | None
) -> list[KernelRow]:
    """Regions by kernel, the one that takes longest first."""
    groups: dict[str, list[RegionCard]] = {}
    for region in regions:
        groups.setdefault(region.function, []).append(region)
    rows = [
        KernelRow(
            function=function,
            kernel=group[0].kernel,
            op=group[0].op,
            taken=group[0].taken,
            regions=[each.number for each in group],
            work=summed([each.work for each in group], everything, roof),
        )
        for function, group in groups.items()
    ]
    return sorted(rows, key=lambda row: -(row.work.us or 0.0))


def _by_time(regions: Iterable[RegionCard]) -> list[int]:
    return [each.number for each in sorted(regions, key=lambda each: -(each.work.us or 0.0))]


def _limits(roof: Roof) -> Limits:
    return Limits(threads=roof.threads, peaks=roof.peaks, bandwidth=roof.bandwidth)


def _record(use: RecordUse) -> RecordLine:
    return RecordLine(
        place=f"{use.file}:{use.line}",
        how=use.how,
        shipped=use.shipped,
        workload=use.workload,
        measured=use.measured,
    )


def _head(
    executable: Executable,
    model: str,
    profile: Profile | None,
    unmeasured: str,
    regions: Sequence[RegionCard],
    roof: Roof | None,
) -> Head:
    manifest = executable.for_host().manifest
    least = None
    if roof is not None:
        counted = [each.work for each in regions if each.work.dtype in roof.peaks]
        least = sum(work.flops / roof.peaks[work.dtype] / 1e3 for work in counted)
    functions = [each.function for each in regions]
    total = statistics.median(profile.runs_us) if profile else None
    kernels = [each.work.us for each in regions if each.work.us is not None]
    outside = between_kernels(profile, functions) if profile else None
    if outside is not None and total is not None:
        outside = min(outside, max(total - sum(kernels), 0.0))
    now = datetime.datetime.now(datetime.timezone.utc)
    return Head(
        model=Path(model).name,
        cpu=manifest.cpu,
        processor=processor() if not unmeasured else "",
        isa=manifest.isa,
        threads=manifest.threads,
        **manifest.chosen(),
        date=now.strftime("%Y-%m-%d %H:%M UTC"),
        versions={**manifest.versions, "python": platform.python_version()},
        inputs=[str(each) for each in executable.inputs],
        outputs=[str(each) for each in executable.outputs],
        taken=manifest.coverage.taken,
        nodes=manifest.coverage.nodes,
        total_us=total,
        least_total_us=min(profile.runs_us) if profile else None,
        kernels_us=sum(kernels) if kernels else None,
        outside_us=outside,
        least_us=least,
        of_peak=least / total if least and total else None,
        repeat=profile.repeat if profile else 0,
        unmeasured=unmeasured,
    )


_BYTES = re.compile(r"u8|s8")
# They read as much of a table as they write.
_PICKING = re.compile(r"(?:^|_)(?:take|gather|strided_slice|dynamic_strided_slice)")
_RESULT = re.compile(r"-> (\w+)\[([\dx]+)\]$")


def operand_type(decision: Decision) -> str:
    """The type of a region's operands, as far as peaks depend on it."""
    if "bf16_bf16" in decision.kernel or "amx_bf16" in decision.kernel:
        return "bfloat16"
    return "uint8" if _BYTES.search(decision.kernel) else "float32"


def work_of(
    decision: Decision,
    call: KernelCall,
    graph: ProgramGraph | None,
    us: float | None,
    everything: float,
    roof: Roof | None,
) -> Work:
    """Time and work of one call; `everything` is the time of all, `roof` None if not known."""
    flops = 0 if decision.at_run_time else decision.flops
    nbytes = 0 if graph is None else moved(decision, call, graph)
    return _work(us, flops, nbytes, operand_type(decision), everything, roof)


def moved(decision: Decision, call: KernelCall, graph: ProgramGraph) -> int:
    """Bytes of the tensors that a call reads and writes, each once; 0 if a size is open.

    Of a tensor that it only writes a part of, this part; of a table that it picks rows from, as
    many as it writes.
    """
    reads = [graph.values[each].nbytes for each in call.reads if each not in call.updates]
    writes = [graph.values[each].nbytes for each in call.writes]
    if 0 in writes:
        return 0
    written = min(sum(writes), _result_bytes(decision.workload) or sum(writes))
    if not decision.taken and _PICKING.search(decision.op):
        reads = [min(each, written) for each in reads]
    return sum(reads) + written


def summed(works: Sequence[Work], everything: float, roof: Roof | None) -> Work:
    """All calls of a kernel together."""
    times = [work.us for work in works if work.us is not None]
    nbytes = sum(work.nbytes for work in works) if all(work.nbytes for work in works) else 0
    flops = sum(work.flops for work in works)
    us = sum(times) if times else None
    return _work(us, flops, nbytes, works[0].dtype, everything, roof)


def _work(
    us: float | None, flops: int, nbytes: int, dtype: str, everything: float, roof: Roof | None
) -> Work:
    gflops = flops / us / 1e3 if us and flops else None
    peak = roof.peaks.get(dtype) if roof else None
    computing = flops / peak / 1e3 if peak and flops else 0.0
    moving = nbytes / roof.bandwidth / 1e3 if roof else 0.0
    bound = "compute" if computing > moving else "memory"
    return Work(
        us=us,
        share=us / everything if us is not None and everything else None,
        flops=flops,
        nbytes=nbytes,
        gflops=gflops,
        gbytes=nbytes / us / 1e3 if us and nbytes else None,
        of_peak=gflops / peak if gflops and peak else None,
        least_us=max(computing, moving) or None,
        bound=bound if max(computing, moving) else "",
        dtype=dtype,
    )


def _result_bytes(workload: str) -> int:
    """Bytes of a region's own result; 0 if its key does not tell."""
    found = _RESULT.search(workload)
    if found is None:
        return 0
    nbytes = (int(DataType(found[1]).bits) + 7) // 8
    for size in found[2].split("x"):
        nbytes *= int(size)
    return nbytes


def memory_of(executable: Executable, model_file: int | None) -> Memory:
    """Bytes of a program; of a library without an outline, those of weights."""
    outline = executable.outline
    plan, values = NO_PLAN, 0
    weights = sum(each.size for each in executable.manifest.weights)
    if outline is not None:
        graph, plan, weights = outline.graph, outline.plan, outline.weights
        updated = {each for call in graph.calls for each in call.updates}
        values = sum(
            value.nbytes
            for number, value in enumerate(graph.values)
            if value.kind == VALUE and number not in updated and number not in graph.outputs
        )
    return Memory(
        model_file=model_file,
        weights=weights,
        planned=plan.planned,
        peak=plan.peak,
        blocks=plan.blocks,
        values=values,
        inputs=sum(map(_bytes, executable.inputs)),
        outputs=sum(map(_bytes, executable.outputs)),
    )


def _bytes(info: Any) -> int:
    shape = info.static_shape
    return 0 if shape is None else math.prod(shape) * numpy_dtype(info.dtype).itemsize


def between_kernels(profile: Profile, functions: Sequence[str]) -> float | None:
    """Microseconds of a run that are spent outside of kernels.

    In the same run, so that nothing else that the machine does lies between two measurements; but
    less than runs without the instrument leave, which takes time there itself. None if that cannot
    be told.
    """
    known = frozenset(functions)
    count, rest = divmod(len(profile.events), profile.repeat)
    if rest or not count:
        return None
    found = []
    for first in range(0, len(profile.events), count):
        run = profile.events[first : first + count]
        inside = sum(each.end_ns - each.start_ns for each in run if each.function in known)
        found.append((run[-1].end_ns - run[0].start_ns - inside) / 1e3)
    return statistics.median(found)


def call_times(profile: Profile | None, functions: Sequence[str]) -> list[float | None]:
    """Median microseconds of each call.

    Parameters
    ----------
    profile : Profile or None
        None: nothing was run.
    functions : sequence of str
        The kernels, in the order in which a run calls them. If runs do not do so, as where a
        branch is taken, each call gets the mean of its kernel's; None if that was not called.
    """
    if profile is None:
        return [None] * len(functions)
    known = frozenset(functions)
    events = [event for event in profile.events if event.function in known]
    count = len(functions)
    if [event.function for event in events] == [*functions] * profile.repeat:
        spans = [(event.end_ns - event.start_ns) / 1e3 for event in events]
        return [statistics.median(spans[place::count]) for place in range(count)]
    totals = {row.function: row.microseconds for row in profile.rows}
    return [totals[name] / functions.count(name) if name in totals else None for name in functions]
