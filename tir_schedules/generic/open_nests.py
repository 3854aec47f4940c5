"""What the rules share that write loops over sizes which are known at run time only."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx import ForKind

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr

from .expressions import const_int, int64, strides_of
from .inline import merge_nests
from .nest import Axis, Nest, NotHandledError, Program, analyzer_for
from .read_program import read_program

_SAMPLE = 1 << 10  # what costs are estimated with, and order of loops chosen


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
    return _SAMPLE if known is None else known


def step_along(nest: Nest, position: Expr, axis: Axis) -> int | None:
    """How far a position moves when an axis takes a step; None if that is no number."""
    return strides_of(position, [axis.var], analyzer_for(nest.axes()))[axis.var]


def over_axes(axes: tuple[Axis, ...], body: tirx.Stmt, machine: Machine) -> tirx.Stmt:
    """Loops over the axes; threads share the outermost."""
    for number, axis in reversed(list(enumerate(axes))):
        shared = number == 0 and machine.threads > 1
        kind = ForKind.PARALLEL if shared else ForKind.SERIAL
        body = tirx.For(axis.var, int64(0), axis.stated, kind, body)
    return body
