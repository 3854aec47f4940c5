"""Schedules functions that cannot be read as nests: unknown extents, sorting, scattering, scans.

for i in range(n): with T.sblock("b"): ...  ->  for i in T.parallel(n): with T.sblock("b"): ...
"""

from __future__ import annotations

import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import ForKind

from microkernels.machines.machine import Machine
from tir_schedules.core.statements import walk

from .floats import guard_floats
from .nest import NotHandledError
from .vector_math import lower_math


def parallel_blocks(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """Every block's outermost loop parallel, where its points are independent.

    Raises
    ------
    NotHandledError
        If threads cannot be used, or no block allows it.
    """
    if machine.threads == 1:
        raise NotHandledError("one thread only")
    func = with_starts(func)
    if not isinstance(func.body, s_tir.SBlockRealize):
        raise NotHandledError("the body is not a root block")
    schedule = s_tir.Schedule(func.with_body(lower_math(guard_floats(func.body))))
    root = schedule.get_sblock(func.body.block.name_hint)
    changed = False
    for block in schedule.get_child_blocks(root):
        loops = schedule.get_loops(block)
        kinds = [iterator.iter_type for iterator in schedule.get(block).iter_vars]
        if loops and kinds and kinds[0] == tirx.IterVar.DataPar:
            schedule.parallel(loops[0])
            changed = True
    if not changed:
        raise NotHandledError("no block with independent points")
    return schedule.mod["main"].with_attrs(func.attrs), "generic_blocks"


def loops_as_written(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """The function with its own loops; with one thread, none of them parallel."""
    func = with_starts(func)
    body = func.body
    if machine.threads == 1:
        body = tvm_ffi.structural_map(body, (tirx.For, _serial))
    return func.with_body(lower_math(guard_floats(body))), "generic_serial"


def with_starts(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Stores what a reduction begins with apart from its steps, if there may be none.

    for i, k: y[i] = (0 if k == 0 else y[i]) + x[i, k]   ->   for i: y[i] = 0
                                                              for i, k: y[i] = y[i] + x[i, k]
    """
    names = [
        each.name_hint
        for each in walk(func.body)
        if isinstance(each, s_tir.SBlock)
        and each.init is not None
        and any(map(_may_be_empty, each.iter_vars))
    ]
    if not names:
        return func
    schedule = s_tir.Schedule(func)
    for name in names:
        block = schedule.get_sblock(name)
        schedule.decompose_reduction(block, schedule.get_loops(block)[0])
    return func.with_body(schedule.mod["main"].body)


def _may_be_empty(iterator: tirx.IterVar) -> bool:
    reduced = iterator.iter_type == tirx.IterVar.CommReduce
    return reduced and not isinstance(iterator.dom.extent, tirx.IntImm)


def _serial(loop: tirx.For) -> tirx.For:
    if loop.kind != ForKind.PARALLEL:
        return loop
    return tirx.For(
        loop.loop_var,
        loop.min,
        loop.extent,
        ForKind.SERIAL,
        loop.body,
        annotations=loop.annotations,
    )
