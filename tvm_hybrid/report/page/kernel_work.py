"""Operations and bytes of kernels, and what the machine's limits say about their time."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tvm import DataType

from relay_passes.ir.decisions import Decision

from ...explain.program_graph import KernelCall, ProgramGraph
from ..roof import Roof
from .region_card import Work

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
