"""Operations and bytes of kernels, and what the machine's limits say about their time."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvm import DataType

from relay_passes.ir.decisions import Decision

from ...explain.profile import Profile
from ...explain.program_graph import NO_PLAN, VALUE, KernelCall, ProgramGraph
from ...runtime.tensors import numpy_dtype
from ..roof import Roof
from .data import Memory
from .picture import Work

if TYPE_CHECKING:
    from ...executable.executable import Executable

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
