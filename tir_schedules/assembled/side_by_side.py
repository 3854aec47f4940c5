"""Side by side: one parallel region for independent kernels that each leave threads idle.

    for i in T.parallel(3):
        if i < 2: ...thread i's part of the first kernel...
        else: ...the second kernel...

Every kernel is built by its own template, for the threads that it gets. Threads are shared out by
estimates (`task_parts`). An estimate also says whether it pays: calls and idle threads saved,
against one fork and results that the next kernel fetches from another core.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import ForKind

from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config
from tir_schedules.core.emission import children, with_children
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for
from tir_schedules.cost.cost import Cost
from tir_schedules.cost.parallel import (
    MEASURED_THREADS,
    SIDE_BY_SIDE,
    SIDE_BY_SIDE_SHARED,
    MergeEstimate,
    on_threads,
)
from tir_schedules.cost.work import flops_us, has_tiles, norm_us
from tir_schedules.product.matmul import MATMUL, estimated_cycles

from .task_parts import Share, assign, is_check, longest, part_of, shares_of, threads_of

MOST_PARTS = 16  # in one kernel; more cost time to compile, and hardly find idle threads
PRODUCTS = ("matmul", "weight_only_matmul", "batch_matmul", "attention", "mlp_chain")
# Elements of a factor that one FMA-like instruction takes for each lane.
STEPS = {"bfloat16": 2, "int8": 4, "uint8": 4}


@dataclass(frozen=True)
class Piece:
    """One of the kernels.

    Attributes
    ----------
    serial_us : float
        Estimated microseconds on one thread.
    tasks : int
        Threads that it keeps busy when it runs alone.
    result_bytes : int
        Size of its result.
    most : int
        Threads that may share it beside others.
    """

    serial_us: float
    tasks: int
    result_bytes: int
    most: int = 1


@dataclass(frozen=True, kw_only=True)
class Estimate(MergeEstimate):
    """What running pieces side by side changes.

    Attributes
    ----------
    shares : tuple of Share
        Which threads run which pieces.
    """

    shares: tuple[Share, ...]


def estimate(pieces: Sequence[Piece], machine: Machine) -> Estimate:
    """The best assignment of pieces to threads, and what it costs.

    Parameters
    ----------
    pieces : sequence of Piece
        Independent of each other.
    machine : Machine
        With 2 threads or more.
    """
    threads, call = machine.threads, machine.call_us
    forks = sum(machine.fork_us(piece.tasks) for piece in pieces)
    # The calling thread has its part of a result, and gets the rest from other cores.
    others = sum(piece.result_bytes * (1 - 1 / piece.tasks) for piece in pieces)
    separate = Cost(
        compute=sum(piece.serial_us / piece.tasks for piece in pieces),
        between=others / machine.l3_rate(max(piece.tasks for piece in pieces)),
        barriers=len(pieces) * call + forks,
    )
    times, most = [piece.serial_us for piece in pieces], [piece.most for piece in pieces]
    shares = assign(times, threads)
    if threads > MEASURED_THREADS:
        shares = shares_of(times, most, threads, machine.fork_us)
    used = threads_of(shares)
    own = sum(pieces[number].result_bytes for number in shares[0].kernels) / shares[0].threads
    foreign = sum(piece.result_bytes for piece in pieces) - own
    merged = Cost(
        compute=longest(shares, times, most),
        between=foreign / machine.l3_rate(used),
        barriers=call + machine.fork_us(used),
    )
    how = on_threads(used)
    least = SIDE_BY_SIDE if used == len(shares) else SIDE_BY_SIDE_SHARED
    return Estimate(separate=separate, merged=merged, how=how, least=least, shares=shares)


def with_times(found: Estimate, alone: Sequence[float], parts: Sequence[float]) -> Estimate:
    """The same shares, by what templates estimate of the kernels that were made for them.

    Parameters
    ----------
    found : Estimate
        The shares, which were chosen as if threads shared each kernel ideally.
    alone, parts : sequence of float
        Microseconds of each kernel on all threads and on those of its share, without forks.
    """
    longest_us = max(sum(parts[number] for number in share.kernels) for share in found.shares)
    separate = replace(found.separate, compute=sum(alone))
    return replace(found, separate=separate, merged=replace(found.merged, compute=longest_us))


def shared_us(region: Region, config: Config, machine: Machine, tasks: int) -> float:
    """Estimated microseconds of a kernel of so many tasks on a machine, without the fork."""
    template, free = template_for(region.op), machine.with_numbers(fork_us=0)
    cycles = template.estimate(region, config, free)
    return serial_us(region, machine) / tasks if cycles is None else cycles / machine.cycles_per_us


def serial_us(region: Region, machine: Machine) -> float:
    """Estimated microseconds of a region's kernel on one thread.

    Products at the rate of vector FMAs or, if that takes longer, at the speed at which their
    weights come from L3; everything else by its vectors. Where there are tiles, a matmul's products
    as its template estimates them.
    """
    tensors = (*region.inputs, *region.operands, region.output)
    lanes, per_us = machine.isa.f32_lanes, machine.cycles_per_us
    if region.op in PRODUCTS:
        steps = STEPS.get(region.inputs[1].dtype, 1) if len(region.inputs) > 1 else 1
        us = flops_us(template_for(region.op).flops(region) / steps, machine)
        if region.op == MATMUL.name and has_tiles(machine):
            alone = replace(machine, threads=1)
            cycles = estimated_cycles(region, MATMUL.default_config(region, alone), alone)
            us = cycles / per_us
        weights = sum(tensor.nbytes for tensor in region.inputs if tensor.constant)
        stores = math.ceil(region.output.size / lanes) / per_us
        return max(us, weights / machine.l3_rate()) + stores
    return norm_us(math.ceil(max(tensor.size for tensor in tensors) / lanes), machine)


def piece_of(region: Region, tasks: int, machine: Machine, most: int = 1) -> Piece:
    """The estimate for one region whose kernel has so many tasks."""
    return Piece(serial_us(region, machine), tasks, region.output.nbytes, most)


def tasks_of(function: tirx.PrimFunc) -> int:
    """Iterations of a kernel's largest parallel loop; 1 if it is serial."""
    extents = [1]

    def visit(loop: tirx.For) -> None:
        if loop.kind == ForKind.PARALLEL:
            extents.append(int(loop.extent.value))

    tvm_ffi.structural_walk(function.body, (tirx.For, visit))
    return max(extents)


def combine(functions: Sequence[tirx.PrimFunc], shares: Sequence[Share]) -> tirx.PrimFunc:
    """One kernel that runs others side by side.

    Parameters
    ----------
    functions : sequence of PrimFunc
        Serial, or with `parallel_tasks` where several threads run them; the last parameter of each
        is its result. A function may stand there twice.
    shares : sequence of Share
        Which threads run which functions.

    Returns
    -------
    PrimFunc
        Its parameters are those of all functions: first what they read, then the results.
    """
    renewed = [s_tir.renew_defs(function) for function in functions]
    checks: list[tirx.Stmt] = []
    bodies = [_without_checks(function.body, checks) for function in renewed]
    task = tirx.Var("task", "int32")
    body: tirx.Stmt | None = None
    end = threads_of(shares)
    for share in reversed(shares):
        first = end - share.threads
        parts: list[tirx.Stmt] = []
        for piece in share.kernels:
            own: tirx.Stmt = nested(bodies[piece], f"part{piece}")
            if share.threads > 1:
                own = part_of(own, task - tirx.const(first, "int32"), share.threads)
            parts.append(own)
        run = parts[0] if len(parts) == 1 else tirx.SeqStmt(parts)
        if body is None:
            body = run
        else:
            body = tirx.IfThenElse(tirx.LT(task, tirx.const(end, "int32")), run, body)
        end = first
    assert body is not None
    zero, extent = tirx.const(0, "int32"), tirx.const(threads_of(shares), "int32")
    loop = tirx.For(task, zero, extent, ForKind.PARALLEL, body)
    whole = tirx.SeqStmt([checks[0], loop]) if checks else loop
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", whole))
    params = [
        *(param for function in renewed for param in function.params[:-1]),
        *(function.params[-1] for function in renewed),
    ]
    return tirx.PrimFunc(params, root, attrs=functions[0].attrs)


def _without_checks(body: tirx.Stmt, checks: list[tirx.Stmt]) -> tirx.Stmt:
    """A body without its checks for permission to use tiles, which are added to a list.

    They belong in front of the parallel loop: what another thread than the caller's finds is no
    error with a message.
    """
    if is_check(body):
        checks.append(body)
        return tirx.Evaluate(tirx.const(0, "int32"))
    inside = children(body)
    kept = [_without_checks(child, checks) for child in inside]
    same = all(old.same_as(new) for old, new in zip(inside, kept, strict=True))
    return body if same else with_children(body, kept)


def nested(root: tirx.Stmt, name: str) -> s_tir.SBlockRealize:
    """A function's body as a block within another function.

    Parameters
    ----------
    root : Stmt
        Its root block.
    name : str
        Of the block.
    """
    assert isinstance(root, s_tir.SBlockRealize)
    block = root.block
    renamed = s_tir.SBlock(
        [],
        block.reads,
        block.writes,
        name,
        block.body,
        block.init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )
    return s_tir.SBlockRealize([], True, renamed)
