"""Elements of open sizes that are stored across the order in which they are read, in blocks.

    for i, j in grid(n, m): y[i, j] = x[j, i]

    ->  for blocks of 8 by 8 elements: for j: for i: y[i, j] = x[j, i]

So each cache line is read, and written, while it is in L1.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx import ForKind

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr

from .expressions import int64, loads_of
from .loops import flattened, parameter_views, store_statement, with_statements
from .nest import Axis, Nest, NotHandledError
from .open_nests import open_nests, over_axes, step_along

BLOCK = 8


def open_transposes(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """Loops in blocks for a function that stores each element once.

    Raises
    ------
    NotHandledError
        If all sizes are known, or it reads along the axis that it stores along.
    """
    program = open_nests(func)
    if len(program.nests) != 1 or program.nests[0].reduce:
        raise NotHandledError("it is more than one pass over elements")
    views, statements = parameter_views(func)
    nest = flattened(program.nests[0], views)
    stored, read = _axes(nest)
    others = tuple(axis for axis in nest.spatial if axis not in (stored, read))
    statements.append(over_axes(others, _blocks(nest, stored, read), machine))
    return with_statements(func, statements), "generic_transpose"


def _axes(nest: Nest) -> tuple[Axis, Axis]:
    """The axes along which neighbours are stored, and read."""
    loads = [load for store in nest.stores for load in loads_of(store.value)]
    if len(nest.stores) != 1 or nest.lets or not nest.spatial:
        raise NotHandledError(f"{nest.name} stores more than one element")
    for stored in nest.spatial:
        if step_along(nest, nest.stores[0].indices[0], stored) != 1:
            continue
        apart = [load for load in loads if step_along(nest, load.indices[0], stored) not in (0, 1)]
        for read in nest.spatial:
            if read.end is None and stored.end is None:
                continue  # for `open_items`
            if apart and all(step_along(nest, load.indices[0], read) == 1 for load in apart):
                return stored, read
    raise NotHandledError(f"{nest.name} reads along the axis that it stores along")


def _blocks(nest: Nest, stored: Axis, read: Axis) -> tirx.Stmt:
    """Blocks of two axes, the stored one innermost."""
    firsts: dict[tirx.Var, Expr] = {}
    block_of, place_of = {}, {}
    for axis in (stored, read):
        block_of[axis.var], place_of[axis.var] = (
            tirx.Var(f"{axis.var.name}_{name}", "int64") for name in ("block", "place")
        )
        firsts[axis.var] = block_of[axis.var] * int64(BLOCK)
    at: dict[tirx.Var, Expr] = {var: firsts[var] + place for var, place in place_of.items()}
    body = store_statement(nest, nest.stores, at)
    for axis in (stored, read):
        count = tirx.Min(int64(BLOCK), axis.stated - firsts[axis.var])
        body = tirx.For(place_of[axis.var], int64(0), count, ForKind.SERIAL, body)
    for axis in (read, stored):
        blocks = tirx.floordiv(axis.stated + int64(BLOCK - 1), int64(BLOCK))
        body = tirx.For(block_of[axis.var], int64(0), blocks, ForKind.SERIAL, body)
    return body
