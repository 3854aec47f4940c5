"""What the rules share that write loops over sizes which are known at run time only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.sym import detect_linear_equation
from tvm.tirx import ForKind

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr

from .expressions import const_int, int64, strides_of
from .inline import merge_nests
from .loops import numbers_used
from .nest import Axis, Nest, NotHandledError, Program, analyzer_for
from .open_vectors import loop_of_elements
from .read_program import read_program

SAMPLE = 1 << 10  # what costs are estimated with, and order of loops chosen


def require_open(func: tirx.PrimFunc) -> None:
    """Refuses a function whose sizes are all known: other rules are faster.

    Raises
    ------
    NotHandledError
        Saying so.
    """
    shapes = [getattr(param, "shape", ()) for param in func.params]
    if all(const_int(size) is not None for shape in shapes for size in shape):
        raise NotHandledError("all sizes are known")


def open_nests(func: tirx.PrimFunc) -> Program:
    """The nests of a function with open sizes, as few as their costs allow.

    Raises
    ------
    NotHandledError
        If all sizes are known, or the function is not a list of plain blocks.
    """
    require_open(func)
    return merge_nests(read_program(func, _size))


def _size(extent: Any) -> int:
    known = const_int(extent)
    return SAMPLE if known is None else known


def step_along(nest: Nest, position: Expr, axis: Axis) -> int | None:
    """How far a position moves when an axis takes a step; None if that is no number."""
    return strides_of(position, [axis.var], analyzer_for(nest.axes()))[axis.var]


def continues(nest: Nest, outer: Axis, inner: Axis) -> bool:
    """Whether all tensors of a flat nest have all of one axis between neighbours along another."""
    if not {outer.var, inner.var}.isdisjoint(numbers_used(nest)):
        return False
    analyzer = nest.analyzer()
    positions = [load.indices[0] for load in nest.distinct_reads()]
    positions += [store.indices[0] for store in (*nest.stores, *nest.epilogue)]
    for position in positions:
        found = list(detect_linear_equation(position, [outer.var, inner.var]))
        if not found or not analyzer.can_prove_equal(found[0], found[1] * inner.stated):
            return False
    return True


def with_fewer_reduced(nest: Nest) -> Nest:
    """A flat nest that reduces axes as one which continue each other."""
    reduce = list[Axis]()
    for axis in nest.reduce:
        if reduce and continues(nest, reduce[-1], axis):
            outer = reduce.pop()
            both = open_axis(axis.var.name, outer.stated * axis.stated)
            nest = nest.substituted({outer.var: int64(0), axis.var: both.var})
            axis = both
        reduce.append(axis)
    return replace(nest, reduce=tuple(reduce)).tidied()


def over_axes(axes: tuple[Axis, ...], body: tirx.Stmt, machine: Machine) -> tirx.Stmt:
    """Loops over the axes; threads share the outermost."""
    for number, axis in reversed(list(enumerate(axes))):
        shared = number == 0 and machine.threads > 1
        kind = ForKind.PARALLEL if shared else ForKind.SERIAL
        body = tirx.For(axis.var, int64(0), axis.stated, kind, body)
    return body


def open_axis(name: str, size: Expr) -> Axis:
    """An axis of a size that may be known."""
    known = const_int(size)
    var = tirx.Var(name, "int64")
    return Axis(var, SAMPLE, size) if known is None else Axis(var, known)


def flat_loop(size: Expr, body: Callable[[Expr], tirx.Stmt], machine: Machine) -> tirx.Stmt:
    """One loop; threads have a share each."""
    number, part = tirx.Var("number", "int64"), tirx.Var("part", "int64")
    lanes = machine.isa.f32_lanes
    if machine.threads == 1:
        return loop_of_elements(number, size, body(number), lanes)
    share = tirx.floordiv(size + int64(machine.threads - 1), int64(machine.threads))
    first: Expr = part * share
    count = tirx.Min(share, tirx.Max(size - first, int64(0)))
    loop = loop_of_elements(number, count, body(first + number), lanes)
    return tirx.For(part, int64(0), int64(machine.threads), ForKind.PARALLEL, loop)
