"""Task parts: a kernel whose tasks run as a part of another kernel's parallel loop.

Before

    for task in T.parallel(5):
        ...

After, for the first of two threads

    for step in T.serial(2):        # tasks 0 and 1; the other thread has 2, 3 and 4
        ...

That is possible if a kernel is one parallel loop whose tasks share no memory of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import s_tir, tirx
from tvm.ir import StringImm
from tvm.tirx import ForKind

from microkernels.amx.permission import PERMISSION_LLVM_IR
from microkernels.vector.expressions import Expr
from tir_schedules.core.emission import children, with_children
from tir_schedules.generic.expressions import nodes_of, substitute

# What may stand around the loop, or in front of it: names of other views, and attributes.
_AROUND = (s_tir.SBlockRealize, s_tir.SBlock, tirx.AttrStmt, tirx.SeqStmt)


def parallel_tasks(function: tirx.PrimFunc) -> int:
    """Iterations of a kernel's parallel loop; 1 if the kernel is anything but one such loop."""
    loop = _only_loop(function.body)
    return 1 if loop is None else int(loop.extent.value)


def part_of(body: tirx.Stmt, thread: Expr, threads: int) -> tirx.Stmt:
    """The part of a kernel's body that one of several threads runs; see `parallel_tasks`.

    Parameters
    ----------
    body : Stmt
        The body of the kernel; if it is serial, the first thread runs all of it.
    thread : Expr
        The thread's number, 0 or more; beyond the number of tasks there is nothing to do.
    threads : int
        How many threads share the kernel.
    """
    loop = _only_loop(body)
    if loop is None:
        assert not _forks(body)
        return tirx.IfThenElse(tirx.EQ(thread, tirx.const(0, "int32")), body, None)
    tasks, count = int(loop.extent.value), tirx.const(threads, "int32")
    whole = tirx.const(tasks, "int32")
    own: tirx.Stmt
    if tasks <= threads:
        own = substitute(loop.body, {loop.loop_var: thread})
        if tasks < threads:
            own = tirx.IfThenElse(tirx.LT(thread, whole), own, None)
    else:
        first, end = (tirx.floordiv((thread + i) * whole, count) for i in range(2))
        step = tirx.Var("step", "int32")
        inside = substitute(loop.body, {loop.loop_var: first + step})
        own = tirx.For(step, tirx.const(0, "int32"), end - first, ForKind.SERIAL, inside)

    def replaced(statement: tirx.Stmt) -> tirx.Stmt:
        if statement.same_as(loop):
            return own
        inside = children(statement)
        return with_children(statement, [*map(replaced, inside)])

    return replaced(body)


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
    inside = [
        each
        for each in children(statement)
        if not isinstance(each, tirx.DeclBuffer)
        and not (isinstance(each, tirx.Evaluate) and isinstance(each.value, tirx.IntImm))
        and not is_check(each)
    ]
    return _only_loop(inside[0]) if len(inside) == 1 else None


def is_check(statement: tirx.Stmt) -> bool:
    """Whether a statement checks the permission to use tiles."""
    text = statement.value if isinstance(statement, tirx.AttrStmt) else None
    return isinstance(text, StringImm) and text.value == PERMISSION_LLVM_IR


def _forks(statement: tirx.Stmt) -> bool:
    """Whether a statement contains a parallel loop."""
    return any(loop.kind == ForKind.PARALLEL for loop in nodes_of(statement, tirx.For))


# Thread parts: which threads run which of several independent kernels, chosen by estimates.
#
#     shares_of([30, 10, 2, 2], threads=8)  ->  kernel 0 on 5 threads, 1 on 2, 2 and 3 on 1
#
# Kernels that share threads run in turn, each on all threads of the share. Nothing waits in
# between, as no kernel reads what another wrote.


@dataclass(frozen=True)
class Share:
    """Some threads, and the kernels that they run.

    Attributes
    ----------
    kernels : tuple of int
        Their numbers, in the order in which they run.
    threads : int
        Number of threads that share each kernel.
    """

    kernels: tuple[int, ...]
    threads: int = 1


def assign(times: Sequence[float], threads: int) -> tuple[Share, ...]:
    """Shares of one thread each: the longest kernel goes first, to the thread that is free first.

    Graham, Bounds on Multiprocessing Timing Anomalies, 1969.

    >>> [share.kernels for share in assign([1.0, 3.0, 2.0], 2)]
    [(1,), (2, 0)]
    """
    shares: list[list[int]] = [[] for _ in range(min(threads, len(times)))]
    busy = [0.0] * len(shares)
    for number in sorted(range(len(times)), key=lambda number: (-times[number], number)):
        free = busy.index(min(busy))
        shares[free].append(number)
        busy[free] += times[number]
    return tuple(Share(tuple(share)) for share in shares)


def shares_of(
    times: Sequence[float], most: Sequence[int], threads: int, fork_us: Callable[[int], float]
) -> tuple[Share, ...]:
    """The shares that finish soonest, with the fork of their threads.

    Parameters
    ----------
    times : sequence of float
        Microseconds that each kernel takes one thread.
    most : sequence of int
        The most threads that can share each kernel.
    threads : int
        How many threads there are.
    fork_us : callable
        Threads -> microseconds to fork and to join them.
    """
    ways: list[tuple[Share, ...]] = []
    for count in range(1, min(threads, len(times)) + 1):
        ways.append(assign(times, count))
        # Each further thread goes to the share that ends last.
        while threads_of(ways[-1]) < threads:
            shares = list(ways[-1])
            ends = [_us(share, times, most) for share in shares]
            at = ends.index(max(ends))
            kernels, more = shares[at].kernels, shares[at].threads + 1
            if more > max(most[number] for number in kernels):
                break
            shares[at] = Share(kernels, more)
            ways.append(tuple(shares))
    return min(ways, key=lambda way: longest(way, times, most) + fork_us(threads_of(way)))


def threads_of(shares: Sequence[Share]) -> int:
    """All threads of some shares."""
    return sum(share.threads for share in shares)


def threads_for(shares: Sequence[Share], kernel: int) -> int:
    """How many threads run a kernel."""
    return next(share.threads for share in shares if kernel in share.kernels)


def longest(shares: Sequence[Share], times: Sequence[float], most: Sequence[int]) -> float:
    """Microseconds until the last share ends, where threads share each kernel equally."""
    return max(_us(share, times, most) for share in shares)


def _us(share: Share, times: Sequence[float], most: Sequence[int]) -> float:
    return sum(times[number] / min(share.threads, most[number]) for number in share.kernels)
