"""Task parts: a kernel whose tasks run as a part of another kernel's parallel loop.

Before

    for task in T.parallel(5):
        ...

After, for the first of two threads

    for step in T.serial(2):        # tasks 0 and 1; the other thread has 2, 3 and 4
        ...

That is possible where a kernel is one parallel loop, and shares no memory of its own among tasks.
"""

from __future__ import annotations

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import StringImm
from tvm.tirx import ForKind

from microkernels.amx.permission import PERMISSION_LLVM_IR
from microkernels.vector.expressions import Expr
from tir_schedules.core.statements import children, with_children
from tir_schedules.generic.expressions import substitute

# What may stand around the loop, or in front of it: names of other views, and attributes.
_AROUND = (s_tir.SBlockRealize, s_tir.SBlock, tirx.AttrStmt, tirx.SeqStmt)


def parallel_tasks(function: tirx.PrimFunc) -> int:
    """Passes of a kernel's parallel loop; 1 if it is not one such loop and nothing else."""
    loop = _only_loop(function.body)
    return 1 if loop is None else int(loop.extent.value)


def part_of(body: tirx.Stmt, thread: Expr, threads: int) -> tirx.Stmt:
    """What one of some threads runs of the body of a kernel with `parallel_tasks`.

    Parameters
    ----------
    body : Stmt
        The kernel's; the first thread runs all of one that is serial.
    thread : Expr
        The thread's number, 0 or more; beyond the number of tasks there is nothing to do.
    threads : int
        How many share the kernel.
    """
    loop = _only_loop(body)
    if loop is None:
        assert not _forks(body)
        return tirx.IfThenElse(tirx.EQ(thread, tirx.const(0, "int32")), body, None)
    tasks = int(loop.extent.value)
    return _replaced(body, loop, _share(loop, tasks, thread, threads))


def _share(loop: tirx.For, tasks: int, thread: Expr, threads: int) -> tirx.Stmt:
    if tasks <= threads:
        inside = substitute(loop.body, {loop.loop_var: thread})
        if tasks == threads:
            return inside
        return tirx.IfThenElse(tirx.LT(thread, tirx.const(tasks, "int32")), inside, None)
    count, whole = tirx.const(threads, "int32"), tirx.const(tasks, "int32")
    first, end = (tirx.floordiv((thread + i) * whole, count) for i in range(2))
    step = tirx.Var("step", "int32")
    inside = substitute(loop.body, {loop.loop_var: first + step})
    return tirx.For(step, tirx.const(0, "int32"), end - first, ForKind.SERIAL, inside)


def _only_loop(statement: tirx.Stmt) -> tirx.For | None:
    """The parallel loop, if there is one and nothing but declarations beside it."""
    if isinstance(statement, tirx.For):
        whole = statement.kind == ForKind.PARALLEL and isinstance(statement.extent, tirx.IntImm)
        starts = isinstance(statement.min, tirx.IntImm) and int(statement.min.value) == 0
        return statement if whole and starts and not _forks(statement.body) else None
    if not isinstance(statement, _AROUND):
        return None
    if isinstance(statement, s_tir.SBlock) and len(statement.alloc_buffers):
        return None
    inside = [each for each in children(statement) if not isinstance(each, tirx.DeclBuffer)]
    inside = [each for each in inside if not _is_nothing(each) and not is_check(each)]
    return _only_loop(inside[0]) if len(inside) == 1 else None


def is_check(statement: tirx.Stmt) -> bool:
    """Whether it is a check for permission to use tiles."""
    text = statement.value if isinstance(statement, tirx.AttrStmt) else None
    return isinstance(text, StringImm) and text.value == PERMISSION_LLVM_IR


def _forks(statement: tirx.Stmt) -> bool:
    """Whether a parallel loop is in it."""
    kinds: list[object] = []
    tvm_ffi.structural_walk(statement, (tirx.For, lambda loop: kinds.append(loop.kind)))
    return ForKind.PARALLEL in kinds


def _is_nothing(statement: tirx.Stmt) -> bool:
    return isinstance(statement, tirx.Evaluate) and isinstance(statement.value, tirx.IntImm)


def _replaced(statement: tirx.Stmt, loop: tirx.For, other: tirx.Stmt) -> tirx.Stmt:
    if statement.same_as(loop):
        return other
    inside = children(statement)
    return with_children(statement, [_replaced(each, loop, other) for each in inside])
