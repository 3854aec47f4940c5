"""Collects what the page shows: of an executable, a profile of it, and the machine's limits."""

from __future__ import annotations

import datetime
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from microkernels.base.errors import IsaError
from microkernels.base.host_cpu import processor
from relay_passes.ir.decisions import REORDER, Decision

from ...explain.origins import decisions_of
from ...explain.profile import Profile
from ...explain.program_graph import KernelCall, ProgramGraph
from ...library.manifest import RecordUse
from ...targets.cpu_features import require_host
from ..roof import Roof, measure_roof
from .advice import advice_for
from .data import Head, KernelRow, Limits, Note, PageData, RecordLine
from .kernel_work import between_kernels, call_times, memory_of, operand_type, summed, work_of
from .picture import RegionCard, parts_of, picture_of, reasons_of, tensor_of

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
