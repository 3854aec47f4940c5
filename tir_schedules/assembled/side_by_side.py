"""Side by side: one parallel region for independent kernels that each leave threads idle.

    for i in T.parallel(2):
        if i == 0: ...body of the first kernel...
        else: ...body of the second kernel...

Every kernel is built serial by its own template. The kernels are assigned to threads longest first
(Graham, Bounds on Multiprocessing Timing Anomalies, 1969). An estimate says whether it pays: calls
and idle threads saved, against one fork and results that the next kernel fetches from another core.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import StringImm
from tvm.tirx import ForKind

from microkernels.amx.permission import PERMISSION_LLVM_IR
from microkernels.machines.machine import Machine
from tir_schedules.core.region import Region
from tir_schedules.core.statements import children, with_children
from tir_schedules.core.template import template_for
from tir_schedules.cost.cost import Cost
from tir_schedules.cost.merge_estimate import SIDE_BY_SIDE, MergeEstimate, on_threads
from tir_schedules.cost.work import flops_us, has_tiles, norm_us
from tir_schedules.product.matmul import MATMUL, estimated_cycles

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
    """

    serial_us: float
    tasks: int
    result_bytes: int


@dataclass(frozen=True, kw_only=True)
class Estimate(MergeEstimate):
    """What running pieces side by side changes.

    Attributes
    ----------
    shares : tuple of tuple of int
        Numbers of the pieces that each thread runs, in order.
    """

    shares: tuple[tuple[int, ...], ...]


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
    separate = Cost(
        compute=sum(piece.serial_us / piece.tasks for piece in pieces),
        barriers=len(pieces) * call + forks,
    )
    shares = assign([piece.serial_us for piece in pieces], threads)
    longest = max(sum(pieces[number].serial_us for number in share) for share in shares)
    # The calling thread runs the first share.
    foreign = sum(pieces[number].result_bytes for share in shares[1:] for number in share)
    merged = Cost(
        compute=longest,
        between=foreign / machine.l3_rate(len(shares)),
        barriers=call + machine.fork_us(len(shares)),
    )
    how = on_threads(len(shares))
    return Estimate(separate=separate, merged=merged, how=how, least=SIDE_BY_SIDE, shares=shares)


def assign(times: Sequence[float], threads: int) -> tuple[tuple[int, ...], ...]:
    """Numbers of the pieces that each thread runs: longest first, to the thread that is free first.

    >>> assign([1.0, 3.0, 2.0], 2)
    ((1,), (2, 0))
    """
    shares: list[list[int]] = [[] for _ in range(min(threads, len(times)))]
    busy = [0.0] * len(shares)
    for number in sorted(range(len(times)), key=lambda number: (-times[number], number)):
        free = busy.index(min(busy))
        shares[free].append(number)
        busy[free] += times[number]
    return tuple(map(tuple, shares))


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


def piece_of(region: Region, tasks: int, machine: Machine) -> Piece:
    """The estimate for one region whose kernel has so many tasks."""
    return Piece(serial_us(region, machine), tasks, region.output.nbytes)


def tasks_of(function: tirx.PrimFunc) -> int:
    """Iterations of a kernel's largest parallel loop; 1 if it is serial."""
    extents = [1]

    def visit(loop: tirx.For) -> None:
        if loop.kind == ForKind.PARALLEL:
            extents.append(int(loop.extent.value))

    tvm_ffi.structural_walk(function.body, (tirx.For, visit))
    return max(extents)


def combine(functions: Sequence[tirx.PrimFunc], shares: Sequence[Sequence[int]]) -> tirx.PrimFunc:
    """One kernel that runs serial ones side by side.

    Parameters
    ----------
    functions : sequence of PrimFunc
        Serial; the last parameter of each is its result. A function may stand there twice.
    shares : sequence of sequence of int
        Numbers of the functions that each thread runs, in order.

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
    for number, share in reversed(list(enumerate(shares))):
        parts: list[tirx.Stmt] = [_nested(bodies[piece], f"part{piece}") for piece in share]
        run = parts[0] if len(parts) == 1 else tirx.SeqStmt(parts)
        if body is None:
            body = run
        else:
            body = tirx.IfThenElse(tirx.EQ(task, tirx.const(number, "int32")), run, body)
    assert body is not None
    zero, extent = tirx.const(0, "int32"), tirx.const(len(shares), "int32")
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
    text = body.value if isinstance(body, tirx.AttrStmt) else None
    if isinstance(text, StringImm) and text.value == PERMISSION_LLVM_IR:
        checks.append(body)
        return tirx.Evaluate(tirx.const(0, "int32"))
    inside = children(body)
    kept = [_without_checks(child, checks) for child in inside]
    same = all(old.same_as(new) for old, new in zip(inside, kept, strict=True))
    return body if same else with_children(body, kept)


def _nested(root: tirx.Stmt, name: str) -> tirx.Stmt:
    """A function's body as a block within another function."""
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
