"""Collects the page's data from an executable, its profile, and the machine's limits."""

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
from ...explain.program_graph import NO_PLAN, VALUE, WEIGHT, KernelCall, ProgramGraph
from ...runtime.tensors import numpy_dtype
from ...targets.cpu_features import require_host
from ..kernel_speed import Roof, measure_roof
from .data import Head, KernelRow, Memory, Note, PageData, RecordLine, advice_for
from .picture import (
    Moved,
    RegionCard,
    Tensor,
    Work,
    parts_of,
    picture_of,
    reasons_of,
    tensor_of,
    title_of,
)

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
    """Profiles a model, and assembles the page's data.

    Parameters
    ----------
    executable : Executable
        The model. If it cannot run on this CPU, the page has no times.
    inputs : mapping or sequence, optional
        See `Executable.profile`.
    model : str
        Name of the model; if it is the path of a file, the page shows the file's size.
    repeat : int
        Number of runs.
    roof : Roof or None
        The machine's limits; None: they are measured, which takes some seconds.

    Raises
    ------
    FeedError
        If the inputs do not fit the model, or `repeat` is not positive.
    """
    return _Collector(executable, model, roof).page(inputs, repeat)


Moving = tuple[float, str]
"""Microseconds of moving bytes, and the cache (or "memory") that most of the time goes to."""


class _Collector:
    """Collects data of a program, with its profile and the machine's limits."""

    def __init__(self, executable: Executable, model: str, roof: Roof | None) -> None:
        self.executable, self.model, self.roof = executable, model, roof
        self.program = executable.for_host()
        self.manifest, self.graph = self.program.manifest, self.program.graph
        self.profile: Profile | None = None
        self.unmeasured = ""
        self.everything = 0.0
        path = Path(model)
        self.memory = memory_of(self.program, path.stat().st_size if path.is_file() else None)

    def page(self, inputs: Mapping[str, Any] | Sequence[Any] | None, repeat: int) -> PageData:
        """Runs the model, and assembles all data."""
        manifest, graph = self.manifest, self.graph
        try:
            require_host(manifest.features, self.model, manifest.cpu)
        except IsaError as error:
            self.unmeasured = str(error)
        else:
            self.profile = self.program.profile(inputs, repeat)
        if graph is not None:
            calls = list(graph.calls)
        else:  # a library has no graph
            known = (each for each in manifest.decisions if each.function)
            calls = [KernelCall(each.node, each.function, (), ()) for each in known]
        times = call_times(self.profile, [call.function for call in calls])
        chosen = decisions_of(calls, manifest.decisions)
        if self.profile is not None and self.roof is None:
            types = {operand_type(each) for each in chosen if each is not None and each.flops}
            self.roof = measure_roof(sorted(types | {"float32"}), manifest.threads)
        self.everything = sum(each for each in times if each is not None)
        about = enumerate(zip(calls, chosen, times, strict=True))
        regions = [self.region(number, *each) for number, each in about]
        by_time = sorted(regions, key=lambda each: -(each.work.us or 0.0))
        used = {id(decision) for decision in chosen}
        data = PageData(
            head=self.head(regions),
            regions=regions,
            kernels=self.kernels(regions),
            picture=None if graph is None else picture_of(graph, regions),
            limits=self.roof,
            memory=self.memory,
            reorders=[each.number for each in regions if each.op == REORDER],
            left=[each.number for each in by_time if not each.taken],
            notes=[
                Note(taken=is_done(each), **_same(each, "node", "op", "reason"))
                for each in manifest.decisions
                if id(each) not in used
            ],
            records=[
                RecordLine(
                    place=f"{use.file}:{use.line}",
                    **_same(use, "how", "shipped", "workload", "measured"),
                )
                for use in manifest.records
            ],
            advice=[],
        )
        return msgspec.structs.replace(data, advice=advice_for(data, manifest))

    def region(
        self, number: int, call: KernelCall, decision: Decision | None, us: float | None
    ) -> RegionCard:
        """Makes the card of one call."""
        name, why = call.function, "a function of the runtime"
        known = decision or Decision(
            node=call.node, op=name, taken=False, function=name, kernel="runtime", reason=why
        )
        records, graph = self.manifest.records, self.graph
        record = next((each for each in records if each.workload == known.workload), None)
        flops = 0 if known.at_run_time else known.flops
        moved = Moved() if graph is None else moved_by(known, call, graph)
        return RegionCard(
            number=number,
            node=known.node if known.taken else call.node,
            function=call.function,
            parts=parts_of(known.op),
            origins=list(call.origins or known.origins),
            record=f"{record.file}:{record.line}" if record else "",
            reasons=reasons_of(known.reason),
            **_same(known, "op", "kernel", "taken", "config", "source"),
            **_same(known, "on_vectors", "at_run_time", "workload"),
            reads=self.tensors(call.reads),
            writes=self.tensors(call.writes),
            moved=moved,
            work=self.work(us, flops, moved.total, operand_type(known), self.moving(moved)),
        )

    def tensors(self, numbers: Iterable[int]) -> list[Tensor]:
        """Converts values to the page's form, each once."""
        values = self.graph.values if self.graph else ()
        return [tensor_of(values[number]) for number in dict.fromkeys(numbers)] if values else []

    def kernels(self, regions: Sequence[RegionCard]) -> list[KernelRow]:
        """Groups regions by kernel, the slowest kernel first."""
        groups: dict[str, list[RegionCard]] = {}
        for region in regions:
            groups.setdefault(region.function, []).append(region)
        rows = []
        for group in groups.values():
            works = [each.work for each in group]
            times = [work.us for work in works if work.us is not None]
            nbytes = sum(work.nbytes for work in works) if all(work.nbytes for work in works) else 0
            flops = sum(work.flops for work in works)
            us = sum(times) if times else None
            slowest = max(works, key=lambda work: work.moving_us)
            moving = sum(work.moving_us for work in works), slowest.place
            work = self.work(us, flops, nbytes, works[0].dtype, moving)
            numbers = [each.number for each in group]
            same = _same(group[0], "function", "kernel", "op", "taken")
            rows.append(KernelRow(regions=numbers, work=work, **same))
        return sorted(rows, key=lambda row: -(row.work.us or 0.0))

    def moving(self, moved: Moved) -> Moving:
        """Time of moving bytes from where they lie.

        Weights come from the cache that holds everything a run touches, and in further steps of a
        recurrent layer from the cache that holds this layer's weights. Other tensors come from the
        cache that holds all tensors in use.
        """
        if self.roof is None:
            return 0.0, ""
        others = self.memory.values if self.memory.peak is None else self.memory.peak
        found = [
            (nbytes / cache.bandwidth / 1e3, cache.name)
            for nbytes, cache in (
                (moved.weights, self.roof.holding(self.memory.weights + others)),
                (moved.again, self.roof.holding(moved.weights)),
                (moved.read + moved.written, self.roof.holding(others)),
            )
        ]
        return sum(us for us, _ in found), max(found)[1]

    def work(self, us: float | None, flops: int, nbytes: int, dtype: str, moving: Moving) -> Work:
        """Computes time and work of one call, or of all calls of a kernel."""
        gflops = flops / us / 1e3 if us and flops else None
        peak = self.roof.peaks.get(dtype) if self.roof else None
        computing = flops / peak / 1e3 if peak and flops else 0.0
        moving_us, place = moving
        bound = "compute" if computing > moving_us else place
        return Work(
            us=us,
            share=us / self.everything if us is not None and self.everything else None,
            flops=flops,
            nbytes=nbytes,
            gflops=gflops,
            gbytes=nbytes / us / 1e3 if us and nbytes else None,
            of_peak=gflops / peak if gflops and peak else None,
            least_us=max(computing, moving_us) or None,
            moving_us=moving_us,
            place=place,
            bound=bound if max(computing, moving_us) else "",
            dtype=dtype,
        )

    def head(self, regions: Sequence[RegionCard]) -> Head:
        """Describes the program, and how long a run takes."""
        manifest, profile, roof = self.manifest, self.profile, self.roof
        least = None
        if roof is not None:
            counted = [each.work for each in regions if each.work.dtype in roof.peaks]
            least = sum(work.flops / roof.peaks[work.dtype] / 1e3 for work in counted)
        total = statistics.median(profile.runs_us) if profile else None
        kernels = [each.work.us for each in regions if each.work.us is not None]
        functions = [each.function for each in regions]
        outside = between_kernels(profile, functions) if profile else None
        if outside is not None and total is not None:
            outside = min(outside, max(total - sum(kernels), 0.0))
        now = datetime.datetime.now(datetime.timezone.utc)
        return Head(
            model=Path(self.model).name,
            cpu=manifest.cpu,
            processor=processor() if not self.unmeasured else "",
            isa=manifest.isa,
            threads=manifest.threads,
            **manifest.chosen(),
            date=now.strftime("%Y-%m-%d %H:%M UTC"),
            versions={**manifest.versions, "python": platform.python_version()},
            inputs=[str(each) for each in self.executable.inputs],
            outputs=[str(each) for each in self.executable.outputs],
            taken=manifest.coverage.taken,
            nodes=manifest.coverage.nodes,
            total_us=total,
            least_total_us=min(profile.runs_us) if profile else None,
            kernels_us=sum(kernels) if kernels else None,
            outside_us=outside,
            least_us=least,
            of_peak=least / total if least and total else None,
            repeat=profile.repeat if profile else 0,
            unmeasured=self.unmeasured,
        )


def _same(source: Any, *names: str) -> dict[str, Any]:
    """Selects attributes by name."""
    return {name: getattr(source, name) for name in names}


def is_done(note: Decision) -> bool:
    """Whether a pass did what a decision without a kernel is about.

    Decisions not to merge count as taken, because no operator is left to generic code by them.
    """
    return note.taken and " not merged" not in note.reason


_BYTES = re.compile(r"u8|s8")
# Operators that read only as many elements of a table as they write.
_PICKING = re.compile(r"(?:^|_)(?:take|gather|strided_slice|dynamic_strided_slice)")
_RESULT = re.compile(r"-> (\w+)\[([\dx]+)\]$")


def operand_type(decision: Decision) -> str:
    """Type of a region's operands that decides its peak."""
    if "bf16_bf16" in decision.kernel or "amx_bf16" in decision.kernel:
        return "bfloat16"
    return "uint8" if _BYTES.search(decision.kernel) else "float32"


def moved_by(decision: Decision, call: KernelCall, graph: ProgramGraph) -> Moved:
    """Bytes that a call moves.

    Of an output that is only partly written, the part counts; of a table that it picks rows from,
    as much as it writes.
    """
    read = [graph.values[each] for each in {*call.reads} if each not in call.updates]
    writes = [graph.values[each].nbytes for each in call.writes]
    if 0 in writes:
        return Moved()
    written = sum(writes)
    found = _RESULT.search(decision.workload)
    if found is not None:  # the size of the region's own result
        width = (int(DataType(found[1]).bits) + 7) // 8
        written = min(written, width * math.prod(map(int, found[2].split("x"))) or written)
    most = written if not decision.taken and _PICKING.search(decision.op) else math.inf
    weights = sum(int(min(each.nbytes, most)) for each in read if each.kind == WEIGHT)
    others = sum(int(min(each.nbytes, most)) for each in read if each.kind != WEIGHT)
    again = 0
    if decision.taken and title_of(decision.op) == "recurrent":
        steps = graph.values[call.writes[0]].shape[0]  # the first result has one row for each step
        again = (int(steps) - 1) * weights
    return Moved(weights=weights, again=again, read=others, written=written)


def memory_of(executable: Executable, model_file: int | None) -> Memory:
    """Memory use of a program; for a library without an outline, only the weights are known."""

    def nbytes(info: Any) -> int:
        shape = info.static_shape
        return 0 if shape is None else math.prod(shape) * numpy_dtype(info.dtype).itemsize

    outline = executable.outline
    plan, values = NO_PLAN, 0
    weights = sum(each.size for each in executable.manifest.weights)
    if outline is not None:
        graph, plan, weights = outline.graph, outline.plan, outline.weights
        updated = {each for call in graph.calls for each in call.updates}
        kept = updated.union(graph.outputs)
        others = (value for number, value in enumerate(graph.values) if number not in kept)
        values = sum(value.nbytes for value in others if value.kind == VALUE)
    own = {each: sum(map(nbytes, getattr(executable, each))) for each in ("inputs", "outputs")}
    planned = _same(plan, "planned", "peak", "blocks")
    return Memory(model_file=model_file, weights=weights, values=values, **planned, **own)


def between_kernels(profile: Profile, functions: Sequence[str]) -> float | None:
    """Microseconds of a run that are spent outside of kernels; None if unknown.

    Measured within single runs, so that differences between runs do not count. It is an upper
    bound, because the instrument itself also takes time between kernels.
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
    """Median microseconds of each call; None without a profile.

    Parameters
    ----------
    profile : Profile or None
        The profile, or None.
    functions : sequence of str
        The kernels in the order of a run's calls. If runs call others, as in a branch, each call
        gets its kernel's mean, or None if the kernel was not called.
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
