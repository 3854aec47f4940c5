"""Whether the accumulators of a tensorized function stay in their tiles, from init to store.

A buffer in the scope "amx.tmm" promises memory, and what it gets is four tile registers. So one
block of it may be alive at a time, in one task, and only tile instructions may touch it. Schedules
that need more are refused here; nothing later in TVM would notice.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import tvm
from tvm import s_tir, tirx

from microkernels.errors import CompileError
from microkernels.tensorize.statements import children, walk

from .tensor_intrin import BLOCK_ATTRIBUTE, SCOPE

Size: TypeAlias = tuple[str, int, int]
"""Layout of the tiles, and rows and columns of the accumulators."""


def size_of(statement: tirx.Stmt) -> Size | None:
    """The size of the accumulators that a block of tile instructions works on; None for others."""
    if isinstance(statement, s_tir.SBlock) and BLOCK_ATTRIBUTE in statement.annotations:
        layout, rows, columns = statement.annotations[BLOCK_ATTRIBUTE]
        return str(layout), int(rows), int(columns)
    return None


def check_residency(func: tirx.PrimFunc) -> None:
    """Refuses a schedule whose accumulators do not fit in the tile registers.

    Raises
    ------
    CompileError
        Naming the buffer, and which step of the schedule is missing or wrong.
    """
    name = func.attrs["global_symbol"] if func.attrs and "global_symbol" in func.attrs else "main"
    to_their_places = tvm.transform.Sequential(
        [
            s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
            s_tir.transform.ConvertBlocksToOpaque(),
            s_tir.transform.CompactBufferAllocation(),
        ]
    )
    body = to_their_places(tvm.IRModule({name: func}))[name].body
    users: dict[tirx.Var, set[Size]] = {}
    order: list[tirx.Var] = []
    for statement in walk(body):
        for buffer in _touched(statement):
            users.setdefault(buffer, set()).add(_size_at(statement, buffer))
            if order[-1:] != [buffer]:
                order.append(buffer)
    for buffer in users:
        _check_extent(buffer, users[buffer])
        if order.count(buffer) > 1:
            raise CompileError(
                f"between init and store of {buffer.name} other accumulators are in use, but there "
                "is one set of tiles: tensorize one block of one product after the other"
            )
    _check_tasks(body, frozenset())


def _touched(statement: tirx.Stmt) -> list[tirx.Var]:
    """Accumulators that an innermost block works on, each once.

    What tile instructions work on is known by its view only: their arguments are numbers.
    """
    if not isinstance(statement, s_tir.SBlock):
        return []
    if any(isinstance(inner, s_tir.SBlock) for inner in walk(statement.body)):
        return []
    views = [view.source for view in statement.match_buffers]
    regions = [*views, *statement.reads, *statement.writes]
    return list({r.source: None for r in regions if r.source.scope() == SCOPE})


def _size_at(block: tirx.Stmt, buffer: tirx.Var) -> Size:
    size = size_of(block)
    if size is None:
        raise CompileError(
            f"block {block.name_hint} works on {buffer.name}, whose scope is {SCOPE!r}, without "
            "tile instructions: tensorize init, multiply and store of `register_amx_intrins`"
        )
    return size


def _check_extent(buffer: tirx.Var, sizes: set[Size]) -> None:
    """One block of one size, and nothing else, is alive in the buffer."""
    if len(sizes) > 1:
        found = ", ".join(
            f"{rows}x{columns} in {layout}" for layout, rows, columns in sorted(sizes)
        )
        raise CompileError(
            f"{buffer.name} is used as blocks of {found}; init, multiply and store of a block "
            "come from one call of `register_amx_intrins`"
        )
    ((_, rows, columns),) = sizes
    shape = list(buffer.shape)
    constant = all(isinstance(extent, tirx.IntImm) for extent in shape)
    if not constant or math.prod(map(int, shape)) != rows * columns:
        raise CompileError(
            f"{'x'.join(map(str, shape))} elements of {buffer.name} are alive at once, but the "
            f"tiles hold one block of {rows}x{columns}: after `cache_write`, move the write-back "
            "with `reverse_compute_at` into the loop around the reduction"
        )


def _check_tasks(statement: tirx.Stmt, alive: frozenset[tirx.Var]) -> None:
    """Accumulators that are alive outside of a parallel loop are not used in it."""
    if isinstance(statement, tirx.For) and statement.kind == tirx.ForKind.PARALLEL:
        used = {buffer for inner in walk(statement) for buffer in _touched(inner)}
        for buffer in used & alive:
            raise CompileError(
                f"{buffer.name} is handed from one task of the parallel loop "
                f"{statement.loop_var.name} to another, but tiles belong to a thread: parallelize "
                "a loop outside of init and store"
            )
    if isinstance(statement, s_tir.SBlock):
        alive |= set(statement.alloc_buffers)
    for child in children(statement):
        _check_tasks(child, alive)
