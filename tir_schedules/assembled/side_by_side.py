"""Side by side: one parallel region for independent kernels that each leave threads idle.

    for i in T.parallel(3):
        if i < 2: ...thread i's part of the first kernel...
        else: ...the second kernel...

Every kernel is built by its own template, for the threads that it gets. Estimates divide the
threads (`task_parts`), and say whether the merge pays: it saves calls and idle threads, but adds a
fork and results that the next kernel fetches from another core.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import DataType, s_tir, tirx
from tvm.ir import Call
from tvm.tirx import ForKind

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr
from tir_schedules.core.config import Config
from tir_schedules.core.emission import with_body, with_children
from tir_schedules.core.placement import Placement
from tir_schedules.core.region import Region
from tir_schedules.core.size import SymbolicSize
from tir_schedules.core.template import template_for
from tir_schedules.cost import parallel
from tir_schedules.cost.cost import Cost, flops_us, has_tiles, norm_us
from tir_schedules.cost.parallel import MergeEstimate
from tir_schedules.generic import expressions, nest
from tir_schedules.generic.expressions import int64, nodes_of
from tir_schedules.product.matmul import MATMUL, estimated_cycles

from .task_parts import Share, assign, is_check, longest, part_of, shares_of, threads_of

MOST_PARTS = 16  # in one kernel; more parts take time to compile, and hardly find idle threads
PRODUCTS = ("matmul", "weight_only_matmul", "batch_matmul", "attention", "mlp_chain")
# Elements of a factor that one FMA-like instruction takes for each lane.
STEPS = {"bfloat16": 2, "int8": 4, "uint8": 4}


@dataclass(frozen=True)
class Piece:
    """One of the kernels that run side by side.

    Attributes
    ----------
    serial_us : float
        Estimated microseconds on one thread.
    tasks : int
        Threads that it keeps busy when it runs alone.
    result_bytes : int
        Size of its result.
    most : int
        Threads that may share it when it runs beside others.
    """

    serial_us: float
    tasks: int
    result_bytes: int
    most: int = 1


@dataclass(frozen=True, kw_only=True)
class Estimate(MergeEstimate):
    """The times of pieces alone and side by side.

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
        Pieces that are independent of each other.
    machine : Machine
        A machine with 2 threads or more.
    """
    threads, call = machine.threads, machine.call_us
    forks = sum(machine.fork_us(piece.tasks) for piece in pieces)
    # The calling thread has computed its part of a result, and gets the others from other cores.
    others = sum(piece.result_bytes * (1 - 1 / piece.tasks) for piece in pieces)
    separate = Cost(
        compute=sum(piece.serial_us / piece.tasks for piece in pieces),
        between=others / machine.l3_rate(max(piece.tasks for piece in pieces)),
        barriers=len(pieces) * call + forks,
    )
    times, most = [piece.serial_us for piece in pieces], [piece.most for piece in pieces]
    shares = assign(times, threads)
    if threads > parallel.MEASURED_THREADS:
        shares = shares_of(times, most, threads, machine.fork_us)
    used = threads_of(shares)
    own = sum(pieces[number].result_bytes for number in shares[0].kernels) / shares[0].threads
    foreign = sum(piece.result_bytes for piece in pieces) - own
    merged = Cost(
        compute=longest(shares, times, most),
        between=foreign / machine.l3_rate(used),
        barriers=call + machine.fork_us(used),
    )
    how = parallel.on_threads(used)
    least = parallel.SIDE_BY_SIDE if used == len(shares) else parallel.SIDE_BY_SIDE_SHARED
    return Estimate(separate=separate, merged=merged, how=how, least=least, shares=shares)


def with_times(found: Estimate, alone: Sequence[float], parts: Sequence[float]) -> Estimate:
    """An estimate with times that templates estimate for the kernels built for its shares.

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
    """Estimated microseconds of a kernel of `tasks` tasks on a machine, without the fork."""
    template, free = template_for(region.op), machine.with_numbers(fork_us=0)
    cycles = template.estimate(region, config, free)
    return serial_us(region, machine) / tasks if cycles is None else cycles / machine.cycles_per_us


def serial_us(region: Region, machine: Machine) -> float:
    """Estimated microseconds of a region's kernel on one thread.

    Products count at the rate of vector FMAs or, if that takes longer, at the speed at which their
    weights come from L3; everything else by its vectors. On a machine with tiles, a matmul's
    products count as its template estimates them.
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
    """The estimate for one region whose kernel has `tasks` tasks."""
    return Piece(serial_us(region, machine), tasks, region.output.nbytes, most)


def tasks_of(function: tirx.PrimFunc) -> int:
    """Iterations of a kernel's largest parallel loop; 1 if it is serial."""
    loops = [each for each in nodes_of(function.body, tirx.For) if each.kind == ForKind.PARALLEL]
    return max((int(loop.extent.value) for loop in loops), default=1)


def combine(functions: Sequence[tirx.PrimFunc], shares: Sequence[Share]) -> tirx.PrimFunc:
    """One kernel that runs others side by side.

    Parameters
    ----------
    functions : sequence of PrimFunc
        Serial, or with `parallel_tasks` if several threads run them; the last parameter of each is
        its result. A function may occur twice.
    shares : sequence of Share
        Which threads run which functions.

    Returns
    -------
    PrimFunc
        Its parameters are those of all functions: first what the functions read, then the results.
    """
    renewed = [s_tir.renew_defs(function) for function in functions]
    checks: list[tirx.Stmt] = []

    def unchecked(statement: tirx.AttrStmt) -> tirx.Stmt:
        # Permission to use tiles is checked in front of the parallel loop: an error in another
        # thread than the caller's would have no message.
        if not is_check(statement):
            return statement
        checks.append(statement)
        return tirx.Evaluate(tirx.const(0, "int32"))

    bodies = [tvm_ffi.structural_map(each.body, (tirx.AttrStmt, unchecked)) for each in renewed]
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


def nested(root: tirx.Stmt, name: str) -> s_tir.SBlockRealize:
    """A function's body as a block within another function.

    Parameters
    ----------
    root : Stmt
        Its root block.
    name : str
        Name of the block.
    """
    assert isinstance(root, s_tir.SBlockRealize)
    block = root.block
    return s_tir.SBlockRealize([], True, with_body(block, block.body, block.annotations, name))


# One after another: one kernel that runs others in turn; it allocates the tensors between them.
#
#     def whole(A, B, C):
#         lv = T.sblock_alloc_buffer((64, 32))
#         with T.sblock("part0"): ...     # reads A, writes lv
#         with T.sblock("part1"): ...     # reads lv and B, writes C


@dataclass(frozen=True)
class KernelCall:
    """A kernel and its arguments.

    Attributes
    ----------
    function : PrimFunc
        The kernel.
    operands : tuple of (Var or Expr)
        For each tensor parameter a tensor of equally many elements; a number for any other one.
    shapes : tuple of (sequence of Expr)
        The shapes of its parameters in this call, if they are dynamic, with () for a number; ()
        if they are static.
    """

    function: tirx.PrimFunc
    operands: tuple[Expr, ...]
    shapes: tuple[Sequence[Expr], ...] = ()


def one_after_another(
    steps: Sequence[KernelCall], params: Sequence[tirx.Var], between: Sequence[tirx.Var]
) -> tirx.PrimFunc:
    """One kernel that runs others in turn.

    Parameters
    ----------
    steps : sequence of KernelCall
        A function may occur several times.
    params : sequence of Var
        The parameters of the new kernel.
    between : sequence of Var
        The tensors that it allocates.

    Returns
    -------
    PrimFunc
    """
    bodies = [_body(step, f"part{number}") for number, step in enumerate(steps)]
    whole = bodies[0] if len(bodies) == 1 else tirx.SeqStmt(bodies)
    root = s_tir.SBlock([], [], [], "root", whole, None, list(between))
    return tirx.PrimFunc(list(params), s_tir.SBlockRealize([], True, root))


def _body(step: KernelCall, name: str) -> tirx.Stmt:
    """The body of a kernel, applied to other tensors."""
    function = s_tir.renew_defs(step.function)
    pairs: dict[tirx.Var, Any] = dict(zip(function.params, step.operands, strict=True))
    sizes = {each: pairs.pop(each) for each in [*pairs] if nest.is_number(each)}
    for param, shape in zip(function.params, step.shapes, strict=False):
        if param in pairs:
            known = zip(param.shape, shape, strict=True)
            sizes |= {extent: size for extent, size in known if isinstance(extent, tirx.Var)}
    same = expressions.resized_buffers(pairs, sizes)
    views: list[tirx.Stmt] = []
    for param, buffer in pairs.items():
        view = same.get(param, param)
        if tvm_ffi.structural_equal(list(map(_wide, view.shape)), list(map(_wide, buffer.shape))):
            same[param] = buffer
        else:
            views.append(tirx.DeclBuffer(view, data=buffer.data))
    body = nested(expressions.with_sizes(function.body, sizes, same), name)
    if not views:
        return body
    block = body.block
    inside = tirx.SeqStmt([*views, block.body])
    return s_tir.SBlockRealize([], True, with_body(block, inside, block.annotations))


def _wide(extent: Expr) -> Expr:
    """Returns an extent for comparisons, with a number as an int64 constant."""
    number = expressions.const_int(extent)
    return extent if number is None else int64(number)


def place_output(
    function: tirx.PrimFunc, result: Sequence[int], shape: Sequence[int], placement: Placement
) -> tirx.PrimFunc | str:
    """Lets a kernel store its result as a part of a larger tensor, at no cost.

    Before

        def matmul(A: T.Buffer((1, 56, 56, 64)), W: ..., C: T.Buffer((1, 56, 56, 64))):
            C[n, y, x, 0:16] = ...

    After

        def matmul(A: T.Buffer((1, 56, 56, 64)), W: ..., J: T.Buffer((1, 56, 56, 128))):
            C = T.decl_buffer((1, 56, 56, 64), data=J.data, strides=(401408, 7168, 128, 1),
                              elem_offset=64)
            C[n, y, x, 0:16] = ...

    Templates know nothing of this. Kernels that need rows directly one after the other are refused:
    AMX tiles that are stored directly, and views of the result that have no strides, or whose
    elements lie apart along the last axis, where vectors are stored.

    Parameters
    ----------
    function : PrimFunc
        Its last parameter is its result.
    result : sequence of int
        The shape of the result.
    shape : sequence of int
        The shape of the tensor that contains the result, the new last parameter.
    placement : Placement
        Where the result lies in it.

    Returns
    -------
    PrimFunc or str
        The kernel, or a str that says why it cannot.
    """
    function = s_tir.renew_defs(function)
    *inputs, out = function.params
    align = max(1, DataType(str(out.dtype)).itemsize)
    joint_shape = _with_variables(shape, result, out)
    joint = tirx.decl_buffer(joint_shape, out.dtype, "J", data_alignment=align, layout=None)
    if not {*_variables(out)} <= {each for given in (*inputs, joint) for each in _variables(given)}:
        return "only its result gives its size"
    views: dict[tirx.Var, tirx.Var] = {}
    declared = nodes_of(function.body, tirx.DeclBuffer)
    buffers = [out, *(each.buffer for each in declared if _is_data_of(each.data, out))]
    if _passes_address(function, buffers):
        return "its kernel passes the result's address on"
    for buffer in buffers:
        extents = tuple(getattr(extent, "value", extent) for extent in buffer.shape)
        strides = placement.strides_of(extents)
        apart = strides is not None and extents[-1:] != (1,) and strides[-1:] != (1,)
        if strides is None or apart or len(buffer.strides):
            return f"its kernel stores it as {'x'.join(map(str, extents))}"
        where: dict[str, Any] = {"strides": strides, "elem_offset": placement.offset}
        where |= {"data": joint.data, "data_alignment": align, "layout": None}
        views[buffer] = tirx.decl_buffer(extents, out.dtype, "C", **where)

    def declared_anew(declaration: tirx.DeclBuffer) -> tirx.Stmt:
        view = views.get(declaration.buffer)
        return declaration if view is None else tirx.DeclBuffer(view, data=joint.data)

    body = tvm_ffi.structural_map(function.body, (tirx.DeclBuffer, declared_anew))
    body = expressions.substitute(body, views)
    own = tirx.DeclBuffer(views[out], data=joint.data)
    if isinstance(body, s_tir.SBlockRealize):
        inside = tirx.SeqStmt([own, body.block.body])
        body = with_children(body, [with_body(body.block, inside, body.block.annotations)])
    else:
        body = tirx.SeqStmt([own, body])
    return tirx.PrimFunc([*inputs, joint], body, function.ret_type, function.attrs)


def _with_variables(
    shape: Sequence[int], result: Sequence[int], out: tirx.Var
) -> tuple[int | tirx.Var, ...]:
    """A shape whose symbolic sizes are the variables of a kernel's result, or new ones."""
    found: dict[int, Any] = {}
    if len(result) == len(out.shape):
        found = dict(zip(result, out.shape, strict=True))
    for size in shape:
        if isinstance(size, SymbolicSize):
            found.setdefault(size, tirx.Var(f"j{len(found)}", "int64"))
    return tuple(found[size] if isinstance(size, SymbolicSize) else size for size in shape)


def _variables(buffer: tirx.Var) -> list[tirx.Var]:
    """The variables among a buffer's extents."""
    return [extent for extent in buffer.shape if isinstance(extent, tirx.Var)]


def _passes_address(function: tirx.PrimFunc, buffers: Sequence[tirx.Var]) -> bool:
    """Whether the result's address is used for more than to declare its views, `buffers[1:]`."""
    data = 0
    for call in nodes_of(function.body, Call):
        inside = call.args[0].source if expressions.call_name(call) == "address_of" else None
        if inside is not None and any(inside.same_as(buffer) for buffer in buffers):
            return True
        data += sum(_is_data_of(call, buffer) for buffer in buffers)
    return data >= len(buffers)


def _is_data_of(expr: Expr, buffer: tirx.Var) -> bool:
    """Whether an expression is the address where a buffer begins."""
    return expressions.call_name(expr) == "buffer_data" and expr.args[0].same_as(buffer)
